//! Connections on which nobody has shown a valid key yet. When there is no room for another connection, the oldest of
//! them that has nothing in flight makes room: idle strangers keep no caller out.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::timeouts::Activity;

/// All strangers of a listener, oldest first.
#[derive(Default)]
pub(super) struct Strangers(Mutex<Entries>);

#[derive(Default)]
struct Entries {
    next: u64,
    by_age: BTreeMap<u64, Entry>,
}

struct Entry {
    activity: Arc<Activity>,
    leave: Arc<Notify>,
}

/// The connection that this belongs to is a stranger until this is dropped or told otherwise.
pub(super) struct Stranger {
    strangers: Arc<Strangers>,
    number: u64,
    leave: Arc<Notify>,
    known: AtomicBool,
}

impl Strangers {
    /// A new connection.
    pub(super) fn add(self: &Arc<Self>, activity: &Arc<Activity>) -> Stranger {
        let leave = Arc::new(Notify::new());
        let mut entries = self.0.lock();
        let number = entries.next;
        entries.next += 1;
        entries.by_age.insert(number, Entry { activity: activity.clone(), leave: leave.clone() });
        Stranger { strangers: self.clone(), number, leave, known: AtomicBool::new(false) }
    }

    /// Tells the oldest idle stranger to leave; `false` if there is none.
    pub(super) fn send_one_away(&self) -> bool {
        let mut entries = self.0.lock();
        let oldest = entries.by_age.iter().find(|(_, entry)| entry.activity.is_idle());
        let Some(number) = oldest.map(|(number, _)| *number) else { return false };
        // It is told once: the next call finds another one.
        entries.by_age.remove(&number).is_some_and(|entry| {
            entry.leave.notify_one();
            true
        })
    }
}

impl Stranger {
    /// Whether somebody has shown a valid key on this connection.
    pub(super) fn is_known(&self) -> bool {
        self.known.load(Relaxed)
    }

    /// Somebody has.
    pub(super) fn has_shown_a_key(&self) {
        if !self.known.swap(true, Relaxed) {
            self.strangers.0.lock().by_age.remove(&self.number);
        }
    }

    /// Returns when the connection has to make room.
    pub(super) async fn told_to_leave(&self) {
        self.leave.notified().await;
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.has_shown_a_key();
    }
}
