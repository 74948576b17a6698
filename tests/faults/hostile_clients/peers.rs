//! Clients that attack, slow but honest clients, and a client that counts how many of its creates succeed.

use std::{
    fs,
    net::SocketAddr,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use axum::{
    body::Bytes,
    http::{Request, Response},
};
use h2::{
    RecvStream, SendStream,
    client::{self, ResponseFuture, SendRequest},
};
use harness::{App, REX, create_head};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    runtime::Runtime,
    sync::{Mutex, Semaphore, SemaphorePermit},
    task::JoinHandle,
    time::{sleep, timeout},
};

pub(in crate::faults) const MIB: u64 = 1024 * 1024;
/// Twice the memory that all connections together may hold: the allocator needs some, too.
pub(in crate::faults) const GROWTH_MAX: u64 = 2 * 64 * MIB;
/// The open requests of an attacker on one HTTP/2 connection.
pub(in crate::faults) const STREAMS: usize = 127;

/// How long an attacker waits before it replaces a closed connection.
const REOPEN_INTERVAL: Duration = Duration::from_millis(100);
/// Longer than any test takes.
const ATTACK_MAX: Duration = Duration::from_mins(3);

const CREATES: usize = 40;
/// Nine of ten.
pub(in crate::faults) const CREATES_MIN: usize = 36;
const CREATE_INTERVAL: Duration = Duration::from_millis(75);
const CREATE_TIMEOUT: Duration = Duration::from_secs(3);
/// After this time, the remaining creates count as failed. They take four seconds on an idle machine.
const CREATES_TIMEOUT: Duration = Duration::from_secs(30);

const SAMPLE_INTERVAL: Duration = Duration::from_millis(20);
/// Memory that has not grown for so long has reached its peak.
const STEADY: Duration = Duration::from_secs(2);
/// Longer than a busy machine takes.
const GROWTH_TIMEOUT: Duration = Duration::from_mins(1);

/// One attack at a time. It uses as much of the machine as it gets, and the test measures what remains.
static ATTACKS: Semaphore = Semaphore::const_new(1);

/// Attackers that replace each connection that ends. They stop when this is dropped.
pub(in crate::faults) struct Attack {
    pub(in crate::faults) runtime: Runtime,
    _permit: Option<SemaphorePermit<'static>>,
}

impl Attack {
    /// Starts so many attackers when no other attack runs. `connect` returns a connection, from its beginning to its end.
    pub(in crate::faults) fn start<C, F>(attackers: usize, connect: C) -> Self
    where
        C: Fn() -> F + Clone + Send + 'static,
        F: Future<Output = ()> + Send,
    {
        let runtime = Runtime::new().unwrap();
        let permit = runtime.block_on(ATTACKS.acquire()).ok();
        for _ in 0..attackers {
            let connect = connect.clone();
            let attack = async move {
                loop {
                    connect().await;
                    sleep(REOPEN_INTERVAL).await;
                }
            };
            runtime.spawn(async { timeout(ATTACK_MAX, attack).await });
        }
        Self { runtime, _permit: permit }
    }

    /// Creates pets with the key of the service during the attack, which must not be the key of an attacker. Returns how
    /// many of [`CREATES`] get 201.
    pub(in crate::faults) fn good_creates(&self, app: &App) -> usize {
        let created = self.runtime.block_on(good_creates(app.address(), &app.key));
        println!("{created} of {CREATES} creates succeed");
        created
    }
}

/// Creates pets alternately on new connections and on one that is kept; returns how many get 201. If the kept connection
/// is closed, the next create on it fails.
async fn good_creates(address: SocketAddr, key: &str) -> usize {
    let create = format!("{}{REX}", create_head(key, REX.len()));
    let (mut created, mut kept, begun) = (0, None, Instant::now());
    for attempt in 0..CREATES {
        let is_new = attempt % 2 == 0;
        let open = if is_new { None } else { kept.take() };
        let exchange = async {
            let mut stream = match open {
                Some(stream) => stream,
                None => TcpStream::connect(address).await.ok()?,
            };
            (exchange(&mut stream, create.as_bytes()).await? == 201).then_some(stream)
        };
        let stream = timeout(CREATE_TIMEOUT, exchange).await.ok().flatten();
        created += usize::from(stream.is_some());
        if !is_new {
            kept = stream;
        }
        if begun.elapsed() > CREATES_TIMEOUT {
            break;
        }
        sleep(CREATE_INTERVAL).await;
    }
    created
}

