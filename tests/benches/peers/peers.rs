//! The peers, written as one would write them well in an afternoon: no API keys, no metrics, no limits, no event log.

use std::{
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use axum::{
    Json, Router,
    extract::{Path, Query, State},
    http::StatusCode,
    routing::{MethodRouter, get, post},
};
use rusqlite::{Connection, OptionalExtension as _, Row, params};
use serde::{Deserialize, Serialize};
use tokio::{
    sync::{mpsc, oneshot},
    task,
};
use tokio_postgres::{Client, NoTls, Statement};

/// Enough for PostgreSQL to write several commits with one sync; each of them pipelines its statements.
const POSTGRES_CONNECTIONS: usize = 16;
/// The limit on creates that wait for the writer, and on those in one transaction.
const GROUP_MAX: usize = 1024;
const INSERT: &str = "INSERT INTO pets (name, category_id, status) VALUES (?1, ?2, ?3)";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Pet {
    id: i64,
    #[serde(flatten)]
    new: NewPet,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NewPet {
    name: String,
    category_id: i64,
    status: Option<String>,
}

#[derive(Deserialize)]
struct Page {
    #[serde(default = "default_limit")]
    limit: i64,
    #[serde(default)]
    after: i64,
    status: Option<String>,
}

fn default_limit() -> i64 {
    20
}

type Failure = (StatusCode, String);

fn failure(error: impl fmt::Display) -> Failure {
    (StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

/// Prints the address, then serves until it is killed.
pub(crate) fn serve(peer: &str, pets: usize, store: &str) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let router = match peer {
            "ceiling" => ceiling(),
            "commit-per-request" => sqlite(store, pets, commit_per_request),
            "group-commit" => sqlite(store, pets, group_commit),
            "postgres" => postgres(store, pets).await,
            _ => panic!("no peer is called {peer}"),
        };
        // With the same backlog and socket options as petstore.
        let listener = adapters::http::listen(([127, 0, 0, 1], 0).into()).expect("a free port");
        println!("{}", listener.local_addr().expect("an address"));
        axum::serve(listener, router).await.expect("it serves until it is killed");
    });
}

/// Plain axum: one route that returns a constant page of 20 pets.
fn ceiling() -> Router {
    let pet =
        |id| Pet { id, new: NewPet { name: "Rex".into(), category_id: 7, status: Some("available".into()) } };
    let pets: Vec<Pet> = (1..=20).map(pet).collect();
    let page: &'static str = serde_json::to_string(&pets).expect("pets are JSON").leak();
    Router::new()
        .route("/v1/pets", get(move || async move { ([("content-type", "application/json")], page) }))
}

type SharedConnection = Arc<Mutex<Connection>>;

/// Uses one connection for reads and one for writes: SQLite has a single writer.
fn sqlite(file: &str, pets: usize, create: fn(Connection) -> MethodRouter) -> Router {
    let open = || {
        let connection = Connection::open(file).expect("the file opens");
        connection
            .execute_batch(
                "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA busy_timeout = 5000;",
            )
            .expect("the settings are taken");
        connection
    };
    let writes = open();
    writes
        .execute_batch(&format!(
            "CREATE TABLE pets (id INTEGER PRIMARY KEY, name TEXT NOT NULL, category_id INTEGER NOT NULL, status TEXT);
             CREATE INDEX by_status ON pets (status, id);
             WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < {pets})
             INSERT INTO pets
             SELECT n, 'Rex', 7, CASE n % 3 WHEN 0 THEN 'available' WHEN 1 THEN 'pending' ELSE 'sold' END FROM number;
             ANALYZE;"
        ))
        .expect("the table is filled");
    Router::new()
        .route("/v1/pets", get(sqlite_list))
        .route("/v1/pets/{id}", get(sqlite_get))
        .with_state(Arc::new(Mutex::new(open())))
        .route("/v1/pets", create(writes))
}

