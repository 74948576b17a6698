//! Clients that hold connection slots or memory: a client with a good key is still served. All share one address, which
//! is the hardest case.

pub(super) mod flood;
pub(super) mod peers;

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
    async fn take_pages(
        (address, key): (SocketAddr, String),
        begun: Arc<OnceLock<Instant>>,
        requests: Arc<AtomicU32>,
        pages: Arc<AtomicUsize>,
    ) {
        let Some(peer) = Peer::connect(address, 1).await else { return };
        let begun = *begun.get_or_init(Instant::now);
        let mut reading = JoinSet::new();
        while reading.len() < PAGES {
            sleep_until(begun + INTERVAL * requests.fetch_add(1, Relaxed)).await;
            let Some(page) = peer.get("/v1/pets?limit=100", &key).await else { return };
            if page.status() == 200 {
                pages.fetch_add(1, Relaxed);
                reading.spawn(read_slowly(page.into_body(), Duration::from_millis(400), Arc::default()));
            }
        }
        reading.join_all().await;
    }

    let app = start(100, &[]);
    let key = app.issue_active_key(&["--name", "reader", "--scope", "read", "--rate-limit", "100/s"]);
    let before = resident(&app);
    let (begun, requests, pages) = (Arc::default(), Arc::default(), Arc::new(AtomicUsize::new(0)));
    let (client, counted) = ((app.address(), key), pages.clone());
    let attack = Attack::start(PEERS, move || {
        take_pages(client.clone(), Arc::clone(&begun), Arc::clone(&requests), counted.clone())
    });
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

/// At least 10 of 11 creates succeed whose bodies take 3.5 s.
#[test]
fn unfinished_requests_do_not_shorten_the_time_for_a_body() {
    /// 130 of them hold all memory.
    const ATTACKERS: usize = 150;
    /// Evicted connections come back slowly: the attack takes the memory of the service and not its processor time.
    const PAUSE: Duration = Duration::from_secs(4);
    let app = start(0, &["--admin-listen", "127.0.0.1:0"]);
    let flood = Flood::of_small_heads(&app.issue_active_key(&["--name", "attacker"]));
    let evicted = || app.metric("petstore_http_connections_evicted_total{listener=\"public\"}");
    let address = app.address();
    let attack = Attack::start(ATTACKERS, move || {
        let connection = flood.clone().run(address, Arc::default());
        async { (connection.await, sleep(PAUSE).await).1 }
    });
    wait_until("the attack holds all memory", || evicted() > 0.0);
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
