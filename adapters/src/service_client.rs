//! A small HTTP client: one request per connection, plain or over TLS, with a streamed response. The server is not
//! trusted.

use std::{error, fmt, io, path::Path, str::FromStr, sync::Arc, time::Duration};

use application::ports::{Fault, LogError};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::{
    Request, Response,
    body::Incoming,
    client::conn::http1,
    header::{AUTHORIZATION, HOST, HeaderValue},
};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::{net::TcpStream, time};
use tokio_rustls::TlsConnector;
use tokio_util::either::Either;

use crate::root_certificates;

/// How long connecting and receiving the response headers may take, and then a short body.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum size of the response headers, in bytes and in lines. At most as many bytes of a body are buffered. The
/// limit is small because hyper may parse interim responses (1xx) from 128 full buffers before it yields, and no timeout fires until then.
const HEADERS_BYTES_MAX: usize = 16 * 1024;
const HEADERS_MAX: usize = 100;

/// The URL of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceUrl {
    uses_tls: bool,
    /// Host and port.
    authority: String,
    /// Whether the operator trusts the network (`?tls=off`).
    waived: bool,
}

impl FromStr for ServiceUrl {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let rule = "expected http://HOST:PORT or https://HOST:PORT, for example http://127.0.0.1:8080";
        let (uses_tls, rest) = match text.split_once("://") {
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            Some(_) | None => return Err(rule),
        };
        let (rest, waived) = match rest.strip_suffix("?tls=off") {
            Some(rest) if !uses_tls => (rest, true),
            Some(_) | None => (rest, false),
        };
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
        let port = authority.rsplit_once(':').map(|(host, port)| (!host.is_empty(), port.parse::<u16>()));
        if matches!(port, Some((true, Ok(_)))) && authority.chars().all(is_plain) {
            Ok(Self { uses_tls, authority: authority.to_owned(), waived })
        } else {
            Err(rule)
        }
    }
}

impl fmt::Display for ServiceUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.uses_tls { "https" } else { "http" };
        write!(formatter, "{scheme}://{}", self.authority)
    }
}

impl ServiceUrl {
    /// The host alone.
    pub fn host(&self) -> &str {
        self.authority.rsplit_once(':').map_or("", |(host, _)| host)
    }

    /// Whether requests are encrypted, or need not be encrypted.
    pub fn is_protected(&self) -> bool {
        self.uses_tls || self.waived
    }
}

/// Sends requests to one service. An error is [`Fault::Unreachable`] if a retry may succeed, and otherwise
/// [`Fault::CannotOpen`].
#[derive(Clone)]
pub struct ServiceClient {
    url: ServiceUrl,
    tls: Option<TlsConnector>,
    /// How the user of the client passes a private CA.
    ca_option: &'static str,
    key: Option<HeaderValue>,
}

impl ServiceClient {
    /// Creates a client for this service. For https it trusts the certificates in `ca`, or those of the system.
    /// `ca_option` is how to pass that file, for messages.
    pub fn new(url: ServiceUrl, ca: Option<&Path>, ca_option: &'static str) -> Result<Self, LogError> {
        let config = url.uses_tls.then(|| root_certificates::client(ca)).transpose();
        let tls = config
            .map_err(|error| Fault::CannotOpen.error(error))?
            .map(|config| TlsConnector::from(Arc::new(config)));
        Ok(Self { url, tls, ca_option, key: None })
    }

