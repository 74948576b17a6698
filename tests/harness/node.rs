//! A node inside the test's own process: the real `PetStore` on a log that the test chooses, without HTTP.

use std::{
    future,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use adapters::{
    access::{Authenticator, KeyId, Principal, RejectedKey, Scopes},
    http::{self, AppState, HttpSettings, ListenerSettings},
    read_model::MemoryReadModel,
    system::SystemClock,
};
use application::{
    CreatePet, Limit, ListPets, LogAccess, Options, OwnerId, PetStore, WriteError,
    ports::{EventLog, Fault},
};
use domain::{Pet, test_values::named};

/// Opens a node on this log, which must be sound.
pub async fn open_node(log: Arc<dyn EventLog>, access: LogAccess) -> PetStore {
    let read_model = Box::<MemoryReadModel>::default();
    PetStore::open(log, read_model, Arc::new(SystemClock), Options::new(access))
        .await
        .expect("the log is sound")
}

/// Accepts every key.
struct AnyKey;

impl Authenticator for AnyKey {
    fn authenticate(&self, _: &str) -> Result<Arc<Principal>, RejectedKey> {
        let id = KeyId("1".into());
        let (owner, name, scopes) = (id.as_owner(), "every key".into(), Scopes::READ_WRITE);
        Ok(Arc::new(Principal { owner, id, name, scopes, allowance: None, usage: Arc::default() }))
    }

    fn check(&self, _: &KeyId) -> Result<Scopes, RejectedKey> {
        Ok(Scopes::READ_WRITE)
    }
}

/// Serves a node over HTTP to clients with any key, and returns where it listens.
pub async fn serve_node(store: Arc<PetStore>) -> SocketAddr {
    let listener = http::listen((Ipv4Addr::LOCALHOST, 0).into()).expect("a free port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(http::serve(listener, state_of(store), settings(), Box::pin(future::pending())));
    address
}

fn state_of(store: Arc<PetStore>) -> Arc<AppState> {
    let state = Arc::new(AppState::new(Arc::new(AnyKey), HttpSettings::default()));
    state.open(store);
    state
}

fn settings() -> ListenerSettings {
    ListenerSettings { connections_max: 10_000, connections_per_address: None, drain: Duration::ZERO }
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
