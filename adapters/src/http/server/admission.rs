//! Which connections a listener admits: up to a limit in total and per client address. At the limit, the oldest
//! unauthenticated connection is evicted that is idle, or whose requests take longer than a second: clients without a key
//! cannot exhaust slots or file descriptors.

use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use ipnet::IpNet;
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time,
};

use super::{Settings, timeouts::Activity};

/// How long to wait for the slot of an evicted connection, which closes at once.
const EVICTION_TIMEOUT: Duration = Duration::from_millis(100);

/// The open connections of a listener.
pub(in crate::http) struct Admission {
    /// The name of the listener in the metrics.
    pub(in crate::http) name: &'static str,
    /// Maximum number of open connections.
    pub(in crate::http) limit: usize,
    /// Connections rejected because all slots were taken.
    pub(in crate::http) rejected_full: AtomicU64,
    /// Connections rejected because their client had too many.
    pub(in crate::http) rejected_address: AtomicU64,
    per_client_max: usize,
    slots: Arc<Semaphore>,
    open: Mutex<OpenConnections>,
}

#[derive(Default)]
struct OpenConnections {
    per_client: HashMap<IpNet, usize>,
    /// Connections without a valid API key so far, oldest first.
    unauthenticated: BTreeMap<u64, Arc<Activity>>,
    next_id: u64,
}

/// An admitted connection. Dropping it frees its slot.
pub(super) struct Slot {
    pub(super) activity: Arc<Activity>,
    admission: Arc<Admission>,
    id: u64,
    /// `None` for a trusted proxy, which shares the connection among clients.
    pub(super) client: Option<IpNet>,
    is_authenticated: AtomicBool,
    _permit: OwnedSemaphorePermit,
}

impl Admission {
    pub(super) fn new(name: &'static str, settings: &Settings) -> Self {
        Self {
            name,
            limit: settings.connections_max,
            rejected_full: AtomicU64::new(0),
            rejected_address: AtomicU64::new(0),
            per_client_max: settings.connections_per_address.unwrap_or(usize::MAX),
            slots: Arc::new(Semaphore::new(settings.connections_max)),
            open: Mutex::default(),
        }
    }

    pub(in crate::http) fn open(&self) -> usize {
        self.limit - self.slots.available_permits()
    }

    /// Admits a connection, or returns the reason for rejecting it. `client` is `None` for trusted proxies, which have
    /// no limit per address.
    pub(super) async fn admit(
        self: &Arc<Self>,
        client: Option<IpNet>,
        activity: Arc<Activity>,
    ) -> Result<Slot, &'static str> {
        let connections_of = |client| self.open.lock().per_client.get(&client).copied().unwrap_or_default();
        if client.is_some_and(|client| connections_of(client) >= self.per_client_max) {
            self.rejected_address.fetch_add(1, Relaxed);
            return Err("too many connections are open from this address");
        }
        let mut permit = self.slots.clone().try_acquire_owned().ok();
        if permit.is_none() && self.evict_oldest_unused() {
            let freed = time::timeout(EVICTION_TIMEOUT, self.slots.clone().acquire_owned()).await;
            permit = freed.ok().and_then(Result::ok);
        }
        let Some(permit) = permit else {
            self.rejected_full.fetch_add(1, Relaxed);
            return Err("too many connections are open");
        };
        let mut open = self.open.lock();
        if let Some(client) = client {
            *open.per_client.entry(client).or_default() += 1;
        }
        let id = open.next_id;
        open.next_id += 1;
        open.unauthenticated.insert(id, activity.clone());
        let (admission, is_authenticated) = (self.clone(), AtomicBool::new(false));
        Ok(Slot { activity, admission, id, client, is_authenticated, _permit: permit })
    }

    /// Evicts the oldest unauthenticated connection without a recent request; `false` if there is none.
    fn evict_oldest_unused(&self) -> bool {
        let unauthenticated = &mut self.open.lock().unauthenticated;
        let evicted = unauthenticated.iter().find(|(_, activity)| activity.evict_if_unused());
        let evicted = evicted.map(|(id, _)| *id);
        evicted.is_some_and(|id| unauthenticated.remove(&id).is_some())
    }
}

impl Slot {
    /// Protects the connection from eviction.
    pub(super) fn mark_authenticated(&self) {
        if !self.is_authenticated.swap(true, Relaxed) {
            self.admission.open.lock().unauthenticated.remove(&self.id);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut open = self.admission.open.lock();
        open.unauthenticated.remove(&self.id);
        if let Some(client) = self.client
            && let Entry::Occupied(mut count) = open.per_client.entry(client)
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::middleware::client_address;

    #[tokio::test]
    async fn a_client_gets_its_limit_of_connections_and_no_entry_remains() {
        let settings = Settings { connections_per_address: Some(2), ..Settings::default() };
        let admission = Arc::new(Admission::new("test", &settings));
        let admit = async |last| {
            let address = [9, 9, 9, last].into();
            let activity = Activity::new(address, Arc::default());
            admission.admit(Some(client_address::network(address)), activity).await
        };
        let open = (admit(9).await.ok().unwrap(), admit(9).await.ok().unwrap());
        assert!(admit(9).await.is_err());
        assert!(admit(8).await.is_ok(), "another client");
        drop(open);
        assert!(admit(9).await.is_ok());
        assert!(admission.open.lock().per_client.is_empty());
    }
}