fn sqlite_pet(row: &Row<'_>) -> rusqlite::Result<Pet> {
    let new = NewPet { name: row.get(1)?, category_id: row.get(2)?, status: row.get(3)? };
    Ok(Pet { id: row.get(0)?, new })
}

// Reads come from the page cache and take microseconds: handing them to another thread would cost more.
async fn sqlite_list(
    State(reads): State<SharedConnection>,
    Query(page): Query<Page>,
) -> Result<Json<Vec<Pet>>, Failure> {
    let reads = reads.lock().map_err(failure)?;
    let pets: rusqlite::Result<Vec<Pet>> = match &page.status {
        Some(status) => reads
            .prepare_cached("SELECT * FROM pets WHERE status = ?1 AND id > ?2 ORDER BY id LIMIT ?3")
            .and_then(|mut query| {
                query.query_map(params![status, page.after, page.limit], sqlite_pet)?.collect()
            }),
        None => reads
            .prepare_cached("SELECT * FROM pets WHERE id > ?1 ORDER BY id LIMIT ?2")
            .and_then(|mut query| query.query_map(params![page.after, page.limit], sqlite_pet)?.collect()),
    };
    pets.map(Json).map_err(failure)
}

async fn sqlite_get(
    State(reads): State<SharedConnection>,
    Path(id): Path<i64>,
) -> Result<Json<Pet>, Failure> {
    let reads = reads.lock().map_err(failure)?;
    let pet = reads
        .prepare_cached("SELECT * FROM pets WHERE id = ?1")
        .and_then(|mut query| query.query_row([id], sqlite_pet).optional());
    pet.map_err(failure)?.map(Json).ok_or((StatusCode::NOT_FOUND, "no such pet".into()))
}

fn commit_per_request(writes: Connection) -> MethodRouter {
    post(sqlite_create).with_state(Arc::new(Mutex::new(writes)))
}

async fn sqlite_create(
    State(writes): State<SharedConnection>,
    Json(new): Json<NewPet>,
) -> Result<(StatusCode, Json<Pet>), Failure> {
    let insert = move || {
        let writes = writes.lock().map_err(failure)?;
        let id = writes
            .prepare_cached(INSERT)
            .and_then(|mut insert| insert.insert(params![new.name, new.category_id, new.status]))
            .map_err(failure)?;
        Ok((StatusCode::CREATED, Json(Pet { id, new })))
    };
    task::spawn_blocking(insert).await.map_err(failure)?
}

/// A pet, and where its handler waits for the response.
type Create = (NewPet, oneshot::Sender<Result<Pet, Failure>>);

fn group_commit(mut writes: Connection) -> MethodRouter {
    let (creates, mut waiting) = mpsc::channel::<Create>(GROUP_MAX);
    thread::spawn(move || {
        let mut group = vec![];
        while waiting.blocking_recv_many(&mut group, GROUP_MAX) > 0 {
            // A response is not sent if the client has disconnected.
            match insert_all(&mut writes, &group) {
                Ok(ids) => group.drain(..).zip(ids).for_each(|((new, response), id)| {
                    let _ = response.send(Ok(Pet { id, new }));
                }),
                Err(error) => group.drain(..).for_each(|(_, response)| {
                    let _ = response.send(Err(failure(&error)));
                }),
            }
        }
    });
    post(sqlite_create_in_group).with_state(creates)
}

/// Inserts all pets in one transaction and returns their ids.
fn insert_all(writes: &mut Connection, group: &[Create]) -> rusqlite::Result<Vec<i64>> {
    let transaction = writes.transaction()?;
    let mut insert = transaction.prepare_cached(INSERT)?;
    let ids = group.iter().map(|(new, _)| insert.insert(params![new.name, new.category_id, new.status]));
    let ids = ids.collect::<rusqlite::Result<_>>()?;
    drop(insert);
    transaction.commit()?;
    Ok(ids)
}

