//! Requests that wait for commits which do not come, next to clients that create pets.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use harness::{App, PostgresServer, REX};
use tokio::{
    net::TcpStream,
    runtime::Runtime,
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep},
};

use super::peers::{ATTACKS, Peer, create_head, exchange};

const PEERS: usize = 10;
const STREAMS: u32 = 100;
/// How often each stream sends a request: a wait ends after as long.
const INTERVAL: Duration = Duration::from_secs(1);
const CREATORS: usize = 16;
/// More commits than are stored while a request waits, but not too many to be waited for.
const LATER: u64 = 9_500;
const ROUNDS_MIN: usize = 2;
const ROUNDS_MAX: usize = 8;
const WARM_UP: Duration = Duration::from_millis(500);
const ROUND: Duration = Duration::from_millis(1_500);

#[test]
fn requests_that_wait_for_commits_cost_other_clients_as_little_as_any_others() {
    check_creates("memory:");
}

/// Here, a request that waits for a commit can make the node read the log.
#[test]
fn requests_that_wait_for_commits_of_a_shared_log_cost_other_clients_as_little() {
    let mut postgres = PostgresServer::start();
    let database = postgres.create_database();
    check_creates(&postgres.url(&database));
}

/// Asserts that creates succeed at least half as often next to requests that wait as next to the same requests that do not.
fn check_creates(store: &str) {
    let app = App::on(store);
    let key = app.issue_active_key(&["--name", "reader", "--scope", "read"]);
    let (address, own_key) = (app.address(), app.key.clone());
    let wanted: [Wanted; 3] = [|_| None, |_| Some(u64::MAX), |newest| Some(newest + LATER)];
    let [without, far, later] = Runtime::new().unwrap().block_on(async {
        let _only = ATTACKS.acquire().await.unwrap();
        let mut creates = [0; 3];
        for round in 1..=ROUNDS_MAX {
            for (creates, wanted) in creates.iter_mut().zip(wanted) {
                let mut requests = send_requests(address, &key, wanted).await;
                *creates += count_creates(address, &own_key).await;
                assert!(requests.try_join_next().is_none(), "every stream sends requests until the end");
            }
            println!("creates next to requests that do not wait, that name a position far ahead, and a later one: {creates:?}");
            // Other tests disturb single rounds.
            if round >= ROUNDS_MIN && creates.iter().all(|count| 2 * count >= creates[0]) {
                break;
            }
        }
        creates
    });
    assert!(2 * far.min(later) >= without, "{far} and {later} of {without} creates");
}

/// The position that a request waits for, given the last one that is known.
type Wanted = fn(u64) -> Option<u64>;

fn position(header: &str) -> u64 {
    header.split('-').next().unwrap().parse().unwrap()
}

/// Sends one list per stream and interval until the result is dropped.
async fn send_requests(address: SocketAddr, key: &str, wanted: Wanted) -> JoinSet<()> {
    let mut requests = JoinSet::new();
    for _ in 0..PEERS {
        let peer = Arc::new(Peer::connect(address, 1 << 16).await.expect("a connection"));
        let list = peer.get("/v1/pets?limit=1", key).await.expect("a response");
        for stream in 0..STREAMS {
            let (peer, key) = (peer.clone(), key.to_owned());
            let mut newest = position(list.headers()["log-position"].to_str().unwrap());
            requests.spawn(async move {
                sleep(INTERVAL / STREAMS * stream).await;
                let mut interval = interval(INTERVAL);
                interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
                loop {
                    interval.tick().await;
                    let mut request = peer.request("GET", "/v1/pets?limit=1", &key);
                    if let Some(position) = wanted(newest) {
                        request = request.header("Log-Position", position);
                    }
                    let (response, _) = peer.begin(request).await.expect("a connection");
                    let response = response.await.expect("a response");
                    // A fast machine stores so many commits that a wait can end.
                    assert!(response.status() == 200 || wanted(newest).is_some() && response.status() == 503);
                    newest = position(response.headers()["log-position"].to_str().unwrap());
                }
            });
        }
    }
    requests
}

/// How many pets are created in a round.
async fn count_creates(address: SocketAddr, key: &str) -> u64 {
    let (created, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let create: Arc<str> = format!("{}{REX}", create_head(key, REX.len())).into();
    let mut creators = JoinSet::new();
    for _ in 0..CREATORS {
        let (created, stop, create) = (created.clone(), stop.clone(), create.clone());
        creators.spawn(async move {
            let mut stream = TcpStream::connect(address).await.unwrap();
            while !stop.load(Relaxed) {
                let status = exchange(&mut stream, create.as_bytes()).await;
                created.fetch_add(u64::from(status == Some(201)), Relaxed);
            }
        });
    }
    sleep(WARM_UP).await;
    let before = created.load(Relaxed);
    sleep(ROUND).await;
    let during = created.load(Relaxed) - before;
    stop.store(true, Relaxed);
    creators.join_all().await;
    during
}
