//! TCP proxies between a client and a server that disturb their connection in exactly the way a test asks
//! for.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, watch},
    task::JoinSet,
    time::{self, Instant},
};

/// How many bytes are forwarded at a time.
const CHUNK: usize = 16 * 1024;

/// Accepts connections on a free port of the loopback address, and serves each in its own task. All end when dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) address: SocketAddr,
    _accepting: JoinSet<()>,
}

impl Listener {
    pub(crate) async fn start<S>(serve: impl Fn(TcpStream) -> S + Send + 'static) -> Self
    where
        S: Future<Output: Send + 'static> + Send + 'static,
    {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free loopback port");
        let address = listener.local_addr().expect("a bound listener has an address");
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(serve(client));
                while connections.try_join_next().is_some() {}
            }
        });
        Self { address, _accepting: accepting }
    }
}

/// Forwards connections to one server until a test changes that. Ends with all its connections when dropped.
#[derive(Debug)]
pub struct CutProxy {
    listener: Listener,
    line: Arc<Line>,
}

#[derive(Debug)]
struct Line {
    upstream: SocketAddr,
    state: watch::Sender<State>,
    /// The request whose response will be lost.
    doomed: Mutex<Option<Vec<u8>>>,
    lost_responses: watch::Sender<usize>,
}

#[derive(Debug, Clone, Copy, Default)]
struct State {
    traffic: Traffic,
    /// Rises with every cut: connections of an earlier count are over.
    cuts: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Traffic {
    #[default]
    Flows,
    /// Nothing passes, and no connection ends: a network that drops packets.
    Frozen,
    /// Who comes is sent away at once.
    Refused,
}

impl CutProxy {
    /// Listens on a free port of the loopback address and forwards to `upstream`.
    pub async fn start(upstream: SocketAddr) -> Self {
        let line = Arc::new(Line {
            upstream,
            state: watch::Sender::default(),
            doomed: Mutex::default(),
            lost_responses: watch::Sender::default(),
        });
        let accepted = line.clone();
        Self { listener: Listener::start(move |client| forward(client, accepted.clone())).await, line }
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.listener.address
    }

    /// Ends every connection there is and sends new ones away until [`heal`](Self::heal).
    pub fn refuse(&self) {
        self.line.state.send_modify(|state| {
            state.cuts += 1;
            state.traffic = Traffic::Refused;
        });
    }

    /// Holds back every byte in both directions, without closing the connection, until [`heal`](Self::heal).
    pub fn freeze(&self) {
        self.line.state.send_modify(|state| state.traffic = Traffic::Frozen);
    }

    /// Lets everything pass again.
    pub fn heal(&self) {
        self.line.state.send_modify(|state| state.traffic = Traffic::Flows);
    }

    /// Waits for a request that holds `request`, lets the server have it, and cuts its connection as soon as the
    /// server responds: the client never learns the outcome. Happens once.
    pub fn lose_the_response_to(&self, request: impl Into<Vec<u8>>) {
        *self.line.doomed.lock().expect("no panic while it was held") = Some(request.into());
    }

    /// The number of responses that were lost by [`lose_the_response_to`](Self::lose_the_response_to).
    pub fn lost_responses(&self) -> usize {
        *self.line.lost_responses.borrow()
    }
}

/// Forwards one connection until one side ends it or it is cut.
async fn forward(client: TcpStream, line: Arc<Line>) {
    let mut state = line.state.subscribe();
    let State { traffic, cuts: born } = *state.borrow();
    if traffic == Traffic::Refused {
        return;
    }
    let both_ways = async {
        passable(&line).await;
        let server = TcpStream::connect(line.upstream).await?;
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        // Whether the response that comes next is to be lost.
        let doomed = AtomicBool::new(false);
        tokio::select! {
            end = requests(from_client, to_server, &line, &doomed) => end,
            end = responses(from_server, to_client, &line, &doomed) => end,
        }
    };
    tokio::select! {
        // The other side sees its connection end, whichever side ended it.
        _ = both_ways => {}
        _ = state.wait_for(|state| state.cuts != born) => {}
    }
}

async fn requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    line: &Line,
    doomed: &AtomicBool,
) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    // What was sent before, as far as it may be the start of the request that is waited for.
    let mut recent = Vec::new();
    loop {
        let count = from.read(&mut chunk).await?;
        if count == 0 {
            return Ok(());
        }
        recent.extend_from_slice(&chunk[..count]);
        let hit = line.is_doomed(&recent);
        recent.drain(..recent.len().saturating_sub(CHUNK));
        passable(line).await;
        to.write_all(&chunk[..count]).await?;
        if hit {
            // Not earlier: the server must have the request. Not missed: this task also forwards the responses.
            doomed.store(true, Ordering::Relaxed);
        }
    }
}

async fn responses(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    line: &Line,
    doomed: &AtomicBool,
) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    loop {
        let count = from.read(&mut chunk).await?;
        if count == 0 {
            return Ok(());
        }
        if doomed.load(Ordering::Relaxed) {
            line.lost_responses.send_modify(|count| *count += 1);
            return Ok(());
        }
        passable(line).await;
        to.write_all(&chunk[..count]).await?;
    }
}

async fn passable(line: &Line) {
    let mut state = line.state.subscribe();
    // The sender lives as long as the line, so the wait ends only when traffic flows.
    let _ = state.wait_for(|state| state.traffic == Traffic::Flows).await;
}

impl Line {
    /// Whether `sent` ends the wait for the request whose response is to be lost.
    fn is_doomed(&self, sent: &[u8]) -> bool {
        let mut doomed = self.doomed.lock().expect("no panic while it was held");
        let hit =
            doomed.as_ref().is_some_and(|request| sent.windows(request.len()).any(|part| part == request));
        if hit {
            *doomed = None;
        }
        hit
    }
}

/// Forwards connections to one server as if it were far away: every byte arrives later. Ends with all its connections
/// when dropped.
#[derive(Debug)]
pub struct DelayProxy {
    listener: Listener,
}

impl DelayProxy {
    /// Listens on a free port of the loopback address. Bytes take `delay` in each direction.
    pub async fn start(upstream: SocketAddr, delay: Duration) -> Self {
        Self { listener: Listener::start(move |client| forward_late(client, upstream, delay)).await }
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.listener.address
    }
}

async fn forward_late(client: TcpStream, upstream: SocketAddr, delay: Duration) -> io::Result<()> {
    let server = TcpStream::connect(upstream).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        end = late(from_client, to_server, delay) => end,
        end = late(from_server, to_client, delay) => end,
    }
}

async fn late(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, delay: Duration) -> io::Result<()> {
    let (sender, mut travelling) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let receive = async {
        loop {
            let mut chunk = vec![0; CHUNK];
            let count = from.read(&mut chunk).await?;
            chunk.truncate(count);
            if count == 0 || sender.send((Instant::now() + delay, chunk)).is_err() {
                return Ok(());
            }
        }
    };
    let deliver = async {
        while let Some((due, chunk)) = travelling.recv().await {
            time::sleep_until(due).await;
            to.write_all(&chunk).await?;
        }
        Ok(())
    };
    tokio::select! { end = receive => end, end = deliver => end }
}
