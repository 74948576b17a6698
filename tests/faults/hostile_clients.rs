//! Clients that hold connection slots or memory: a client with a good key is still served. All share one address, which
//! is the hardest case.

pub(super) mod flood;
pub(super) mod peers;
mod waits;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use harness::{App, wait_until};
use tokio::{
    io::AsyncReadExt as _,
    net::TcpStream,
    runtime::Runtime,
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};

use self::{
    flood::Flood,
    peers::{Attack, CREATES_MIN, GROWTH_MAX, MIB, Peer, create_slowly, exchange, read_slowly, resident},
};

const SLOTS: [&str; 2] = ["--max-connections", "200"];
/// More than there are slots.
const CONNECTIONS: usize = 250;
/// The interval of the attackers' requests.
const TRICKLE: Duration = Duration::from_millis(750);
const TIMEOUT: Duration = Duration::from_secs(30);

/// How often the attackers got each status.
type Statuses = Arc<Mutex<BTreeMap<u16, usize>>>;

fn count(statuses: &Statuses, status: u16) -> usize {
    statuses.lock().unwrap().get(&status).copied().unwrap_or_default()
}

/// A service with the slots of [`SLOTS`] and so many pets whose names take 800 bytes.
fn start(pets: usize, flags: &[&str]) -> App {
    let app = App::on_with("memory:", &[&SLOTS[..], flags].concat());
    let name = "🐈".repeat(200);
    for _ in 0..pets {
        app.add(&name);
    }
    app
}

/// Sends `first`, and `next` after each response and an interval, until the connection ends.
async fn repeat(
    address: SocketAddr,
    (first, next): (String, String),
    interval: Duration,
    statuses: Statuses,
) {
    let Ok(mut stream) = TcpStream::connect(address).await else { return };
    let mut request = &first;
    while let Some(status) = exchange(&mut stream, request.as_bytes()).await {
        *statuses.lock().unwrap().entry(status).or_default() += 1;
        // No response is due: this read ends when the connection does.
        if timeout(interval, stream.read(&mut [0])).await.is_ok() {
            return;
        }
        request = &next;
    }
}

/// Connections whose requests wait for one byte of their body most of the time, without a key.
fn trickle(address: SocketAddr, connections: usize) -> (Attack, Statuses) {
    let statuses = Statuses::default();
    let counted = statuses.clone();
    let attack = Attack::start(connections, move || {
        let head = "POST /v1/pets HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n";
        repeat(address, (head.into(), format!("x{head}")), TRICKLE, counted.clone())
    });
    (attack, statuses)
}

/// Waits until the attackers of [`trickle`] get rejections, and more of them than there are connections.
fn wait_until_strong(statuses: &Statuses, status: u16) {
    let before = count(statuses, status);
    wait_until("the attack is strong", || count(statuses, status) >= before + 2 * CONNECTIONS);
}

#[test]
fn pages_that_are_read_byte_by_byte_neither_block_others_nor_take_much_memory() {
    const PEERS: usize = 20;
    const PAGES: usize = 46;
    /// Within the limit of the key.
    const INTERVAL: Duration = Duration::from_millis(10);
    #[derive(Clone)]
    struct Attacker {
        address: SocketAddr,
        key: String,
        begun: Arc<OnceLock<Instant>>,
        requests: Arc<AtomicU32>,
        pages: Arc<AtomicUsize>,
    }
    impl Attacker {
        async fn take_pages(self) {
            let Some(peer) = Peer::connect(self.address, 1).await else { return };
            let begun = *self.begun.get_or_init(Instant::now);
            let mut reading = JoinSet::new();
            while reading.len() < PAGES {
                sleep_until(begun + INTERVAL * self.requests.fetch_add(1, Relaxed)).await;
                let Some(page) = peer.get("/v1/pets?limit=100", &self.key).await else { return };
                if page.status() == 200 {
                    self.pages.fetch_add(1, Relaxed);
                    reading.spawn(read_slowly(page.into_body(), Duration::from_millis(400), Arc::default()));
                }
            }
            reading.join_all().await;
        }
    }

    let app = start(100, &[]);
    let key = app.issue_active_key(&["--name", "reader", "--scope", "read", "--rate-limit", "100/s"]);
    let before = resident(&app);
    let (begun, requests, pages) = (Arc::default(), Arc::default(), Arc::new(AtomicUsize::new(0)));
    let attacker = Attacker { address: app.address(), key, begun, requests, pages: Arc::clone(&pages) };
    let attack = Attack::start(PEERS, move || attacker.clone().take_pages());
    // Together they take more than 64 MiB.
    wait_until("the attackers have their pages", || pages.load(Relaxed) >= 780);
    let (created, held) = (attack.good_creates(&app), resident(&app));
    println!("{} pages, from {} to {} MiB", pages.load(Relaxed), before / MIB, held / MIB);
    assert!(created >= CREATES_MIN, "{created} creates");
    assert!(held <= before + GROWTH_MAX, "from {} to {} MiB", before / MIB, held / MIB);
}

