//! Which connections are evicted.

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use axum::http::Request;
use proptest::prelude::*;
use tokio::time::advance;

use super::*;
use crate::http::{
    ListenerSettings,
    server::{
        activity::{Activity, InFlightRequest, Listener},
        tests::listener,
    },
    settings::MEMORY_MAX,
};

struct TestListener {
    listener: Arc<Listener>,
    open: Vec<Connection>,
}

struct Connection {
    activity: Arc<Activity>,
    request: Option<Arc<InFlightRequest>>,
}

impl TestListener {
    /// The address 192.0.2.255 is a trusted proxy.
    fn new(connections_max: usize, connections_per_address: Option<usize>) -> Self {
        let limits =
            ListenerSettings { connections_max, connections_per_address, ..ListenerSettings::default() };
        Self { listener: listener(limits, &["192.0.2.255".parse().unwrap()]), open: vec![] }
    }

    /// Opens a connection with a request in flight.
    fn connect(&mut self, address: u8, owner: Option<u8>) -> &Connection {
        let address = IpAddr::V4(Ipv4Addr::new(192, 0, 2, address));
        let activity = self.listener.connect(address);
        let request = activity.begin_request(&Request::new(()));
        if let Some(owner) = owner {
            request.prove(&OwnerId(owner.to_string().into()));
        }
        self.open.push(Connection { activity, request: Some(request) });
        self.open.last().unwrap()
    }

    /// The indexes of the evicted connections.
    fn evicted(&self) -> Vec<usize> {
        let is_evicted = |index: &usize| self.open[*index].activity.is_evicted();
        (0..self.open.len()).filter(is_evicted).collect()
    }
}

#[test]
fn the_first_unproven_connection_of_the_address_with_most_is_evicted() {
    let mut listener = TestListener::new(8, None);
    for (address, owner) in
        [(1, Some(1)), (1, Some(1)), (2, None), (3, None), (3, None), (1, None), (1, Some(1)), (1, Some(1))]
    {
        listener.connect(address, owner);
    }
    assert!(listener.evicted().is_empty());
    listener.connect(4, None);
    assert_eq!(listener.evicted(), [3], "the first one of address 3");
    assert_eq!(listener.listener.open(), 8, "its slot is free at once");
}

#[test]
fn a_quarter_of_the_slots_is_left_to_unproven_connections() {
    let mut listener = TestListener::new(8, None);
    for owner in [1, 1, 1, 2, 2, 3] {
        listener.connect(owner, Some(owner));
    }
    for _ in 0..3 {
        listener.connect(9, None);
    }
    assert_eq!(listener.evicted(), [0], "a connection of the owner with most");
    listener.connect(9, None);
    assert_eq!(listener.evicted(), [0, 6], "now unproven ones hold more than a quarter");
}

#[test]
fn an_owner_with_more_than_half_of_the_slots_is_evicted_first() {
    let mut listener = TestListener::new(8, None);
    for _ in 0..5 {
        listener.connect(1, Some(1));
    }
    for address in 2..5 {
        listener.connect(address, None);
    }
    listener.connect(5, None);
    assert_eq!(listener.evicted(), [0]);
    listener.connect(6, None);
    assert_eq!(listener.evicted(), [0, 5], "the owner has half of the slots");
}

#[tokio::test(start_paused = true)]
async fn the_proven_connection_that_has_waited_longest_for_its_client_is_evicted() {
    let mut listener = TestListener::new(3, None);
    for _ in 0..3 {
        listener.connect(1, Some(1));
    }
    for idle in [2, 1] {
        advance(Duration::from_secs(1)).await;
        listener.open[idle].request = None;
    }
    for expected in [&[2][..], &[1, 2]] {
        listener.connect(2, Some(2));
        assert_eq!(listener.evicted(), expected, "not the one that waits for the service");
    }
}

#[test]
fn the_limit_of_an_address_evicts_a_connection_of_that_address() {
    let mut listener = TestListener::new(100, Some(3));
    for address in [1, 2, 2, 2, 1] {
        listener.connect(address, None);
    }
    listener.connect(2, None);
    assert_eq!(listener.evicted(), [1]);
    for _ in 0..5 {
        listener.connect(255, None);
    }
    assert_eq!(listener.evicted(), [1], "trusted proxies have no limit");
}

#[test]
fn a_part_of_the_slots_of_an_address_is_freed_at_once() {
    let mut listener = TestListener::new(1_000, Some(128));
    for _ in 0..128 {
        listener.connect(1, None);
    }
    listener.connect(2, None);
    assert!(listener.evicted().is_empty());
    for _ in 0..3 {
        listener.connect(1, None);
        assert_eq!(listener.evicted(), [0, 1, 2]);
    }
    listener.connect(1, None);
    assert_eq!(listener.evicted(), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn an_evicted_connection_holds_no_memory_and_no_slot() {
    let mut listener = TestListener::new(1, None);
    listener.connect(1, Some(1));
    listener.connect(2, Some(2));
    let one_request = listener.open[1].activity.held();
    let evicted = &listener.open[0];
    evicted.activity.received(1_000);
    evicted.request.as_ref().unwrap().body_received(500);
    evicted.activity.end();
    assert_eq!((listener.listener.held.load(Relaxed), listener.listener.open()), (one_request, 1));
}

proptest! {
    /// A client loses a connection only if no other group of its class holds more than its own.
    #[test]
    fn memory_is_taken_from_the_group_that_holds_most(
        bodies in proptest::collection::vec((1..5_u8, any::<bool>(), 1..8_usize), 1..40),
    ) {
        let mut listener = TestListener::new(1_000, None);
        for (group, is_proven, mebibytes) in bodies {
            let before = listener.evicted();
            let connection = listener.connect(group, is_proven.then_some(group));
            connection.request.as_ref().unwrap().body_received(mebibytes * 1024 * 1024);
            // The state in which the eviction was decided.
            let open = listener.open.iter().enumerate().filter(|(index, _)| !before.contains(index));
            let open: Vec<_> = open.map(|(index, Connection { activity, .. })| {
                (index, activity.group(), activity.held())
            }).collect();
            let total = |of: &dyn Fn(&Group) -> bool| {
                open.iter().filter(|(_, group, _)| of(group)).map(|(.., held)| held).sum::<usize>()
            };
            let is_proven = |group: &Group| matches!(group, Group::Owner(_));
            let evicted = listener.evicted();
            let first = open.iter().filter(|(index, ..)| evicted.contains(index)).max_by_key(|(_, group, held)| {
                (total(&|other| other == group), *held)
            });
            prop_assert!(listener.listener.held.load(Relaxed) <= MEMORY_MAX);
            prop_assert_eq!(first.is_some(), total(&|_| true) > MEMORY_MAX);
            if let Some((_, group, held)) = first {
                let owners = open.iter().filter(|(_, group, _)| is_proven(group));
                let most = owners.map(|(_, owner, _)| total(&|group| group == owner)).max();
                let takes_proven = total(&|group| !is_proven(group)) <= MEMORY_MAX / UNPROVEN_PART
                    || most > Some(MEMORY_MAX / OWNER_PART);
                prop_assert!(evicted.len() > before.len() + 1 || is_proven(group) == takes_proven);
                for (_, other, other_held) in open.iter().filter(|(_, other, _)| is_proven(other) == is_proven(group)) {
                    prop_assert!(total(&|group| group == other) <= total(&|other| other == group));
                    prop_assert!(other != group || other_held <= held);
                }
            }
        }
    }
}