/// Sends a pet in a body of this length, in so many equal parts, with an interval after each. Returns the status of the
/// response, or `None` if the connection ends.
pub(in crate::faults) async fn create_slowly(
    address: SocketAddr,
    key: &str,
    length: usize,
    (parts, interval): (usize, Duration),
) -> Option<u16> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    stream.write_all(create_head(key, length).as_bytes()).await.ok()?;
    for part in format!("{REX:<length$}").as_bytes().chunks(length / parts) {
        stream.write_all(part).await.ok()?;
        sleep(interval).await;
    }
    exchange(&mut stream, b"").await
}

/// Sends these bytes and reads a response. Returns its status, or `None` if the connection ends.
pub(in crate::faults) async fn exchange(stream: &mut TcpStream, request: &[u8]) -> Option<u16> {
    stream.write_all(request).await.ok()?;
    let (mut response, mut part) = (Vec::new(), [0; 4096]);
    loop {
        let length = stream.read(&mut part).await.ok().filter(|length| *length > 0)?;
        response.extend_from_slice(&part[..length]);
        if let Some(response) = harness::Response::parse(&response, false) {
            return Some(response.status);
        }
    }
}

/// An HTTP/2 connection. Closed when dropped.
pub(in crate::faults) struct Peer {
    address: SocketAddr,
    requests: SendRequest<Bytes>,
    driver: JoinHandle<Result<(), h2::Error>>,
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Peer {
    /// Connects, and lets the service send so many bytes on each stream before they are read.
    pub(in crate::faults) async fn connect(address: SocketAddr, window: u32) -> Option<Self> {
        let stream = TcpStream::connect(address).await.ok()?;
        let mut builder = client::Builder::new();
        let (requests, connection) = builder.initial_window_size(window).handshake(stream).await.ok()?;
        Some(Self { address, requests, driver: tokio::spawn(connection) })
    }

    /// Sends a request, without its body if it is a `POST`. Returns `None` if the connection is closed.
    pub(in crate::faults) async fn send(
        &self,
        method: &str,
        path: &str,
        key: &str,
    ) -> Option<(ResponseFuture, SendStream<Bytes>)> {
        let request = Request::builder().method(method).uri(format!("http://{}{path}", self.address));
        let request = request.header("Authorization", format!("Bearer {key}"));
        let request = request.header("Content-Type", "application/json").body(()).unwrap();
        let mut ready = self.requests.clone().ready().await.ok()?;
        ready.send_request(request, method == "GET").ok()
    }

    /// Sends a `GET` and waits for the head of its response.
    pub(in crate::faults) async fn get(&self, path: &str, key: &str) -> Option<Response<RecvStream>> {
        self.send("GET", path, key).await?.0.await.ok()
    }

    /// Waits until the service closes the connection.
    pub(in crate::faults) async fn closed(mut self) {
        // Every end is the same to an attacker.
        let _ = (&mut self.driver).await;
    }
}

/// Reads a body, with a delay for each byte. Bodies with the same `line` are read in turn. Returns the number of bytes.
pub(in crate::faults) async fn read_slowly(
    mut body: RecvStream,
    per_byte: Duration,
    line: Arc<Mutex<()>>,
) -> usize {
    let mut total = 0;
    while let Some(Ok(piece)) = body.data().await {
        let turn = line.lock().await;
        sleep(per_byte * u32::try_from(piece.len()).unwrap()).await;
        drop(turn);
        total += piece.len();
        // Fails only after the end of the connection, which the next read reports.
        let _ = body.flow_control().release_capacity(piece.len());
    }
    total
}

/// The resident memory of the service, in bytes.
pub(in crate::faults) fn resident(app: &App) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", app.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Asserts that the resident memory grows by at most `growth_max` during an attack. The attack has its full effect when
/// `is_complete` holds and the memory has not grown by a MiB for a while.
pub(in crate::faults) fn assert_growth(
    app: &App,
    before: u64,
    growth_max: u64,
    is_complete: impl Fn() -> bool,
) {
    let (begun, mut peak, mut grown) = (Instant::now(), before, Instant::now());
    while begun.elapsed() < GROWTH_TIMEOUT && (grown.elapsed() < STEADY || !is_complete()) {
        let now = resident(app);
        if now > peak + MIB {
            (peak, grown) = (now, Instant::now());
        }
        thread::sleep(SAMPLE_INTERVAL);
    }
    println!("resident memory: {} MiB before, at most {} MiB during the attack", before / MIB, peak / MIB);
    assert!(is_complete(), "the attack has its full effect");
    assert!(peak <= before + growth_max, "from {} to {} MiB", before / MIB, peak / MIB);
}
