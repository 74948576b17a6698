//! An HTTP/2 connection that sends many heads at once. Its frames are written by hand: sending them takes no time, and
//! the test decides what is compressed.

use std::{
    iter,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use axum::body::Bytes;
use tokio::{
    io::{self, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
};

use super::peers::STREAMS;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

// Types and flags of frames (RFC 9113).
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const END_HEADERS: u8 = 4;

// Entries of the static table of HPACK (RFC 7541, Appendix A).
const AUTHORITY: u8 = 1;
const POST: u8 = 3;
const PATH: u8 = 4;
const HTTP: u8 = 6;
const AUTHORIZATION: u8 = 23;
const CONTENT_TYPE: u8 = 31;
const REFERER: u8 = 51;
/// The newest entry of the dynamic table.
const NEWEST: u8 = 62;

/// Everything that a connection sends.
#[derive(Clone)]
pub(in crate::faults) struct Flood(Bytes);

impl Flood {
    /// Creates with heads of 120 bytes.
    pub(in crate::faults) fn of_small_heads(key: &str) -> Self {
        Self::new(&create(key))
    }

    /// Creates with heads of 15.5 KB.
    pub(in crate::faults) fn of_large_heads(key: &str) -> Self {
        Self::new(&[create(key), literal(REFERER, &"x".repeat(15_000))].concat())
    }

    /// Creates with heads of 600 bytes that are 15.5 KB after decompression.
    pub(in crate::faults) fn of_compressed_heads(key: &str) -> Self {
        // A new entry, with the name "x" and an empty value.
        let entry = vec![0x40, 1, b'x', 0];
        Self::new(&[create(key), entry, indexed(NEWEST).repeat(460)].concat())
    }

    /// Without `END_STREAM`, a body is expected, of which no byte is sent.
    fn new(head: &[u8]) -> Self {
        // One setting: the initial window of each stream is 0.
        let settings = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
        let heads = (1..).step_by(2).take(STREAMS).map(|stream| frame(HEADERS, END_HEADERS, stream, head));
        let frames = iter::once(settings).chain(heads).flatten();
        Self(PREFACE.iter().copied().chain(frames).collect())
    }

    /// Sends the heads and discards all responses until the service closes the connection. `done` counts connections
    /// that have sent everything, or were closed before.
    pub(in crate::faults) async fn run(self, address: SocketAddr, done: Arc<AtomicUsize>) {
        let Some(stream) = connect(address).await else { return };
        let (mut receiving, mut sending) = stream.into_split();
        let write = async {
            // Every end is the same to an attacker.
            let _ = sending.write_all(&self.0).await;
            done.fetch_add(1, Relaxed);
        };
        let mut sink = io::sink();
        let _ = tokio::join!(write, io::copy(&mut receiving, &mut sink));
    }
}

async fn connect(address: SocketAddr) -> Option<TcpStream> {
    let socket = TcpSocket::new_v4().unwrap();
    // From the address of the good client, it would compete with new connections of that client.
    socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    socket.connect(address).await.ok()
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

fn create(key: &str) -> Vec<u8> {
    let authorization = literal(AUTHORIZATION, &format!("Bearer {key}"));
    let target = [indexed(POST), indexed(HTTP), literal(AUTHORITY, "a"), literal(PATH, "/v1/pets")].concat();
    [target, authorization, literal(CONTENT_TYPE, "application/json")].concat()
}

fn indexed(entry: u8) -> Vec<u8> {
    vec![0x80 | entry]
}

/// A field whose name is in the static table and whose value is sent as it is.
fn literal(name: u8, value: &str) -> Vec<u8> {
    [integer(15, name.into()), integer(127, value.len()), value.into()].concat()
}

/// A number in the low bits of a byte, and in further bytes if these bits are not enough.
fn integer(max: u8, number: usize) -> Vec<u8> {
    let Some(mut rest) = number.checked_sub(max.into()) else { return vec![u8::try_from(number).unwrap()] };
    let mut bytes = vec![max];
    while rest > 127 {
        bytes.push(u8::try_from(rest % 128).unwrap() | 0x80);
        rest /= 128;
    }
    bytes.push(u8::try_from(rest).unwrap());
    bytes
}
