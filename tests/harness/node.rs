//! A node inside the test's own process: the real `PetStore` on a log that the test chooses, without HTTP.

use std::{
    fs, future,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use adapters::{
    access::api_keys::{ApiKeys, KeyFile},
    http::{self, AppState, HttpSettings, ListenerSettings},
    read_model::MemoryReadModel,
    system::SystemClock,
};
use application::{
    CreatePet, Limit, ListPets, LogAccess, Options, OwnerId, PetStore, WriteError,
    ports::{EventLog, Fault},
};
use domain::{Pet, test_values::named};
use tempfile::TempDir;

/// A key file with the key `key`.
const KEYS: &str = r#"
version = 1
[[key]]
id = "2c70e12b7a06"
name = "test"
hash = "2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683"
scopes = ["read", "write"]
created = 2026-01-02T03:04:05Z
"#;

/// Opens a node on this log, which must be sound.
pub async fn open_node(log: Arc<dyn EventLog>, access: LogAccess) -> PetStore {
    let read_model = Box::<MemoryReadModel>::default();
    PetStore::open(log, read_model, Arc::new(SystemClock), Options::new(access))
        .await
        .expect("the log is sound")
}

/// Serves a node over HTTP to clients with the key `key`, and returns where it listens.
pub async fn serve_node(store: Arc<PetStore>) -> SocketAddr {
    let listener = http::listen((Ipv4Addr::LOCALHOST, 0).into()).expect("a free port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(http::serve(listener, state_of(store), Box::pin(future::pending())));
    address
}

fn state_of(store: Arc<PetStore>) -> Arc<AppState> {
    let directory = TempDir::new().expect("a directory");
    let file = directory.path().join("keys.toml");
    fs::write(&file, KEYS).expect("a file");
    let keys = ApiKeys::open(KeyFile::at(file), Arc::new(SystemClock), None).expect("the file is valid");
    let drain = Duration::ZERO;
    let limits = ListenerSettings { drain, ..ListenerSettings::default() };
    let settings = HttpSettings { public: limits, admin: limits, ..HttpSettings::default() };
    let state = Arc::new(AppState::new(keys, settings, None, || 0));
    state.open(store);
    state
}

/// A request for a pet with this name, without a request key.
pub fn pet_named(name: &str) -> CreatePet {
    CreatePet { pet: named(name), by: owner(), request_key: None }
}

/// The owner of the pets of [`pet_named`].
pub fn owner() -> OwnerId {
    OwnerId("owner".into())
}

/// Adds a pet with this name.
pub async fn create(store: &PetStore, name: &str) -> Result<Pet, WriteError> {
    store.create(pet_named(name)).await.map(|created| created.pet)
}

/// Every pet that readers of the node see, page by page.
pub fn all_pets(store: &PetStore) -> Result<Vec<Pet>, Fault> {
    let limit = Limit::new(Limit::MAX).expect("the most is allowed");
    let mut query = ListPets { limit, ..Default::default() };
    let mut pets = Vec::new();
    loop {
        let page = store.list(&query)?;
        pets.extend(page.pets);
        match page.next {
            Some(next) => query.after = Some(next),
            None => return Ok(pets),
        }
    }
}
