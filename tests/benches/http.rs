//! How fast the service responds, relative to a baseline measured in the same run: plain axum that returns a
//! constant page of 20 pets.
//!
//! `cargo bench --package tests --bench http` prints requests per second and the ratio, as medians over
//! interleaved rounds. Machines are noisy: only the ratios mean something.

use std::{
    env,
    net::SocketAddr,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use harness::{App, release_program};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

const CONNECTIONS: usize = 64;
const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_secs(2);
const PETS: usize = 100_000;
/// The service and its yardstick run on one core, this client on the other.
const SERVER_CORE: &str = "0";
const CLIENT_CORE: &str = "1";

const PET: &str = r#"{"name":"Rex","categoryId":7,"status":"available"}"#;

fn main() {
    if env::args().any(|argument| argument == "--yardstick") {
        return runtime().block_on(yardstick());
    }
    pin(std::process::id(), CLIENT_CORE);
    let app = App::start_program(release_program(), &[]);
    pin(app.pid(), SERVER_CORE);
    let (mut plain, plain_address) = start_yardstick();
    pin(plain.id(), SERVER_CORE);
    let key = &app.key;
    let request = |method: &str, path: &str, body: &str| {
        format!(
            "{method} {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {key}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let create = request("POST", "/v1/pets", PET);
    let runtime = runtime();
    println!("filling the store with {PETS} pets");
    while runtime.block_on(load(app.address(), create.clone(), ROUND)).0 > 0.0
        && app.get(&format!("/v1/pets/{PETS}")).status == 404
    {}
    let cases = [
        ("list(20), first page", request("GET", "/v1/pets", "")),
        ("list(20), last page", request("GET", &format!("/v1/pets?after={}", PETS - 20), "")),
        ("list(20), one status", request("GET", "/v1/pets?status=available&after=50000", "")),
        ("get", request("GET", "/v1/pets/50000", "")),
        ("create, durable", create),
    ];
    let yard = request("GET", "/v1/pets", "");
    println!("\n{:<22} {:>10} {:>12} {:>8} {:>10}", "", "requests/s", "yardstick/s", "ratio", "p99 ms");
    for (name, case) in cases {
        let mut rounds: Vec<_> = (0..ROUNDS)
            .map(|_| {
                let (ours, p99) = runtime.block_on(load(app.address(), case.clone(), ROUND));
                let (theirs, _) = runtime.block_on(load(plain_address, yard.clone(), ROUND));
                (ours / theirs, ours, theirs, p99)
            })
            .collect();
        rounds.sort_by(|left, right| left.0.total_cmp(&right.0));
        let (ratio, ours, theirs, p99) = rounds[ROUNDS / 2];
        println!("{name:<22} {ours:>10.0} {theirs:>12.0} {ratio:>8.2} {:>10.2}", p99.as_secs_f64() * 1e3);
    }
    plain.kill().expect("the yardstick was running");
    plain.wait().expect("a killed process ends");
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Binds a process to a core where that is possible; elsewhere the scheduler does what it likes.
fn pin(pid: u32, core: &str) {
    let pinned =
        Command::new("taskset").args(["-acp", core, &pid.to_string()]).stdout(Stdio::null()).status();
    if !pinned.is_ok_and(|status| status.success()) {
        println!("process {pid} is not pinned to core {core}: install taskset for steadier numbers");
    }
}

/// Sends the same request over and over on every connection: answers per second, and the 99th percentile.
async fn load(address: SocketAddr, request: String, time: Duration) -> (f64, Duration) {
    let begun = Instant::now();
    let mut connections = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let request = request.clone();
        connections.spawn(async move {
            let stream = TcpStream::connect(address).await.expect("the server accepts");
            stream.set_nodelay(true).expect("TCP has no delay");
            let mut stream = BufReader::new(stream);
            let mut latencies = Vec::new();
            while begun.elapsed() < time {
                let sent = Instant::now();
                stream.write_all(request.as_bytes()).await.expect("the server listens");
                read_answer(&mut stream).await;
                latencies.push(sent.elapsed());
            }
            latencies
        });
    }
    let mut latencies: Vec<_> = connections.join_all().await.concat();
    let elapsed = begun.elapsed();
    latencies.sort_unstable();
    #[expect(clippy::cast_precision_loss, reason = "counts of a benchmark are far below 2^52")]
    let rate = latencies.len() as f64 / elapsed.as_secs_f64();
    (rate, latencies[latencies.len() * 99 / 100])
}

async fn read_answer(stream: &mut BufReader<TcpStream>) {
    let mut line = String::new();
    let mut length = 0;
    let mut first = true;
    loop {
        line.clear();
        stream.read_line(&mut line).await.expect("the server answers");
        if first {
            assert!(line.starts_with("HTTP/1.1 20"), "a load test is answered well: {line}");
            first = false;
        }
        if line == "\r\n" {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.trim().parse().expect("a length is a number");
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.expect("the body is whole");
}

fn start_yardstick() -> (Child, SocketAddr) {
    let program = env::current_exe().expect("this program has a path");
    let mut child =
        Command::new(program).arg("--yardstick").stdout(Stdio::piped()).spawn().expect("it starts");
    let mut address = String::new();
    let stdout = child.stdout.take().expect("its output is piped");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut address)
        .expect("it tells its address");
    (child, address.trim().parse().expect("an address"))
}

/// The plainest axum there is: one route, one constant page.
async fn yardstick() {
    let pets: Vec<_> = (1..=20).map(|id| format!(r#"{{"id":{id},{}"#, &PET[1..])).collect();
    let page: &'static str = Box::leak(format!("[{}]", pets.join(",")).into_boxed_str());
    let answer = move || async move { ([("content-type", "application/json")], page) };
    let router = axum::Router::new().route("/v1/pets", axum::routing::get(answer));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    println!("{}", listener.local_addr().expect("an address"));
    axum::serve(listener, router).await.expect("it serves until it is killed");
}
