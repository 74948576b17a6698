//! Nodes on a shared PostgreSQL log.

use std::{future::Future, sync::Arc, time::Duration};

use adapters::event_log::postgres::PostgresLog;
use application::{LogAccess, PetStore, ports::Fault};
use harness::open_node;
use tokio::time::{self, Instant};

/// Longer than anything takes on a busy machine.
pub(super) const TIMEOUT: Duration = Duration::from_mins(1);
/// How often an attempt is repeated.
const INTERVAL: Duration = Duration::from_millis(10);

/// A node on the log at `url`.
pub(super) async fn node(url: &str) -> Arc<PetStore> {
    let log = Arc::new(PostgresLog::open(url).await.unwrap());
    Arc::new(open_node(log, LogAccess::Shared).await)
}

/// Repeats `attempt` until it succeeds; fails with its last error.
pub(super) async fn eventually<T, E: std::fmt::Debug, F: Future<Output = Result<T, E>>>(
    expectation: &str,
    mut attempt: impl FnMut() -> F,
) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match attempt().await {
            Ok(done) => return done,
            Err(error) => assert!(Instant::now() < deadline, "{expectation} within {TIMEOUT:?}: {error:?}"),
        }
        time::sleep(INTERVAL).await;
    }
}

/// Waits until the node rejects its log.
pub(super) async fn is_rejected(store: &PetStore) {
    eventually("the log is rejected", async || {
        let reason = store.health().not_ready_for_reads().map(|error| error.fault);
        if reason == Some(Fault::AnotherLog) { Ok(()) } else { Err(reason) }
    })
    .await;
}
