//! Nodes on a shared log, as tests need them.

use std::{future::Future, sync::Arc, time::Duration};

use adapters::{event_log::postgres::PostgresLog, read_model::MemoryReadModel, system::SystemClock};
use application::{CreateError, CreatePet, KeyId, Limit, ListPets, PetStore, Sharing, ports::Fault};
use domain::{CategoryId, NewPet, Pet, PetName};
use tokio::time::{self, Instant};

/// Longer than anything takes on a busy machine.
pub(super) const PATIENCE: Duration = Duration::from_mins(1);
/// How often to look again for something that must happen soon.
const GLANCE: Duration = Duration::from_millis(10);

/// A node on the log at `url`.
pub(super) async fn node(url: &str) -> Arc<PetStore> {
    let log = Arc::new(PostgresLog::open(url).await.unwrap());
    let read_model = Arc::<MemoryReadModel>::default();
    Arc::new(PetStore::open(log, read_model, Arc::new(SystemClock), Sharing::Shared).await.unwrap())
}

/// Adds a pet with this name.
pub(super) async fn create(store: &PetStore, name: &str) -> Result<Pet, CreateError> {
    let pet = NewPet { name: PetName::new(name).unwrap(), category_id: CategoryId(7), status: None };
    let request = CreatePet { pet, by: KeyId("somebody".into()), request_key: None };
    store.create(request).await.map(|created| created.pet)
}

/// Every pet that readers of the node see.
pub(super) fn pets(store: &PetStore) -> Vec<Pet> {
    try_pets(store).unwrap()
}

/// The same, if they see anything at all.
pub(super) fn try_pets(store: &PetStore) -> Result<Vec<Pet>, Fault> {
    let mut all = Vec::new();
    let mut after = None;
    loop {
        let page = store.list(&ListPets { limit: Limit::new(Limit::MAX).unwrap(), status: None, after })?;
        all.extend(page.pets);
        after = page.next;
        if after.is_none() {
            return Ok(all);
        }
    }
}

/// Tries until it works, and fails with the last error if it never does.
pub(super) async fn eventually<T, E: std::fmt::Debug, F: Future<Output = Result<T, E>>>(
    expectation: &str,
    mut attempt: impl FnMut() -> F,
) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match attempt().await {
            Ok(done) => return done,
            Err(error) => assert!(Instant::now() < deadline, "{expectation} within {PATIENCE:?}: {error:?}"),
        }
        time::sleep(GLANCE).await;
    }
}