    /// Sends this API key with every request.
    pub fn with_key(self, key: &str) -> Result<Self, LogError> {
        let key = key.trim();
        if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Fault::CannotOpen.error("the API key must be a single word of visible characters"));
        }
        let key =
            HeaderValue::try_from(format!("Bearer {key}")).expect("visible characters are a header value");
        Ok(Self { key: Some(key), ..self })
    }

    /// The URL of the service.
    pub fn url(&self) -> &ServiceUrl {
        &self.url
    }

    /// Sends a request without a body. A redirect is an error: it could lead the API key to another server.
    pub async fn send(&self, method: &str, path: &str) -> Result<Response<Incoming>, LogError> {
        let sent = time::timeout(RESPONSE_TIMEOUT, Box::pin(self.exchange(method, path))).await;
        let response = sent.map_err(|_| late("no response"))??;
        if response.status().is_redirection() {
            let detail =
                "the response is a redirect, which is not followed: use the URL of the service itself";
            return Err(Fault::CannotOpen.error(detail));
        }
        Ok(response)
    }

    async fn exchange(&self, method: &str, path: &str) -> Result<Response<Incoming>, LogError> {
        let authority = &self.url.authority;
        let mut request = Request::builder().method(method).uri(path).header(HOST, authority);
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, key);
        }
        let request =
            request.body(Empty::<Bytes>::new()).expect("methods, paths and hosts of ours make a request");
        let stream = TcpStream::connect(authority).await;
        let stream = stream.map_err(|error| {
            Fault::Unreachable
                .error(format!("cannot connect: {error}; check the URL, and that the service is running"))
        })?;
        let (stream, hint) = match &self.tls {
            // A service that expects TLS sends an alert or closes the connection.
            None => (Either::Left(stream), "if the service uses TLS, use https:// instead of http://"),
            Some(tls) => {
                let host = self.url.host();
                let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned());
                let name = name.map_err(|_| {
                    Fault::CannotOpen.error(format!("{host} is not a name that a certificate can have"))
                })?;
                let stream = tls.connect(name, stream).await;
                let stream = stream.map_err(|error| no_tls(&error, self.ca_option))?;
                (Either::Right(stream), "check the URL and the service")
            }
        };
        let mut client = http1::Builder::new();
        client.max_buf_size(HEADERS_BYTES_MAX).max_headers(HEADERS_MAX);
        let response = async {
            let (mut sender, connection) = client.handshake(TokioIo::new(stream)).await?;
            // The connection ends when the response has been read or dropped. Its errors also appear in the response.
            tokio::spawn(connection);
            sender.send_request(request).await
        };
        response.await.map_err(|error| no_response(&error, hint))
    }
}

/// Reads the body of a response as text of at most `bytes_max` bytes.
pub async fn text(response: Response<Incoming>, bytes_max: usize) -> Result<String, LogError> {
    let body = Limited::new(response.into_body(), bytes_max).collect();
    let body = time::timeout(RESPONSE_TIMEOUT, body).await.map_err(|_| late("no complete response"))?;
    let body = body.map_err(|error| cut_off(&*error))?.to_bytes();
    Ok(String::from_utf8_lossy(&body).into_owned())
}

/// Maps the error of a request. The hint says what to do if the response is not HTTP.
fn no_response(error: &hyper::Error, hint: &str) -> LogError {
    if error.is_parse_too_large() {
        Fault::CannotOpen.error("the response headers are too large: check the URL and the service")
    } else if error.is_parse() {
        Fault::CannotOpen.error(format!("the response is not HTTP; {hint}"))
    } else if error.is_incomplete_message() {
        Fault::Unreachable.error(format!("the connection was closed without a response; {hint}"))
    } else {
        cut_off(error)
    }
}

fn late(what: &str) -> LogError {
    Fault::Unreachable.error(format!("{what} within {RESPONSE_TIMEOUT:?}; check the URL and the service"))
}

fn cut_off(error: &dyn error::Error) -> LogError {
    let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
    Fault::Unreachable
        .error(format!("the response was cut off: {error}{cause}; check the URL and the service"))
}

/// Maps a TLS error. A rejected certificate will be rejected again; any other failure may be temporary.
fn no_tls(error: &io::Error, ca_option: &str) -> LogError {
    if let Some(reason) = root_certificates::rejection(error, ca_option) {
        return Fault::CannotOpen.error(reason);
    }
    if root_certificates::is_without_tls(error) {
        return Fault::CannotOpen.error("the service does not use TLS: use http:// instead of https://");
    }
    Fault::Unreachable.error(format!("cannot make a TLS connection: {error}"))
}
