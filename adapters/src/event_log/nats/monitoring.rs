//! The monitoring of a NATS server, as far as we need it: its name and how it syncs.

use std::{fmt, io, time::Duration};

use serde::Deserialize;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time,
};

const PATIENCE: Duration = Duration::from_secs(2);
/// Monitoring pages are a few kilobytes; what is longer is something else.
const PAGE_MAX: u64 = 1024 * 1024;

/// When a server brings what it stored to disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SyncSetting {
    /// Before it acknowledges.
    Always,
    /// So often, whatever it acknowledged meanwhile.
    Every(Duration),
}

impl fmt::Display for SyncSetting {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Always => formatter.write_str("before it acknowledges"),
            Self::Every(interval) => write!(formatter, "every {interval:?}"),
        }
    }
}

#[derive(Deserialize)]
struct Varz {
    server_name: String,
    jetstream: JetStream,
}

#[derive(Deserialize)]
struct JetStream {
    config: Config,
}

#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    sync_always: bool,
    /// In nanoseconds.
    #[serde(default)]
    sync_interval: u64,
}

/// The name and the setting of the server whose monitoring listens on `host`, together with the host.
pub(super) async fn ask(host: String) -> (String, io::Result<(String, SyncSetting)>) {
    let answer = match time::timeout(PATIENCE, get(&host, "/varz")).await {
        Ok(page) => page.and_then(|page| understand(&page)),
        Err(late) => Err(late.into()),
    };
    (host, answer)
}

fn understand(page: &str) -> io::Result<(String, SyncSetting)> {
    let body = page.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let Varz { server_name, jetstream: JetStream { config } } =
        serde_json::from_str(body).map_err(io::Error::other)?;
    let setting = if config.sync_always {
        SyncSetting::Always
    } else {
        SyncSetting::Every(Duration::from_nanos(config.sync_interval))
    };
    Ok((server_name, setting))
}

/// One plain request: version 1.0, so that the answer ends with the connection.
async fn get(host: &str, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(host).await?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n").as_bytes()).await?;
    let mut page = String::new();
    stream.take(PAGE_MAX).read_to_string(&mut page).await?;
    Ok(page)
}
