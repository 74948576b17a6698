//! The tables. The first node creates them. Their version number keeps petstore from using a schema that it does not
//! support.

use application::ports::{Fault, LogError, Version};
use tokio_postgres::{Client, Error, error::SqlState};

use super::error_mapping;

const VERSION: i32 = 1;

/// Several nodes may start at once on an empty database: the advisory lock lets one of them create the tables. The key
/// of the lock is an arbitrary number that spells "petstore".
const CREATE: &str = "\
    BEGIN; \
    SELECT pg_advisory_xact_lock(8099007544119226981); \
    CREATE TABLE IF NOT EXISTS petstore_commits (\
        position bigint PRIMARY KEY CHECK (position > 0), id uuid NOT NULL, bytes bytea NOT NULL); \
    CREATE TABLE IF NOT EXISTS petstore_schema (version integer NOT NULL); \
    INSERT INTO petstore_schema SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM petstore_schema); \
    COMMIT";

/// Ensures that the tables exist and have the supported version. Creates missing ones if no commit is known.
pub(super) async fn ensure(client: &Client, server: &str, known: Option<Version>) -> Result<(), LogError> {
    let failed = |error: Error| error_mapping::query_error(server, &error);
    // The table with the version is created last.
    let exist = client.query_one("SELECT to_regclass('petstore_schema') IS NOT NULL", &[]).await;
    let exist: bool = exist.and_then(|row| row.try_get(0)).map_err(failed)?;
    if !exist && known.is_some() {
        let detail = format!("the database at {server} holds no log; check the URL");
        return Err(Fault::AnotherLog.error(detail));
    }
    if !exist {
        client.batch_execute(CREATE).await.map_err(|error| match error.code() {
            Some(code) if *code == SqlState::INSUFFICIENT_PRIVILEGE => Fault::CannotOpen.error(format!(
                "the user may not create tables in PostgreSQL at {server} ({}); grant it CREATE on the schema for the first \
                 start",
                error_mapping::describe(&error)
            )),
            _ => failed(error),
        })?;
    }
    let versions = "SELECT max(version) FROM petstore_schema";
    let version: Option<i32> =
        client.query_one(versions, &[]).await.and_then(|row| row.try_get(0)).map_err(failed)?;
    match version {
        Some(VERSION) => Ok(()),
        Some(version) if version > VERSION => {
            Err(Fault::UnsupportedFormat.error(format!(
                "the tables in PostgreSQL at {server} have version {version}, and this petstore supports {VERSION}; run the \
                 version of petstore that created them, or a newer one"
            )))
        }
        Some(_) | None => Err(Fault::CannotOpen.error(format!(
            "the table petstore_schema in PostgreSQL at {server} was not created by petstore; choose another \
                 database"
        ))),
    }
}
