//! Nodes on a shared log, as tests need them.

use std::{future::Future, sync::Arc, time::Duration};

use adapters::event_log::postgres::PostgresLog;
use application::{LogAccess, PetStore};
use harness::open_node;
use tokio::time::{self, Instant};

/// Longer than anything takes on a busy machine.
pub(super) const PATIENCE: Duration = Duration::from_mins(1);
/// How often to look again for something that must happen soon.
const GLANCE: Duration = Duration::from_millis(10);

/// A node on the log at `url`.
pub(super) async fn node(url: &str) -> Arc<PetStore> {
    let log = Arc::new(PostgresLog::open(url).await.unwrap());
    Arc::new(open_node(log, LogAccess::Shared).await)
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
