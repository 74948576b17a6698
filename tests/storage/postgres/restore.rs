//! A database that is restored or replaced while nodes use it.

use application::{PetStore, ports::Fault};
use domain::PetName;
use harness::{PostgresServer, all_pets, create};

use super::nodes::{eventually, node};

#[tokio::test(flavor = "multi_thread")]
async fn a_database_restored_from_an_older_dump_is_rejected_until_the_newer_one_is_back() {
    let server = PostgresServer::start();
    let store = node(&server.url("postgres")).await;
    for count in 1..=6 {
        create(&store, &format!("before {count}")).await.unwrap();
    }
    server.sql("postgres", "CREATE TABLE newer AS SELECT * FROM petstore_commits");
    server.sql("postgres", "DELETE FROM petstore_commits WHERE position > 3");
    is_rejected(&store).await;
    assert!(create(&store, "after").await.is_err());
    assert_eq!(all_pets(&store).unwrap().len(), 6, "reads continue");
    assert_eq!(server.sql("postgres", "SELECT count(*) FROM petstore_commits"), "3", "nothing is stored");
    server.sql("postgres", "INSERT INTO petstore_commits SELECT * FROM newer WHERE position > 3");
    let next = eventually("writing goes on", || create(&store, "after")).await;
    assert_eq!(next.id.get(), 7);
}

async fn is_rejected(store: &PetStore) {
    eventually("the log is rejected", async || {
        let reason = store.health().not_ready_for_reads().map(|error| error.fault);
        if reason == Some(Fault::AnotherLog) { Ok(()) } else { Err(reason) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_only_reads_notices_another_history_of_the_same_length() {
    let mut server = PostgresServer::start();
    let other = server.create_database();
    let store = node(&server.url("postgres")).await;
    create(&store, "first").await.unwrap();
    let elsewhere = node(&server.url(&other)).await;
    let row = |database: &str, position: u32| {
        let column = |what: &str| {
            let of_row = format!("SELECT {what} FROM petstore_commits WHERE position = {position}");
            server.sql(database, &of_row)
        };
        format!("'{}', decode('{}', 'hex')", column("id"), column("encode(bytes, 'hex')"))
    };
    let first = row("postgres", 1);
    server.sql(&other, &format!("INSERT INTO petstore_commits (position, id, bytes) VALUES (1, {first})"));
    eventually("the first commit is there too", || create(&elsewhere, "theirs")).await;
    create(&store, "ours").await.unwrap();
    let theirs = row(&other, 2);
    server
        .sql("postgres", &format!("UPDATE petstore_commits SET (id, bytes) = ({theirs}) WHERE position = 2"));
    is_rejected(&store).await;
    let names: Vec<_> = all_pets(&store).unwrap().into_iter().map(|pet| pet.details.name).collect();
    assert_eq!(names.iter().map(PetName::as_str).collect::<Vec<_>>(), ["first", "ours"], "reads continue");
}