async fn sqlite_create_in_group(
    State(creates): State<mpsc::Sender<Create>>,
    Json(new): Json<NewPet>,
) -> Result<(StatusCode, Json<Pet>), Failure> {
    let (response, written) = oneshot::channel();
    creates.send((new, response)).await.map_err(failure)?;
    let pet = written.await.map_err(failure)??;
    Ok((StatusCode::CREATED, Json(pet)))
}

struct Postgres {
    connections: Vec<Prepared>,
    next: AtomicUsize,
}

struct Prepared {
    client: Client,
    list: Statement,
    list_status: Statement,
    get: Statement,
    create: Statement,
}

async fn postgres(url: &str, pets: usize) -> Router {
    let mut connections = vec![];
    for number in 0..POSTGRES_CONNECTIONS {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("the server is there");
        tokio::spawn(connection);
        if number == 0 {
            let fill = format!(
                "CREATE TABLE pets (id bigint GENERATED BY DEFAULT AS IDENTITY (START {}) PRIMARY KEY,
                                    name text NOT NULL, category_id bigint NOT NULL, status text);
                 INSERT INTO pets
                 SELECT n, 'Rex', 7, (ARRAY['available', 'pending', 'sold'])[n % 3 + 1] FROM generate_series(1, {pets}) n;
                 CREATE INDEX by_status ON pets (status, id);
                 VACUUM ANALYZE pets;",
                pets + 1
            );
            // One by one: VACUUM is not allowed among others.
            for statement in fill.split_inclusive(';') {
                client.batch_execute(statement).await.expect("the table is filled");
            }
        }
        let prepare =
            async |statement: &str| client.prepare(statement).await.expect("the statement is right");
        connections.push(Prepared {
            list: prepare("SELECT * FROM pets WHERE id > $1 ORDER BY id LIMIT $2").await,
            list_status: prepare("SELECT * FROM pets WHERE status = $1 AND id > $2 ORDER BY id LIMIT $3")
                .await,
            get: prepare("SELECT * FROM pets WHERE id = $1").await,
            create: prepare("INSERT INTO pets (name, category_id, status) VALUES ($1, $2, $3) RETURNING id")
                .await,
            client,
        });
    }
    Router::new()
        .route("/v1/pets", get(postgres_list).post(postgres_create))
        .route("/v1/pets/{id}", get(postgres_get))
        .with_state(Arc::new(Postgres { connections, next: AtomicUsize::new(0) }))
}

impl Postgres {
    fn connection(&self) -> &Prepared {
        &self.connections[self.next.fetch_add(1, Ordering::Relaxed) % self.connections.len()]
    }
}

fn postgres_pet(row: &tokio_postgres::Row) -> Pet {
    Pet { id: row.get(0), new: NewPet { name: row.get(1), category_id: row.get(2), status: row.get(3) } }
}

async fn postgres_list(
    State(store): State<Arc<Postgres>>,
    Query(page): Query<Page>,
) -> Result<Json<Vec<Pet>>, Failure> {
    let Prepared { client, list, list_status, .. } = store.connection();
    let rows = match &page.status {
        Some(status) => client.query(list_status, &[status, &page.after, &page.limit]).await,
        None => client.query(list, &[&page.after, &page.limit]).await,
    };
    Ok(Json(rows.map_err(failure)?.iter().map(postgres_pet).collect()))
}

async fn postgres_get(State(store): State<Arc<Postgres>>, Path(id): Path<i64>) -> Result<Json<Pet>, Failure> {
    let Prepared { client, get, .. } = store.connection();
    let row = client.query_opt(get, &[&id]).await.map_err(failure)?;
    row.map(|row| Json(postgres_pet(&row))).ok_or((StatusCode::NOT_FOUND, "no such pet".into()))
}

async fn postgres_create(
    State(store): State<Arc<Postgres>>,
    Json(new): Json<NewPet>,
) -> Result<(StatusCode, Json<Pet>), Failure> {
    let Prepared { client, create, .. } = store.connection();
    let row = client.query_one(create, &[&new.name, &new.category_id, &new.status]).await.map_err(failure)?;
    Ok((StatusCode::CREATED, Json(Pet { id: row.get(0), new })))
}
