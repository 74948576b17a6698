//! Nodes on a shared PostgreSQL log.

use std::{sync::Arc, time::Duration};

use adapters::event_log::postgres::PostgresLog;
use application::{LogAccess, PetStore, ports::Fault};
pub(super) use harness::eventually_ok as eventually;
use harness::open_node;

/// Longer than anything takes on a busy machine.
pub(super) const TIMEOUT: Duration = Duration::from_mins(1);

/// A node on the log at `url`.
pub(super) async fn node(url: &str) -> Arc<PetStore> {
    let log = Arc::new(PostgresLog::open(url).await.unwrap());
    Arc::new(open_node(log, LogAccess::Shared).await)
}

/// Waits until the node rejects its log.
pub(super) async fn is_rejected(store: &PetStore) {
    eventually("the log is rejected", async || {
        let reason = store.health().not_ready_for_reads().map(|error| error.fault);
        if reason == Some(Fault::AnotherLog) { Ok(()) } else { Err(reason) }
    })
    .await;
}
