//! Asks the monitoring endpoint of a NATS server for the server's name and how it syncs.

use std::{fmt, io, time::Duration};

use serde::Deserialize;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time,
};

const TIMEOUT: Duration = Duration::from_secs(2);
/// Monitoring pages take a few kilobytes; anything longer is something else.
const PAGE_MAX: u64 = 1024 * 1024;

/// When a server syncs what it stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SyncSetting {
    /// Before it acknowledges.
    Always,
    /// At this interval, whatever it has acknowledged in between.
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

/// Asks the monitoring endpoint at `host`, and returns the host with the server's name and setting.
pub(super) async fn ask(host: String) -> (String, io::Result<(String, SyncSetting)>) {
    let answer = match time::timeout(TIMEOUT, get(&host, "/varz")).await {
        Ok(page) => page.and_then(|page| parse(&page)),
        Err(elapsed) => Err(elapsed.into()),
    };
    (host, answer)
}

fn parse(page: &str) -> io::Result<(String, SyncSetting)> {
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

/// Sends one HTTP/1.0 request, so that the response ends with the connection.
async fn get(host: &str, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(host).await?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n").as_bytes()).await?;
    let mut page = String::new();
    stream.take(PAGE_MAX).read_to_string(&mut page).await?;
    Ok(page)
}
