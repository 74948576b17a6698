//! The peers, written as one would write them well in an afternoon: no API keys, no metrics, no limits, no log.

use std::{
    fmt,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{
    Json, Router,
    extract::{Path, Query, State},
    http::StatusCode,
    routing::get,
};
use rusqlite::{Connection, OptionalExtension as _, Row, params};
use serde::{Deserialize, Serialize};
use tokio::{net::TcpListener, task};
use tokio_postgres::{Client, NoTls, Statement};

/// Enough for PostgreSQL to write several commits with one sync; each of them pipelines its statements.
const POSTGRES_CONNECTIONS: usize = 16;

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

type Rejected = (StatusCode, String);

fn rejected(error: impl fmt::Display) -> Rejected {
    (StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

/// Serves until it is killed, after it has printed its address.
pub(crate) fn serve(peer: &str, pets: usize, store: &str) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let router = match peer {
            "ceiling" => ceiling(),
            "rusqlite" => sqlite(store, pets),
            "postgres" => postgres(store, pets).await,
            _ => panic!("no peer is called {peer}"),
        };
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.expect("a free port");
        println!("{}", listener.local_addr().expect("an address"));
        axum::serve(listener, router).await.expect("it serves until it is killed");
    });
}

/// The plainest axum there is: one route, one constant page.
fn ceiling() -> Router {
    let pet =
        |id| Pet { id, new: NewPet { name: "Rex".into(), category_id: 7, status: Some("available".into()) } };
    let pets: Vec<Pet> = (1..=20).map(pet).collect();
    let page: &'static str = serde_json::to_string(&pets).expect("pets are JSON").leak();
    Router::new()
        .route("/v1/pets", get(move || async move { ([("content-type", "application/json")], page) }))
}

/// One connection for each kind, as SQLite has one writer.
struct Sqlite {
    reads: Mutex<Connection>,
    writes: Mutex<Connection>,
}

fn sqlite(file: &str, pets: usize) -> Router {
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
    let store = Arc::new(Sqlite { reads: Mutex::new(open()), writes: Mutex::new(writes) });
    Router::new()
        .route("/v1/pets", get(sqlite_list).post(sqlite_create))
        .route("/v1/pets/{id}", get(sqlite_get))
        .with_state(store)
}

fn sqlite_pet(row: &Row<'_>) -> rusqlite::Result<Pet> {
    let new = NewPet { name: row.get(1)?, category_id: row.get(2)?, status: row.get(3)? };
    Ok(Pet { id: row.get(0)?, new })
}

// Reads are served from the page cache within microseconds: handing them to another thread would cost more.
async fn sqlite_list(
    State(store): State<Arc<Sqlite>>,
    Query(page): Query<Page>,
) -> Result<Json<Vec<Pet>>, Rejected> {
    let reads = store.reads.lock().map_err(rejected)?;
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
    pets.map(Json).map_err(rejected)
}

async fn sqlite_get(State(store): State<Arc<Sqlite>>, Path(id): Path<i64>) -> Result<Json<Pet>, Rejected> {
    let reads = store.reads.lock().map_err(rejected)?;
    let pet = reads
        .prepare_cached("SELECT * FROM pets WHERE id = ?1")
        .and_then(|mut query| query.query_row([id], sqlite_pet).optional());
    pet.map_err(rejected)?.map(Json).ok_or((StatusCode::NOT_FOUND, "no such pet".into()))
}

async fn sqlite_create(
    State(store): State<Arc<Sqlite>>,
    Json(new): Json<NewPet>,
) -> Result<(StatusCode, Json<Pet>), Rejected> {
    let insert = move || {
        let writes = store.writes.lock().map_err(rejected)?;
        let id = writes
            .prepare_cached("INSERT INTO pets (name, category_id, status) VALUES (?1, ?2, ?3)")
            .and_then(|mut insert| insert.insert(params![new.name, new.category_id, new.status]))
            .map_err(rejected)?;
        Ok((StatusCode::CREATED, Json(Pet { id, new })))
    };
    task::spawn_blocking(insert).await.map_err(rejected)?
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
) -> Result<Json<Vec<Pet>>, Rejected> {
    let Prepared { client, list, list_status, .. } = store.connection();
    let rows = match &page.status {
        Some(status) => client.query(list_status, &[status, &page.after, &page.limit]).await,
        None => client.query(list, &[&page.after, &page.limit]).await,
    };
    Ok(Json(rows.map_err(rejected)?.iter().map(postgres_pet).collect()))
}

async fn postgres_get(
    State(store): State<Arc<Postgres>>,
    Path(id): Path<i64>,
) -> Result<Json<Pet>, Rejected> {
    let Prepared { client, get, .. } = store.connection();
    let row = client.query_opt(get, &[&id]).await.map_err(rejected)?;
    row.map(|row| Json(postgres_pet(&row))).ok_or((StatusCode::NOT_FOUND, "no such pet".into()))
}

async fn postgres_create(
    State(store): State<Arc<Postgres>>,
    Json(new): Json<NewPet>,
) -> Result<(StatusCode, Json<Pet>), Rejected> {
    let Prepared { client, create, .. } = store.connection();
    let row =
        client.query_one(create, &[&new.name, &new.category_id, &new.status]).await.map_err(rejected)?;
    Ok((StatusCode::CREATED, Json(Pet { id: row.get(0), new })))
}