#[test]
fn connections_that_repeat_requests_without_a_key_do_not_block_others() {
    let app = start(0, &[]);
    let (attack, statuses) = trickle(app.address(), CONNECTIONS);
    wait_until_strong(&statuses, 401);
    let created = attack.good_creates(&app);
    wait_until_strong(&statuses, 401);
    println!("the attackers got {:?}", statuses.lock().unwrap());
    assert!(created >= CREATES_MIN, "{created} creates");
}

#[test]
fn connections_with_a_limited_and_then_revoked_key_do_not_block_others() {
    let app = start(0, &[]);
    let key = app.issue_active_key(&["--name", "limited", "--rate-limit", "1/h"]);
    let statuses = Statuses::default();
    let (address, counted) = (app.address(), statuses.clone());
    let list = format!("GET /v1/pets HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {key}\r\n\r\n");
    let attack =
        Attack::start(200, move || repeat(address, (list.clone(), list.clone()), TRICKLE, counted.clone()));
    wait_until_strong(&statuses, 429);
    let while_limited = attack.good_creates(&app);
    app.revoke(&key);
    wait_until_strong(&statuses, 401);
    let while_revoked = attack.good_creates(&app);
    println!("the attackers got {:?}", statuses.lock().unwrap());
    assert!(while_limited.min(while_revoked) >= CREATES_MIN, "{while_limited}, {while_revoked} creates");
}

#[test]
fn unread_rejections_do_not_shorten_the_time_for_a_body() {
    // A connection of a trusted proxy may have many requests in flight, so few connections are enough.
    let app = App::on_with("memory:", &["--admin-listen", "127.0.0.1:0", "--trusted-proxy", "127.0.0.2"]);
    assert_bodies_may_take_their_time(&app, Flood::of_rejections());
}

#[test]
fn unfinished_requests_do_not_shorten_the_time_for_a_body() {
    let app = start(0, &["--admin-listen", "127.0.0.1:0"]);
    let flood = Flood::of_small_heads(&app.issue_active_key(&["--name", "attacker"]));
    assert_bodies_may_take_their_time(&app, flood);
}

/// Asserts that at least 10 of 11 creates succeed whose bodies take 3.5 s.
fn assert_bodies_may_take_their_time(app: &App, flood: Flood) {
    /// 130 of them hold all memory.
    const ATTACKERS: usize = 150;
    /// Evicted connections come back slowly: the attack takes the memory of the service and not its processor time.
    const PAUSE: Duration = Duration::from_secs(4);
    let evicted = || {
        let metrics = app.metrics();
        let line =
            metrics.split("petstore_http_connections_evicted_total{listener=\"public\"} ").nth(1).unwrap();
        line.lines().next().unwrap().parse::<usize>().unwrap()
    };
    let address = app.address();
    let attack = Attack::start(ATTACKERS, move || {
        let connection = flood.clone().run(address, Arc::default());
        async { (connection.await, sleep(PAUSE).await).1 }
    });
    wait_until("the attack holds all memory", || evicted() > 0);
    let before = evicted();
    let statuses = attack.runtime.block_on(async {
        let mut creating = JoinSet::new();
        for number in 0..11 {
            let key = app.key.clone();
            creating.spawn(async move {
                // The attack is not equally strong at all times.
                sleep(Duration::from_millis(300) * number).await;
                let begun = Instant::now();
                let create = create_slowly(address, &key, 100, (6, Duration::from_millis(500)));
                let status = timeout(TIMEOUT, create).await.ok().flatten();
                (status, begun.elapsed())
            });
        }
        creating.join_all().await
    });
    println!("{before} and then {} connections were evicted", evicted());
    println!("creates, and how long each took: {statuses:?}");
    assert!(evicted() > before, "the attack holds all memory at all times");
    assert!(statuses.iter().filter(|(status, _)| *status == Some(201)).count() >= 10, "{statuses:?}");
}

