//! Event sourcing in one file: the three operations of the API, with a key, on a log of JSON lines. `docs/event-sourcing.md`
//! lists what it does not do. `cargo run -p bin --example one_file [LOG [PORT]]`: by default `pets.log` and 8080. The key is
//! `secret`.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::{self, BufRead as _, BufReader, Write as _},
    sync::{Arc, Mutex},
};

use axum::{
    Json, Router,
    extract::{Path, Query, Request, State, rejection::JsonRejection},
    http::{StatusCode, header::AUTHORIZATION},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Available,
    Pending,
    Sold,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NewPet {
    name: String,
    category_id: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Pet {
    id: i64,
    #[serde(flatten)]
    details: NewPet,
}

/// What happened. Events are only ever appended to the log, and everything else follows from them.
#[derive(Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Event {
    PetAdded { pet: Pet },
}

/// The log, and the state that follows from its events.
struct Store {
    log: File,
    pets: BTreeMap<i64, Pet>,
}

impl Store {
    /// Replays the log.
    fn open(path: &str) -> io::Result<Self> {
        let log = OpenOptions::new().create(true).read(true).append(true).open(path)?;
        let mut store = Self { log: log.try_clone()?, pets: BTreeMap::new() };
        for line in BufReader::new(log).lines() {
            store.apply(serde_json::from_str(&line?)?);
        }
        Ok(store)
    }

    /// Decides, appends, syncs, and only then applies. After an error, the log may end with half a line.
    fn add(&mut self, details: NewPet) -> Result<Pet, Error> {
        let event = self.decide(details)?;
        let line = serde_json::to_string(&event).expect("an event is JSON") + "\n";
        let stored = self.log.write_all(line.as_bytes()).and_then(|()| self.log.sync_data());
        stored.map_err(|error| Error(500, "internal", error.to_string()))?;
        Ok(self.apply(event))
    }

    /// Decides which event a request causes. Changes nothing.
    fn decide(&self, details: NewPet) -> Result<Event, Error> {
        if details.name.trim().is_empty() || details.name.chars().count() > 200 {
            return Err(Error(400, "invalid_request", "name: 1 to 200 characters".into()));
        }
        let id = self.pets.last_key_value().map_or(1, |(last, _)| last + 1);
        Ok(Event::PetAdded { pet: Pet { id, details } })
    }

    /// Applies an event, new or replayed.
    fn apply(&mut self, event: Event) -> Pet {
        let Event::PetAdded { pet } = event;
        self.pets.insert(pet.id, pet.clone());
        pet
    }
}

type Shared = State<Arc<Mutex<Store>>>;

#[derive(Deserialize)]
struct ListQuery {
    limit: Option<usize>,
    status: Option<Status>,
}

async fn list(State(store): Shared, Query(query): Query<ListQuery>) -> Json<Vec<Pet>> {
    let store = store.lock().expect("no request panics");
    let matches = |pet: &&Pet| query.status.is_none() || pet.details.status == query.status;
    Json(store.pets.values().filter(matches).take(query.limit.unwrap_or(20).clamp(1, 100)).cloned().collect())
}

async fn create(State(store): Shared, pet: Result<Json<NewPet>, JsonRejection>) -> Result<Response, Error> {
    let Json(pet) = pet.map_err(|error| Error(400, "invalid_request", error.body_text()))?;
    let pet = store.lock().expect("no request panics").add(pet)?;
    Ok((StatusCode::CREATED, Json(pet)).into_response())
}

async fn get_pet(State(store): Shared, Path(id): Path<i64>) -> Result<Json<Pet>, Error> {
    let pet = store.lock().expect("no request panics").pets.get(&id).cloned();
    pet.map(Json).ok_or(Error(404, "not_found", format!("there is no pet {id}")))
}

async fn authenticate(request: Request, next: Next) -> Result<Response, Error> {
    if request.headers().get(AUTHORIZATION).is_none_or(|key| key != "Bearer secret") {
        return Err(Error(401, "unauthorized", "missing or invalid API key".into()));
    }
    Ok(next.run(request).await)
}

/// Status, code and message.
struct Error(u16, &'static str, String);

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let body = serde_json::json!({ "code": self.1, "message": self.2, "status": self.0 });
        (StatusCode::from_u16(self.0).expect("a status"), Json(body)).into_response()
    }
}

#[tokio::main]
async fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let store = Store::open(&arguments.next().unwrap_or("pets.log".into()))?;
    let port = arguments.next().map_or(Ok(8080), |port| port.parse()).map_err(io::Error::other)?;
    let routes = Router::new()
        .route("/v1/pets", get(list).post(create))
        .route("/v1/pets/{id}", get(get_pet))
        .layer(middleware::from_fn(authenticate))
        .with_state(Arc::new(Mutex::new(store)));
    axum::serve(tokio::net::TcpListener::bind(("127.0.0.1", port)).await?, routes).await
}
