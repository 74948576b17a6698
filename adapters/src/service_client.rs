//! A small HTTP client for a running petstore: one request per connection, plain or over TLS, and the response as it comes.

use std::{fmt, io, path::Path, pin::Pin, str::FromStr, sync::Arc, time::Duration};

use rustls::{
    ClientConfig, InvalidMessage, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use thiserror::Error;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader},
    net::TcpStream,
    time,
};
use tokio_rustls::TlsConnector;

/// How long a connection and the head of a response may take.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// How many bytes the head of a response may have.
const HEAD_MAX: u64 = 64 * 1024;
/// How much of a response is read ahead.
const BUFFER: usize = 256 * 1024;
/// The first byte of an alert in TLS.
const TLS_ALERT: u8 = 21;

/// Where a service listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceUrl {
    scheme: Scheme,
    /// Host and port.
    authority: String,
    /// Whether somebody says that the network can be trusted (`?tls=off`).
    waived: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
}

/// Why there is no response, named by what the caller can do.
#[derive(Debug, Error)]
pub enum ClientError {
    /// Nobody answers, or not for now: try again later.
    #[error("{0}")]
    Unreachable(String),
    /// The same request will fail again.
    #[error("{0}")]
    Unusable(String),
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
        let (rest, waived) = match rest.strip_suffix("?tls=off") {
            Some(rest) if scheme == Scheme::Http => (rest, true),
            Some(_) | None => (rest, false),
        };
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
        let port = authority.rsplit_once(':').map(|(host, port)| (!host.is_empty(), port.parse::<u16>()));
        if matches!(port, Some((true, Ok(_)))) && authority.chars().all(is_plain) {
            Ok(Self { scheme, authority: authority.to_owned(), waived })
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

impl ServiceUrl {
    /// The host alone.
    pub fn host(&self) -> &str {
        self.authority.rsplit_once(':').map_or("", |(host, _)| host)
    }

    /// Whether what is sent there is encrypted, or somebody says that it need not be.
    pub fn is_protected(&self) -> bool {
        self.scheme == Scheme::Https || self.waived
    }
}

/// Sends requests to one service.
#[derive(Clone)]
pub struct Client {
    url: ServiceUrl,
    tls: Option<TlsConnector>,
    key: Option<String>,
}

/// A response whose body is still to be read.
pub struct Response {
    /// The status code.
    pub status: u16,
    head: String,
    /// Whether only the service itself can have ended a body: TLS tells the end from a cut connection.
    pub end_is_proven: bool,
    /// The body, which ends with the connection.
    pub body: BufReader<Pin<Box<dyn AsyncRead + Send>>>,
}

impl Client {
    /// A client for this service. For https it trusts the certificates in `ca`, or those that the system trusts.
    pub fn new(url: ServiceUrl, ca: Option<&Path>) -> Result<Self, ClientError> {
        let tls = match url.scheme {
            Scheme::Http => None,
            Scheme::Https => Some(connector(ca)?),
        };
        Ok(Self { url, tls, key: None })
    }

    /// The same client, which presents this API key.
    pub fn with_key(self, key: &str) -> Result<Self, ClientError> {
        let key = key.trim();
        if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(ClientError::Unusable("an API key is one word of visible characters".into()));
        }
        Ok(Self { key: Some(key.to_owned()), ..self })
    }

    /// Where the service is.
    pub fn url(&self) -> &ServiceUrl {
        &self.url
    }

    /// Sends a request without a body. In HTTP/1.0 the response has no chunks and ends with the connection.
    pub async fn send(&self, method: &str, path: &str) -> Result<Response, ClientError> {
        let asked = time::timeout(RESPONSE_TIMEOUT, self.ask(method, path)).await;
        asked.map_err(|_| ClientError::Unreachable(format!("no response within {RESPONSE_TIMEOUT:?}")))?
    }

    async fn ask(&self, method: &str, path: &str) -> Result<Response, ClientError> {
        let authority = &self.url.authority;
        let key = self.key.as_ref().map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
        let request = format!("{method} {path} HTTP/1.0\r\nHost: {authority}\r\n{key}\r\n");
        let stream = TcpStream::connect(authority).await.map_err(unreachable("cannot connect"))?;
        match &self.tls {
            None => exchange(stream, &request).await,
            Some(tls) => {
                let host = self.url.host().trim_matches(['[', ']']).to_owned();
                let host = ServerName::try_from(host).map_err(|_| {
                    ClientError::Unusable(format!(
                        "{} is not a name that a certificate can have",
                        self.url.host()
                    ))
                })?;
                let stream = tls.connect(host, stream).await.map_err(|error| no_tls(&error))?;
                exchange(stream, &request).await.map(|response| Response { end_is_proven: true, ..response })
            }
        }
    }
}

impl Response {
    /// The value of a header, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let fields = self.head.lines().filter_map(|line| line.split_once(':'));
        fields.filter(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).next()
    }

