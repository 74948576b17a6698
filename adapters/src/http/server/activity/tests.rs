//! The deadlines of a connection, and its group.

use std::{future, net::Ipv4Addr};

use futures_util::FutureExt as _;
use proptest::prelude::*;

use super::*;
use crate::http::server::tests::{connection, listener};

fn connect() -> Arc<Activity> {
    connection(&listener(ListenerSettings::default(), &[]))
}

impl Activity {
    fn request(self: &Arc<Self>, version: Version) -> Arc<InFlightRequest> {
        let mut request = Request::new(());
        *request.version_mut() = version;
        self.begin_request(&request)
    }

    /// The seconds until its deadline.
    fn seconds_left(&self) -> Option<u64> {
        let deadline = self.state.lock().deadline(self);
        deadline.map(|deadline| (deadline - Instant::now()).as_secs())
    }

    pub(in crate::http::server) fn group(&self) -> Group {
        self.state.lock().group(self.key.0)
    }

    pub(in crate::http::server) fn held(&self) -> usize {
        self.state.lock().held
    }

    pub(in crate::http::server) fn is_evicted(&self) -> bool {
        self.state.lock().is_evicted
    }
}

fn chunk(kib: usize, request: &Arc<InFlightRequest>) -> Bytes {
    count_chunk(Bytes::from(vec![0; kib * 1024]), request.clone())
}

