//! `petstore health`: asks a running service whether it is ready or alive, for scripts and container health checks.

use std::{
    fmt,
    path::{Path, PathBuf},
    process::ExitCode,
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
    time,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::output;

/// The exit code if the service reports that it is not ready or not alive.
const UNHEALTHY: u8 = 1;
/// The exit code if nothing answers, or something that is not a petstore. 2 means wrong usage.
const NO_ANSWER: u8 = 3;
/// How much of a response is read. A report of the service is much shorter.
const RESPONSE_MAX: u64 = 64 * 1024;

#[derive(Debug, Args)]
pub(crate) struct HealthArguments {
    /// Where the service listens: <http://HOST:PORT> or <https://HOST:PORT>. Both listeners answer probes.
    #[arg(env = "PETSTORE_URL", default_value = "http://127.0.0.1:8080")]
    url: ServiceUrl,
    /// What to ask.
    #[arg(long, env = "PETSTORE_PROBE", default_value = "ready")]
    probe: Probe,
    /// File with the certificates (PEM) to trust for https [default: those of the system]
    #[arg(long, env = "PETSTORE_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
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

/// Where a service listens.
#[derive(Debug, Clone)]
struct ServiceUrl {
    scheme: Scheme,
    /// Host and port.
    authority: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
}

impl FromStr for ServiceUrl {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let rule = "expected http://HOST:PORT or https://HOST:PORT, for example http://127.0.0.1:8080";
        let (scheme, rest) = match text.split_once("://") {
            Some(("http", rest)) => (Scheme::Http, rest),
            Some(("https", rest)) => (Scheme::Https, rest),
            Some(_) | None => return Err(rule),
        };
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
        let port = authority.rsplit_once(':').map(|(host, port)| (!host.is_empty(), port.parse::<u16>()));
        if matches!(port, Some((true, Ok(_)))) && authority.chars().all(is_plain) {
            Ok(Self { scheme, authority: authority.to_owned() })
        } else {
            Err(rule)
        }
    }
}

impl fmt::Display for ServiceUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.scheme {
            Scheme::Http => "http",
            Scheme::Https => "https",
        };
        write!(formatter, "{scheme}://{}", self.authority)
    }
}

/// Prints the report of the service. The exit code is 0 if it is healthy.
#[tokio::main(flavor = "current_thread")]
pub(crate) async fn run(arguments: HealthArguments) -> ExitCode {
    let HealthArguments { url, probe, ca, timeout } = arguments;
    let asked = time::timeout(timeout, ask(&url, probe, ca.as_deref())).await;
    match asked.with_context(|| format!("no response within {timeout:?}")).flatten() {
        Ok((status, report)) => {
            output::print_line(report);
            if status == 200 { ExitCode::SUCCESS } else { UNHEALTHY.into() }
        }
        Err(error) => {
            output::print_error(format_args!("petstore: {url}: {error:#}"));
            NO_ANSWER.into()
        }
    }
}

/// Makes the TLS connection to a host whose certificate is trusted.
async fn encrypt(stream: TcpStream, host: &str, ca: Option<&Path>) -> anyhow::Result<TlsStream<TcpStream>> {
    let certificates = match ca {
        Some(file) => CertificateDer::pem_file_iter(file)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .with_context(|| format!("{} holds no usable certificates", file.display()))?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates);
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let host = ServerName::try_from(host.trim_matches(['[', ']']).to_owned())?;
    let made = TlsConnector::from(Arc::new(config)).connect(host, stream).await;
    made.context("cannot make a TLS connection; --ca names a file with a private authority")
}

/// The status code, and the report without control characters, since anything may be listening there.
async fn ask(url: &ServiceUrl, probe: Probe, ca: Option<&Path>) -> anyhow::Result<(u16, String)> {
    let ServiceUrl { scheme, authority } = url;
    let path = match probe {
        Probe::Ready => "/readyz",
        Probe::Live => "/livez",
    };
    let stream = TcpStream::connect(authority).await.context("cannot connect")?;
    // In HTTP/1.0 a response has no chunks and ends with the connection.
    let request = format!("GET {path} HTTP/1.0\r\nHost: {authority}\r\n\r\n");
    let response = match scheme {
        Scheme::Http => exchange(stream, &request).await?,
        Scheme::Https => {
            let host = authority.rsplit_once(':').map_or("", |(host, _)| host);
            exchange(encrypt(stream, host, ca).await?, &request).await?
        }
    };
    let response = String::from_utf8_lossy(&response);
    let (head, body) = response.split_once("\r\n\r\n").context("the response is not HTTP")?;
    let status = head.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1)?.parse().ok());
    let is_report = body.starts_with("{\"status\":\"");
    match status {
        Some(status @ (200 | 503)) if is_report => Ok((status, body.replace(char::is_control, " "))),
        _ => bail!("the response is not a report of petstore"),
    }
}

/// Sends the request, and reads the response up to the end of the connection.
async fn exchange(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &str) -> anyhow::Result<Vec<u8>> {
    stream.write_all(request.as_bytes()).await.context("cannot send the request")?;
    let mut response = Vec::new();
    stream.take(RESPONSE_MAX).read_to_end(&mut response).await.context("the response was cut off")?;
    Ok(response)
}
