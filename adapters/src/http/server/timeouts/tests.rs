//! How long a connection may stay in each state.

use std::{net::Ipv4Addr, time::Duration};

use axum::body::Bytes;
use hyper::body::Buf as _;

use super::*;
use crate::http::server::instrumented::Chunk;

/// A request may take 120 seconds in total.
const SETTINGS: Settings = Settings {
    connections_per_address: None,
    connections_max: 1,
    rejections_max: 1,
    head_timeout: Duration::from_secs(10),
    idle_timeout: Duration::from_mins(1),
    write_timeout: Duration::from_secs(30),
    drain: Duration::ZERO,
};

const PEER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn new_activity() -> Arc<Activity> {
    Activity::new(PEER, Arc::default())
}

fn deadline(activity: &Activity) -> Instant {
    activity.deadline(Instant::now(), &SETTINGS).0
}

/// How long the state may last, in whole seconds from now.
fn seconds_left(activity: &Activity) -> u64 {
    (deadline(activity) - Instant::now()).as_secs() + 1
}

#[test]
fn a_new_connection_must_send_a_head_and_more_bytes_do_not_extend_the_timeout() {
    let activity = new_activity();
    let before = deadline(&activity);
    assert_eq!(seconds_left(&activity), 10);
    for byte in *b"GET / HTTP/1.1\r\nx: " {
        activity.received(&[byte]);
    }
    assert_eq!(deadline(&activity), before);
}

#[test]
fn a_connection_idles_after_its_last_request_until_the_next_byte() {
    let activity = new_activity();
    activity.received(b"GET / HTTP/1.1\r\n\r\n");
    let request = activity.begin();
    let body = request.clone();
    assert_eq!(seconds_left(&activity), 120);
    drop(request);
    assert_eq!(seconds_left(&activity), 120, "the body is still arriving");
    drop(body);
    assert_eq!(seconds_left(&activity), 60);
    activity.received(b"");
    assert_eq!(seconds_left(&activity), 60, "no byte");
    activity.received(b"G");
    assert_eq!(seconds_left(&activity), 10);
}

#[test]
fn bytes_that_arrive_during_a_request_do_not_start_the_head_timeout() {
    let activity = new_activity();
    let request = activity.begin();
    activity.received(b"GET /next");
    drop(request);
    assert_eq!(seconds_left(&activity), 60);
}

#[test]
fn a_client_that_reads_nothing_is_stalled_in_any_state() {
    let activity = new_activity();
    let _request = activity.begin();
    activity.wrote::<usize>(&Poll::Pending);
    let before = deadline(&activity);
    assert_eq!(seconds_left(&activity), 30);
    activity.wrote::<usize>(&Poll::Pending);
    activity.received(b"PING");
    assert_eq!(deadline(&activity), before, "only reading helps");
    activity.wrote(&Poll::Ready(1));
    assert_eq!(seconds_left(&activity), 120);
}

#[test]
fn http2_idles_from_its_preface_on_however_that_arrives() {
    for split in 1..HTTP2_PREFACE.len() {
        let (first, second) = HTTP2_PREFACE.split_at(split);
        let activity = new_activity();
        activity.received(first);
        assert_eq!(seconds_left(&activity), 10, "{split} bytes of the preface");
        activity.received(second);
        assert_eq!(seconds_left(&activity), 60);
        activity.received(b"a head in frames");
        assert_eq!(seconds_left(&activity), 60);
    }
}

#[test]
fn the_oldest_request_in_flight_counts() {
    let activity = new_activity();
    let oldest = activity.begin();
    let before = deadline(&activity);
    let younger = activity.begin();
    assert_eq!(deadline(&activity), before);
    drop(oldest);
    assert!(deadline(&activity) >= before);
    drop(younger);
    assert_eq!(seconds_left(&activity), 60);
}

#[test]
fn an_endless_response_lasts_while_the_client_reads_whole_chunks() {
    let activity = new_activity();
    let request = activity.begin();
    request.response_began(Extent::Endless);
    assert_eq!(seconds_left(&activity), 60, "and again, while there is nothing to read");
    let mut first = Chunk::new(Bytes::from(vec![0; 10]), request.clone());
    let second = Chunk::new(Bytes::from(vec![0; 10]), request.clone());
    let before = deadline(&activity);
    assert_eq!(seconds_left(&activity), 30);
    first.advance(9);
    assert_eq!(deadline(&activity), before, "a part of a chunk is no progress");
    drop(first);
    assert!(deadline(&activity) > before, "the next chunk has its own timeout");
    drop(second);
    assert_eq!(seconds_left(&activity), 60);
    drop(request);
    assert_eq!(seconds_left(&activity), 60, "idle");
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_evicted_and_one_whose_requests_show_no_key_within_a_second() {
    let activity = new_activity();
    let request = activity.begin();
    assert!(!activity.evict_if_unused());
    assert!(deadline(&activity) > Instant::now());
    drop(request);
    assert!(activity.evict_if_unused(), "idle");
    assert!(deadline(&activity) <= Instant::now());

    for has_key in [false, true] {
        let activity = new_activity();
        let request = activity.begin();
        if has_key {
            request.mark_authenticated();
        }
        request.response_began(Extent::Bounded);
        deadline(&activity);
        time::advance(EVICTION_AGE).await;
        assert!(!activity.evict_if_unused(), "a slow response");
        time::advance(Duration::from_millis(1)).await;
        assert_eq!(activity.evict_if_unused(), !has_key);
    }
}

#[test]
fn a_stopping_service_waits_longer_only_for_authenticated_requests() {
    let activity = new_activity();
    let (anonymous, authenticated) = (activity.begin(), activity.begin());
    authenticated.mark_authenticated();
    activity.drain();
    assert_eq!(seconds_left(&activity), 120);
    drop(authenticated);
    assert_eq!(seconds_left(&activity), 1);
    drop(anonymous);
    assert_eq!(seconds_left(&activity), 1, "half a head, or an HTTP/2 client that acknowledges nothing");
}

#[test]
fn a_connection_with_too_many_unauthenticated_responses_is_closed() {
    let activity = new_activity();
    let responding = |is_authenticated| {
        let request = activity.begin();
        if is_authenticated {
            request.mark_authenticated();
        }
        request.response_began(Extent::Bounded);
        activity.evict_if_flooded();
        request
    };
    let _authenticated: Vec<_> = (0..100).map(|_| responding(true)).collect();
    let _others: Vec<_> = (0..UNAUTHENTICATED_MAX).map(|_| responding(false)).collect();
    assert_eq!(seconds_left(&activity), 30);
    let _one_more = responding(false);
    assert!(deadline(&activity) <= Instant::now());
}

#[test]
fn memory_that_runs_short_shortens_the_timeouts() {
    let total = Arc::<AtomicUsize>::default();
    let (activity, other) = (Activity::new(PEER, total.clone()), Activity::new(PEER, total.clone()));
    let receiving = activity.begin();
    assert!(receiving.body_received(HELD_PER_CONNECTION_MAX - REQUEST_COST - 1));
    assert_eq!(seconds_left(&activity), 120);
    assert!(!receiving.body_received(1), "one connection has its own limit");
    other.hold(PRESSURE);
    assert_eq!(seconds_left(&activity), 1);
    receiving.body_ended(HELD_PER_CONNECTION_MAX - REQUEST_COST);
    assert_eq!(seconds_left(&activity), 120, "the body has arrived");
    other.release(PRESSURE);
    drop(receiving);
    assert_eq!(total.load(Relaxed), 0);
}
