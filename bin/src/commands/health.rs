//! `petstore health`: asks a running service whether it is ready or alive, for scripts and container health checks.

use std::{process::ExitCode, str::FromStr, time::Duration};

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time,
};

use crate::output;

/// The exit code if the service reports that it is not ready or not alive.
const UNHEALTHY: u8 = 1;
/// The exit code if nothing answers, or something that is not a petstore. 2 means wrong usage.
const NO_ANSWER: u8 = 3;
/// How much of a response is read. A report of the service is much shorter.
const RESPONSE_MAX: u64 = 64 * 1024;

#[derive(Debug, Args)]
pub(crate) struct HealthArguments {
    /// Where the service listens: <http://HOST:PORT>. Both listeners answer probes.
    #[arg(env = "PETSTORE_URL", default_value = "http://127.0.0.1:8080")]
    url: ServiceUrl,
    /// What to ask.
    #[arg(long, env = "PETSTORE_PROBE", default_value = "ready")]
    probe: Probe,
    /// How long to wait for the whole response.
    #[arg(long, env = "PETSTORE_TIMEOUT", default_value = "5s", value_name = "TIME", value_parser = humantime::parse_duration)]
    timeout: Duration,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Probe {
    /// Whether the service should get requests (/readyz).
    Ready,
    /// Whether the process responds at all (/livez).
    Live,
}

/// Host and port of a service that speaks plain HTTP.
#[derive(Debug, Clone)]
struct ServiceUrl(String);

impl FromStr for ServiceUrl {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let authority = text.strip_prefix("http://").map(|rest| rest.strip_suffix('/').unwrap_or(rest));
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
        let complete = |authority: &&str| {
            let port = authority.rsplit_once(':').map(|(host, port)| (!host.is_empty(), port.parse::<u16>()));
            matches!(port, Some((true, Ok(_)))) && authority.chars().all(is_plain)
        };
        authority
            .filter(complete)
            .map(|authority| Self(authority.to_owned()))
            .ok_or("expected http://HOST:PORT, for example http://127.0.0.1:8080")
    }
}

/// Prints the report of the service. The exit code is 0 if it is healthy.
#[tokio::main(flavor = "current_thread")]
pub(crate) async fn run(arguments: HealthArguments) -> ExitCode {
    let HealthArguments { url: ServiceUrl(authority), probe, timeout } = arguments;
    let asked = time::timeout(timeout, ask(&authority, probe)).await;
    match asked.with_context(|| format!("no response within {timeout:?}")).flatten() {
        Ok((status, report)) => {
            output::print_line(report);
            if status == 200 { ExitCode::SUCCESS } else { UNHEALTHY.into() }
        }
        Err(error) => {
            output::print_error(format_args!("petstore: http://{authority}: {error:#}"));
            NO_ANSWER.into()
        }
    }
}

/// The status code, and the report without control characters, since anything may be listening there.
async fn ask(authority: &str, probe: Probe) -> anyhow::Result<(u16, String)> {
    let path = match probe {
        Probe::Ready => "/readyz",
        Probe::Live => "/livez",
    };
    let mut stream = TcpStream::connect(authority).await.context("cannot connect")?;
    // In HTTP/1.0 a response has no chunks and ends with the connection.
    let request = format!("GET {path} HTTP/1.0\r\nHost: {authority}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.context("cannot send the request")?;
    let mut response = Vec::new();
    stream.take(RESPONSE_MAX).read_to_end(&mut response).await.context("the response was cut off")?;
    let response = String::from_utf8_lossy(&response);
    let (head, body) = response.split_once("\r\n\r\n").context("the response is not HTTP")?;
    let status = head.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1)?.parse().ok());
    let is_report = body.starts_with("{\"status\":\"");
    match status {
        Some(status @ (200 | 503)) if is_report => Ok((status, body.replace(char::is_control, " "))),
        _ => bail!("the response is not a report of petstore"),
    }
}
