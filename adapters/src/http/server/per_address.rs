//! How many connections each client has open.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use parking_lot::Mutex;

use crate::http::client_address::Network;

/// The open connections of every client that has any.
#[derive(Default)]
pub(super) struct PerAddress(Mutex<HashMap<Network, usize>>);

/// One open connection, until it is dropped.
pub(super) struct Counted {
    all: Arc<PerAddress>,
    client: Network,
}

impl PerAddress {
    /// Counts a connection, unless the client has `most` of them.
    pub(super) fn count(self: &Arc<Self>, client: Network, most: usize) -> Option<Counted> {
        let mut open = self.0.lock();
        let count = open.get(&client).copied().unwrap_or_default();
        (count < most).then(|| {
            open.insert(client, count + 1);
            Counted { all: self.clone(), client }
        })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if let Entry::Occupied(mut count) = self.all.0.lock().entry(self.client) {
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

    #[test]
    fn a_client_gets_so_many_connections_and_nothing_is_kept_of_it() {
        let all = Arc::new(PerAddress::default());
        let client = Network::of([9, 9, 9, 9].into());
        let open = [(); 2].map(|()| all.count(client, 2).expect("one of two"));
        assert!(all.count(client, 2).is_none());
        assert!(all.count(Network::of([9, 9, 9, 8].into()), 2).is_some(), "another client");
        drop(open);
        assert!(all.count(client, 2).is_some());
        assert!(all.0.lock().is_empty());
    }
}