    /// The body as text, up to so many bytes.
    pub async fn text(self, bytes_max: u64) -> Result<String, ClientError> {
        let mut body = Vec::new();
        let read = self.body.take(bytes_max).read_to_end(&mut body).await;
        read.map_err(unreachable("the response was cut off"))?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }
}

/// Makes TLS connections to hosts whose certificate is trusted.
fn connector(ca: Option<&Path>) -> Result<TlsConnector, ClientError> {
    let certificates = match ca {
        Some(file) => CertificateDer::pem_file_iter(file)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| error.to_string())
            .and_then(
                |found| if found.is_empty() { Err("there is none in it (PEM)".into()) } else { Ok(found) },
            )
            .map_err(|error| {
                ClientError::Unusable(format!("--ca {} holds no usable certificate: {error}", file.display()))
            })?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates);
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider supports the default versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Sends the request, and reads the head of the response.
async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: &str,
) -> Result<Response, ClientError> {
    stream.write_all(request.as_bytes()).await.map_err(unreachable("cannot send the request"))?;
    let stream: Pin<Box<dyn AsyncRead + Send>> = Box::pin(stream);
    let mut body = BufReader::with_capacity(BUFFER, stream);
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let room = HEAD_MAX.saturating_sub(head.len() as u64);
        let read = (&mut body).take(room).read_until(b'\n', &mut head).await;
        if read.map_err(unreachable("the response was cut off"))? == 0 {
            return Err(no_http(&head));
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let status = head.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1)?.parse().ok());
    let status = status.ok_or_else(|| no_http(head.as_bytes()))?;
    Ok(Response { status, head, end_is_proven: false, body })
}

fn unreachable(what: &'static str) -> impl Fn(io::Error) -> ClientError {
    move |error| ClientError::Unreachable(format!("{what}: {error}"))
}

/// The answer to a request was something else. A service that speaks TLS sends an alert to those that do not.
fn no_http(received: &[u8]) -> ClientError {
    match received {
        [TLS_ALERT, ..] => {
            ClientError::Unusable("the service speaks TLS: use https:// instead of http://".into())
        }
        [] => ClientError::Unreachable(
            "the connection was closed without a response; if the service speaks TLS, use https://".into(),
        ),
        _ => ClientError::Unreachable("the response is not HTTP".into()),
    }
}

/// A certificate that is not trusted now will not be trusted the next time; any other failure may pass.
fn no_tls(error: &io::Error) -> ClientError {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    let message =
        format!("cannot make a TLS connection; --ca names a file with a private authority: {error}");
    match inner {
        Some(rustls::Error::InvalidCertificate(_)) => ClientError::Unusable(message),
        Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
            ClientError::Unusable("the service does not speak TLS: use http:// instead of https://".into())
        }
        Some(_) | None => ClientError::Unreachable(message),
    }
}
