//! A proxy between an HTTP client and its server that disturbs the requests that create something, in exactly the way a
//! test asks for.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::watch,
    task, time,
};

use crate::{Gateway, proxy::Listener};

const HEAD_END: &[u8] = b"\r\n\r\n";

/// What happens to a PUT request.
#[derive(Debug, Clone, Copy)]
pub enum PutFault {
    /// The server never gets it, and the client gets no response.
    LoseRequest,
    /// The server gets it, but the client gets no response.
    LoseResponse,
    /// The server gets it twice; the client gets the second response.
    Repeat,
    /// The server gets it so much later, even if the client has given up.
    Delay(Duration),
    /// The server gets it, but the client gets status 500.
    HideResponse,
    /// The server never gets it, and the client gets status 503.
    Reject,
    /// The server never gets it, and the client gets status 409, as from a conflict of two requests.
    Conflict,
    /// It is stored without its condition, if there was no object shortly before. The first two requests check before
    /// either of them is stored. Works for the shared gateway only, which has to accept the changed request.
    CheckFirst,
}

/// Forwards requests to one server. Ends with all its connections when dropped.
#[derive(Debug)]
pub struct HttpProxy {
    listener: Listener,
    line: Arc<Line>,
}

#[derive(Debug)]
struct Line {
    upstream: SocketAddr,
    /// The fault, and how many requests it still disturbs.
    fault: Mutex<(Option<PutFault>, usize)>,
    requests: AtomicUsize,
    disturbed: AtomicUsize,
    /// How often [`PutFault::CheckFirst`] has found no object.
    checks: watch::Sender<usize>,
}

impl HttpProxy {
    /// Listens on a free port of the loopback address and forwards to `upstream`.
    pub async fn start(upstream: SocketAddr) -> Self {
        let line = Arc::new(Line {
            upstream,
            fault: Mutex::new((None, 0)),
            requests: AtomicUsize::new(0),
            disturbed: AtomicUsize::new(0),
            checks: watch::Sender::default(),
        });
        let accepted = line.clone();
        Self { listener: Listener::start(move |client| forward(client, accepted.clone())).await, line }
    }

    /// The endpoint for clients.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.listener.address)
    }

    /// Disturbs the next PUT requests.
    pub fn disturb(&self, fault: PutFault, requests: usize) {
        *self.line.fault.lock() = (Some(fault), requests);
    }

    /// Disturbs no more requests.
    pub fn heal(&self) {
        *self.line.fault.lock() = (None, 0);
    }

    /// The number of requests.
    pub fn requests(&self) -> usize {
        self.line.requests.load(Ordering::Relaxed)
    }

    /// The number of requests that were disturbed.
    pub fn disturbed(&self) -> usize {
        self.line.disturbed.load(Ordering::Relaxed)
    }
}

impl Line {
    fn next_fault(&self, request: &[u8]) -> Option<PutFault> {
        let mut fault = self.fault.lock();
        if fault.1 == 0 || !request.starts_with(b"PUT ") {
            return None;
        }
        fault.1 -= 1;
        self.disturbed.fetch_add(1, Ordering::Relaxed);
        fault.0
    }

    /// Sends a request over a new connection, and returns the whole response.
    async fn exchange(&self, request: &[u8]) -> io::Result<Vec<u8>> {
        let mut server = TcpStream::connect(self.upstream).await?;
        server.write_all(request).await?;
        let mut response = Vec::new();
        server.read_to_end(&mut response).await?;
        Ok(response)
    }

    async fn check_first(&self, request: Vec<u8>) -> Vec<u8> {
        let head = head_of(&request).expect("a request that was received has a head");
        let line = String::from_utf8_lossy(&request[..head]).into_owned();
        let path =
            line.split([' ', '/']).skip(2).take_while(|part| *part != "HTTP").collect::<Vec<_>>().join("/");
        let checked = path.clone();
        let checking = task::spawn_blocking(move || Gateway::shared().has(&checked));
        if checking.await.expect("the gateway is running") {
            return error(412, "PreconditionFailed");
        }
        self.checks.send_modify(|checks| *checks += 1);
        let two = self.checks.subscribe().wait_for(|checks| *checks >= 2).await.map(drop);
        two.expect("the proxy is running");
        let storing = task::spawn_blocking(move || {
            Gateway::shared().request("PUT", &path, Some(&request[head + HEAD_END.len()..]));
        });
        storing.await.expect("the gateway is running");
        b"HTTP/1.1 200 OK\r\netag: \"0\"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_vec()
    }
}

/// Forwards one request, and closes the connection.
async fn forward(mut client: TcpStream, line: Arc<Line>) -> io::Result<()> {
    let Some(request) = receive(&mut client).await? else { return Ok(()) };
    line.requests.fetch_add(1, Ordering::Relaxed);
    let response = match line.next_fault(&request) {
        None => line.exchange(&request).await?,
        Some(PutFault::LoseRequest) => return Ok(()),
        Some(PutFault::LoseResponse) => {
            line.exchange(&request).await?;
            return Ok(());
        }
        Some(PutFault::Repeat) => {
            line.exchange(&request).await?;
            line.exchange(&request).await?
        }
        Some(PutFault::Delay(delay)) => {
            time::sleep(delay).await;
            line.exchange(&request).await?
        }
        Some(PutFault::HideResponse) => {
            line.exchange(&request).await?;
            error(500, "InternalError")
        }
        Some(PutFault::Reject) => error(503, "SlowDown"),
        Some(PutFault::Conflict) => error(409, "ConditionalRequestConflict"),
        Some(PutFault::CheckFirst) => line.check_first(request).await,
    };
    client.write_all(&response).await?;
    client.shutdown().await
}

/// Reads a request, and asks the server to close the connection after it.
async fn receive(client: &mut TcpStream) -> io::Result<Option<Vec<u8>>> {
    let mut request = Vec::new();
    loop {
        if let Some(head) = head_of(&request) {
            let text = String::from_utf8_lossy(&request[..head]).to_lowercase();
            let length =
                text.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
            if request.len() >= head + HEAD_END.len() + length.unwrap_or(0) {
                request.splice(head..head, *b"\r\nconnection: close");
                return Ok(Some(request));
            }
        }
        if client.read_buf(&mut request).await? == 0 {
            return Ok(None);
        }
    }
}

/// The length of the head of a request, without its end.
fn head_of(request: &[u8]) -> Option<usize> {
    request.windows(HEAD_END.len()).position(|part| part == HEAD_END)
}

fn error(status: u16, code: &str) -> Vec<u8> {
    let body = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code></Error>");
    let head = format!(
        "HTTP/1.1 {status} {code}\r\ncontent-type: application/xml\r\ncontent-length: {}",
        body.len()
    );
    format!("{head}\r\nconnection: close\r\n\r\n{body}").into_bytes()
}
