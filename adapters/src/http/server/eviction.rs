//! The open connections of a listener. When its slots or its memory run out, it closes connections of the group that holds
//! most of it: a flood displaces itself. No other client is rejected or gets less time.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap, hash_map::Entry},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use application::OwnerId;
use ipnet::IpNet;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::activity::{Activity, ConnectionState};

/// Maximum memory of the requests on all connections of a listener, in bytes.
pub(in crate::http) const MEMORY_MAX: usize = 64 * 1024 * 1024;

/// The memory that an eviction frees. An eviction compares all connections, and so must be rare.
pub(super) const MEMORY_FREED: usize = MEMORY_MAX / 8;
/// An eviction frees 1/64 of the slots, of the listener or of an address.
const SLOTS_FREED: usize = 64;

/// Unproven connections are closed first while they hold more than 1/4, unless one owner holds more than 1/2.
const UNPROVEN_PART: usize = 4;
const OWNER_PART: usize = 2;

/// The clients that share a part of a listener.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) enum Group {
    /// The unproven connections of a client address.
    Address(IpNet),
    /// The proven connections of an owner of API keys.
    Owner(OwnerId),
}

/// The open connections of a listener.
pub(in crate::http) struct OpenConnections {
    /// The name of the listener in the metrics.
    pub(in crate::http) name: &'static str,
    /// Maximum number of open connections.
    pub(in crate::http) limit: usize,
    /// The memory of all connections, in bytes.
    pub(in crate::http) held: AtomicUsize,
    /// The memory of evicted connections, which is free when their tasks have ended.
    pub(super) evicted_held: AtomicUsize,
    pub(in crate::http) evicted: AtomicU64,
    pub(super) accepted: AtomicU64,
    /// One permit, for connections with much overhead.
    pub(super) overhead_permit: Arc<Semaphore>,
    connections: Mutex<Connections>,
}

#[derive(Default)]
struct Connections {
    /// By address and id.
    by_key: BTreeMap<(IpNet, u64), Arc<Activity>>,
    /// How many each address has.
    per_address: HashMap<IpNet, usize>,
}

impl Connections {
    fn insert(&mut self, connection: Arc<Activity>) {
        *self.per_address.entry(connection.key.0).or_default() += 1;
        self.by_key.insert(connection.key, connection);
    }

    fn remove(&mut self, key: (IpNet, u64)) {
        if self.by_key.remove(&key).is_some()
            && let Entry::Occupied(mut count) = self.per_address.entry(key.0)
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

impl OpenConnections {
    pub(super) fn new(name: &'static str, limit: usize) -> Self {
        Self {
            name,
            limit,
            held: AtomicUsize::default(),
            evicted_held: AtomicUsize::default(),
            evicted: AtomicU64::default(),
            accepted: AtomicU64::default(),
            overhead_permit: Arc::new(Semaphore::new(1)),
            connections: Mutex::default(),
        }
    }

    pub(in crate::http) fn open(&self) -> usize {
        self.connections.lock().by_key.len()
    }

    /// Adds a connection. Evicts others if all slots, or all slots of its address, are taken.
    pub(super) fn insert(&self, connection: Arc<Activity>, address_limit: Option<usize>) {
        let mut open = self.connections.lock();
        let kept = |limit| limit - limit / SLOTS_FREED - 1;
        let address = connection.key.0;
        if let Some(limit) = address_limit
            && open.per_address.get(&address).is_some_and(|count| *count >= limit)
        {
            let same_address = open.by_key.range((address, 0)..=(address, u64::MAX));
            let same_address: Vec<_> = same_address.map(|(_, other)| other.clone()).collect();
            self.evict(&mut open, &same_address, |_| 1, limit, kept(limit));
        }
        if open.by_key.len() >= self.limit {
            let all: Vec<_> = open.by_key.values().cloned().collect();
            self.evict(&mut open, &all, |_| 1, self.limit, kept(self.limit));
        }
        open.insert(connection);
    }

    pub(super) fn remove(&self, connection: &Activity) {
        self.connections.lock().remove(connection.key);
    }

    /// Gives unproven connections little time to end.
    pub(super) fn drain(&self) {
        self.connections.lock().by_key.values().for_each(|connection| connection.drain());
    }

    /// Evicts connections if more than the maximum memory is in use.
    pub(super) fn free_memory(&self) {
        let mut open = self.connections.lock();
        // Another thread may have done it.
        if self.held.load(Relaxed) > MEMORY_MAX {
            let all: Vec<_> = open.by_key.values().cloned().collect();
            self.evict(&mut open, &all, |state| state.held, MEMORY_MAX, MEMORY_MAX - MEMORY_FREED);
        }
    }

    /// Closes connections until the others hold at most `kept` of `limit`. Their slots and memory are free at once.
    ///
    /// Takes them from the group that holds most: the connection that holds most, or for slots, where all hold the same,
    /// the first one in the eviction order.
    fn evict(
        &self,
        open: &mut Connections,
        candidates: &[Arc<Activity>],
        amount: fn(&ConnectionState) -> usize,
        limit: usize,
        kept: usize,
    ) {
        let mut groups = HashMap::<_, (usize, Vec<_>)>::new();
        let mut held = [0; 2];
        for connection in candidates {
            let state = connection.state.lock();
            let (group, amount) = (state.group(connection.key.0), amount(&state));
            let is_proven = matches!(group, Group::Owner(_));
            let order = (Reverse(amount), state.eviction_order(connection.accepted));
            held[usize::from(is_proven)] += amount;
            let (total, members) = groups.entry((is_proven, group)).or_default();
            *total += amount;
            members.push((order, connection));
        }
        let mut groups: Vec<_> = groups.into_iter().collect();
        for (_, (_, members)) in &mut groups {
            members.sort_unstable_by_key(|(order, _)| Reverse(*order));
        }
        while held.iter().sum::<usize>() > kept {
            let proven = groups.iter().filter(|((is_proven, _), _)| *is_proven).map(|(_, (total, _))| *total);
            let takes_proven = held[0] <= limit / UNPROVEN_PART || proven.max() > Some(limit / OWNER_PART);
            let candidates = groups.iter_mut().filter(|((is_proven, _), _)| *is_proven == takes_proven);
            // Of groups that hold the same, the one whose connection comes first.
            let order = |members: &[(_, _)]| Reverse(members.last().map(|(order, _)| *order));
            let group = candidates.max_by_key(|(_, (total, members))| (*total, order(members)));
            let Some((_, (total, members))) = group else { return };
            let Some(((Reverse(amount), _), connection)) = members.pop() else { return };
            *total -= amount;
            held[usize::from(takes_proven)] -= amount;
            open.remove(connection.key);
            connection.evict();
            self.evicted.fetch_add(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