#[test]
fn frames_that_belong_to_no_request_do_not_delay_others() {
    const LISTS: usize = 200;
    for connections in [100, 600] {
        let app = App::on_with("memory:", &[]);
        let (flood, frames) = Flood::of_control_frames();
        let (address, sent) = (app.address(), Arc::new(AtomicUsize::new(0)));
        let counted = sent.clone();
        let attack = Attack::start(connections, move || {
            let (flood, frames, counted) = (flood.clone(), frames.clone(), counted.clone());
            async move {
                loop {
                    flood.clone().run_for_ever(address, frames.clone(), counted.clone()).await;
                }
            }
        });
        wait_until("the attack is strong", || sent.load(Relaxed) > connections * 1024 * 1024);
        let client = Runtime::new().unwrap();
        let list = format!("GET /v1/pets HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {}\r\n\r\n", app.key);
        let mut times = client.block_on(list_repeatedly(address, &list, LISTS));
        drop(attack);
        let begun = Instant::now();
        client.block_on(list_repeatedly(address, &list, 2));
        let recovered = begun.elapsed();
        times.sort_unstable();
        let (median, longest) = (times[times.len() / 2], times.last().unwrap());
        println!("{connections} connections: p50 {median:?}, max {longest:?} of {} lists", times.len());
        println!("two lists after the attack: {recovered:?}");
        assert!(median <= Duration::from_millis(50), "{median:?}");
        assert!(recovered < Duration::from_secs(1), "{recovered:?}");
    }
}

/// Lists pets alternately on a new connection and on that of the list before, for at most [`TIMEOUT`]. Returns how long each
/// list took.
async fn list_repeatedly(address: SocketAddr, list: &str, times: usize) -> Vec<Duration> {
    let (mut took, mut open, begun) = (vec![], None, Instant::now());
    while took.len() < times && begun.elapsed() < TIMEOUT {
        let list_begun = Instant::now();
        let mut stream = match open.take() {
            Some(stream) => stream,
            None => TcpStream::connect(address).await.unwrap(),
        };
        assert_eq!(exchange(&mut stream, list.as_bytes()).await, Some(200));
        took.push(list_begun.elapsed());
        open = (took.len() % 2 == 1).then_some(stream);
    }
    took
}

#[test]
fn connections_to_the_admin_listener_do_not_block_probes_and_metrics() {
    let app = start(0, &["--admin-listen", "127.0.0.1:0"]);
    let admin = app.admin();
    let (attack, statuses) = trickle(admin, 110);
    wait_until_strong(&statuses, 400);
    let served = attack.runtime.block_on(async {
        let mut served = 0;
        for path in ["/readyz", "/metrics"].repeat(12) {
            let get = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
            let exchange =
                async { exchange(&mut TcpStream::connect(admin).await.ok()?, get.as_bytes()).await };
            served += usize::from(timeout(TIMEOUT, exchange).await.ok().flatten() == Some(200));
        }
        served
    });
    println!("{served} of 24 served; the attackers got {:?}", statuses.lock().unwrap());
    assert!(served >= 22, "{served} of 24");
}

#[test]
fn honest_slow_clients_are_served_while_others_take_all_slots() {
    let app = start(30, &[]);
    let length = app.get("/v1/pets?limit=30").body.len();
    let (attack, statuses) = trickle(app.address(), CONNECTIONS);
    wait_until_strong(&statuses, 401);
    let (address, key) = (app.address(), &app.key);
    let pages = async {
        let peer = Peer::connect(address, 4_096).await?;
        let (mut reading, line) = (JoinSet::new(), Arc::default());
        for _ in 0..10 {
            let page = peer.get("/v1/pets?limit=30", key).await?;
            // 20 KB/s.
            reading.spawn(read_slowly(page.into_body(), Duration::from_micros(50), Arc::clone(&line)));
        }
        Some(reading.join_all().await)
    };
    // 3 KB/s.
    let body = create_slowly(address, key, 9_000, (30, Duration::from_millis(100)));
    let (pages, body) =
        attack.runtime.block_on(async { tokio::join!(timeout(TIMEOUT, pages), timeout(TIMEOUT, body)) });
    println!("pages of {length} bytes: {pages:?}; create: {body:?}");
    assert_eq!(pages.ok().flatten(), Some(vec![length; 10]));
    assert_eq!(body.ok().flatten(), Some(201));
    wait_until_strong(&statuses, 401);
}