async fn pass(seconds: u64) {
    time::advance(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn the_first_head_must_arrive_in_time_after_the_accept_or_its_first_byte() {
    let connection = connect();
    pass(9).await;
    assert_eq!(connection.seconds_left(), Some(1));
    connection.received(0);
    assert_eq!(connection.seconds_left(), Some(1), "no byte");
    connection.received(1);
    assert_eq!(connection.seconds_left(), Some(10));
    pass(4).await;
    connection.received(1);
    assert_eq!(connection.seconds_left(), Some(6), "only the first byte counts");
}

#[tokio::test(start_paused = true)]
async fn a_connection_idles_after_its_last_response_until_the_next_byte() {
    for version in [Version::HTTP_10, Version::HTTP_11] {
        let connection = connect();
        connection.received(100);
        let request = connection.request(version);
        assert_eq!(connection.seconds_left(), None, "the client waits for the service");
        drop(request);
        assert_eq!(connection.seconds_left(), Some(75));
        pass(50).await;
        connection.received(1);
        assert_eq!(connection.seconds_left(), Some(10));
    }
}

#[tokio::test(start_paused = true)]
async fn a_head_that_arrives_early_must_be_complete_in_time_after_the_response() {
    let connection = connect();
    let request = connection.request(Version::HTTP_11);
    connection.received(5);
    pass(20).await;
    drop(request);
    assert_eq!(connection.seconds_left(), Some(10));
}

#[tokio::test(start_paused = true)]
async fn the_bytes_of_a_body_are_no_head() {
    let connection = connect();
    let request = connection.request(Version::HTTP_11);
    connection.received(9);
    request.body_received(4);
    request.body_ended(4);
    drop(request);
    assert_eq!(connection.seconds_left(), Some(75));
}

#[tokio::test(start_paused = true)]
async fn frames_on_an_http2_connection_do_not_end_its_idle_time() {
    let connection = connect();
    connection.received(24);
    assert_eq!(connection.seconds_left(), Some(10), "the first head");
    drop(connection.request(Version::HTTP_2));
    pass(5).await;
    connection.received(17);
    assert_eq!(connection.seconds_left(), Some(70));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_much_more_than_its_requests_is_disconnected() {
    let ends = |connection: &Activity| connection.supervise(future::pending::<()>()).now_or_never().is_some();
    let connection = connect();
    connection.received(OVERHEAD_MAX);
    let request = connection.request(Version::HTTP_2);
    connection.received(REQUEST_COST);
    for _ in 0..10 * OVERHEAD_MAX / OVERHEAD_PER_BYTE {
        request.body_received(1);
        connection.received(OVERHEAD_PER_BYTE);
    }
    drop(chunk(1, &request));
    connection.received(1024 * OVERHEAD_PER_BYTE);
    assert!(!ends(&connection));
    request.body_received(0);
    connection.received(FIELD_COST * 100);
    assert!(ends(&connection), "an empty frame accounts for nothing");

    let connection = connect();
    let request = connection.request(Version::HTTP_2);
    for _ in 0..150 {
        connection.received(8 * 1024);
        request.body_received(1);
    }
    assert!(ends(&connection), "a byte of a body accounts for few others");
}

#[tokio::test]
async fn a_connection_that_waits_for_its_permit_does_not_block_others_after_a_request() {
    let listener = listener(ListenerSettings::default(), &[]);
    let connect = || {
        let connection = connection(&listener);
        connection.received(READ_BUDGET + 1);
        connection
    };
    let (first, second) = (connect(), connect());
    let permit = listener.overhead_permit.try_acquire().unwrap();
    let mut waiting = pin!(first.supervise(future::pending::<()>()));
    assert!(waiting.as_mut().now_or_never().is_none());
    assert!(second.supervise(async {}).now_or_never().is_none(), "it waits");
    drop((first.request(Version::HTTP_2), permit));
    assert!(waiting.as_mut().now_or_never().is_none());
    assert!(second.supervise(async {}).now_or_never().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_response_must_be_read_in_time_and_reading_a_part_does_not_extend_it() {
    let connection = connect();
    let request = connection.request(Version::HTTP_2);
    let page = chunk(32, &request);
    assert_eq!(connection.seconds_left(), Some(30 + 2));
    pass(10).await;
    let other = chunk(64, &connection.request(Version::HTTP_2));
    assert_eq!(connection.seconds_left(), Some(20 + 2 + 4), "it has to share the connection");
    drop(other);
    assert_eq!(connection.seconds_left(), Some(20 + 2 + 4));
    let last = chunk(16, &connection.request(Version::HTTP_2));
    drop((page, request));
    assert_eq!(connection.seconds_left(), Some(30 + 2 + 1), "what was unread before it counts");
    drop(last);
    assert_eq!(connection.seconds_left(), Some(75));
}

#[tokio::test(start_paused = true)]
async fn a_response_of_unknown_length_lasts_while_each_chunk_is_read_in_time() {
    let connection = connect();
    let request = connection.request(Version::HTTP_11);
    for _ in 0..5 {
        let part = chunk(64, &request);
        assert_eq!(connection.seconds_left(), Some(30 + 4));
        pass(33).await;
        drop(part);
        assert_eq!(connection.seconds_left(), None, "there is nothing to read");
        pass(1_000).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_stopping_service_waits_longer_for_proven_connections() {
    let connection = connect();
    let request = connection.request(Version::HTTP_11);
    connection.listener.drain();
    assert_eq!(connection.seconds_left(), Some(1));
    request.prove(&OwnerId("owner".into()));
    assert_eq!(connection.seconds_left(), None);
}

#[test]
fn a_connection_is_proven_by_its_accepted_requests_and_its_last_one() {
    let address = Group::Address(network(Ipv4Addr::LOCALHOST.into()));
    let owner = |name: &str| Group::Owner(OwnerId(name.into()));
    let connection = connect();
    assert_eq!(connection.group(), address);

    let first = connection.request(Version::HTTP_2);
    assert_eq!(connection.group(), address, "no key yet");
    first.prove(&OwnerId("a".into()));
    assert_eq!(connection.group(), owner("a"));
    let rejected = connection.request(Version::HTTP_2);
    drop(rejected);
    assert_eq!(connection.group(), owner("a"), "an accepted request is in flight");
    drop(first);
    assert_eq!(connection.group(), owner("a"), "the last request was accepted");

    let second = connection.request(Version::HTTP_2);
    assert_eq!(connection.group(), owner("a"), "the last request that ended was accepted");
    second.prove(&OwnerId("b".into()));
    assert_eq!(connection.group(), owner("b"), "the owner of the last accepted key");
    drop(second);
    drop(connection.request(Version::HTTP_2));
    assert_eq!(connection.group(), address, "the last request had no accepted key");
}

proptest! {
    /// Whatever a connection does, the listener counts what it holds, and nothing at the end.
    #[test]
    fn the_memory_of_a_listener_is_that_of_its_connections(
        steps in proptest::collection::vec((0..6_usize, 0..3_usize, 0..50_usize), 0..60),
    ) {
        let listener = listener(ListenerSettings::default(), &[]);
        let connections: Vec<_> = (0..3).map(|_| connection(&listener)).collect();
        let held = || {
            connections.iter().map(|connection| connection.held()).sum::<usize>()
        };
        let (mut requests, mut chunks) = (vec![], vec![]);
        for (step, which, kib) in steps {
            let connection = &connections[which];
            match step {
                0 => connection.received(kib * 1024),
                1 => requests.push((connection.request(Version::HTTP_2), 0)),
                2 => if let Some((request, _)) = requests.last() { chunks.push(chunk(kib, request)) },
                3 => if let Some((request, body)) = requests.last_mut() {
                    request.body_received(kib);
                    *body += kib;
                },
                4 => if let Some((request, body)) = requests.pop() { request.body_ended(body) },
                _ => drop(chunks.pop()),
            }
            prop_assert_eq!(listener.held.load(Relaxed), held());
        }
        for (request, body) in requests {
            request.body_ended(body);
        }
        drop(chunks);
        for connection in &connections {
            connection.end();
        }
        prop_assert_eq!(listener.held.load(Relaxed), 0);
        prop_assert_eq!(listener.open(), 0);
    }
}
