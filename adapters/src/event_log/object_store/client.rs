//! The HTTP client of the object store: hyper with rustls, like every other client of petstore. An error response
//! becomes a [`Rejection`], because the library keeps the status of a response only as text.

use std::{error::Error, io, iter, time::Duration};

use async_trait::async_trait;
use http_body_util::{BodyExt as _, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector as TcpConnector},
    rt::TokioExecutor,
};
use object_store::{
    ClientConfigKey, ClientOptions,
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse,
        HttpResponseBody, HttpService,
    },
};
use thiserror::Error;

use crate::root_certificates;

/// How long a TCP connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The maximum size of an object or listing that is read, in bytes. A segment of the largest objects is smaller.
pub(super) const OBJECT_MAX: usize = 16 * 1024 * 1024;
/// How much is received at a time, in bytes. hyper may parse interim responses (1xx) from 128 full buffers before it
/// yields, and no timeout fires until then.
const BUFFER_BYTES: usize = 64 * 1024;
/// The maximum size of an error response, in bytes. Only its code is used.
const REPORT_MAX: usize = 64 * 1024;
/// The maximum length of a code or of the name of an element in a message.
const NAME_MAX: usize = 64;

/// An error response, or a response to a listing that is something else.
#[derive(Debug, Error)]
#[error("{status} {}", if code.is_empty() { "without an error code" } else { code })]
pub(super) struct Rejection {
    pub(super) status: u16,
    /// The code in its body, for example `NoSuchBucket`, or the name of its root element if it reports success. Empty if
    /// there is none.
    pub(super) code: String,
}

/// Finds the cause of this type in an error.
pub(super) fn cause<'e, T: Error + 'static>(error: &'e (dyn Error + 'static)) -> Option<&'e T> {
    causes(error).find_map(|error| error.downcast_ref())
}

/// The text of the innermost cause. The outer texts repeat the URL.
pub(super) fn innermost(error: &(dyn Error + 'static)) -> String {
    causes(error).last().map(ToString::to_string).unwrap_or_default()
}

fn causes<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    iter::successors(Some(error), |&error| error.source())
}

/// Creates the clients of the object store and of the services that issue credentials.
#[derive(Debug)]
pub(super) struct Connector;

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let tls = root_certificates::client(None).map_err(|reason| object_store::Error::Generic {
            store: "S3",
            source: Box::new(io::Error::other(reason)),
        })?;
        let builder = HttpsConnectorBuilder::new().with_tls_config(tls);
        let allows_http =
            options.get_config_value(&ClientConfigKey::AllowHttp).is_some_and(|value| value == "true");
        let builder = if allows_http { builder.https_or_http() } else { builder.https_only() };
        let mut tcp = TcpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let connector = builder.enable_http1().wrap_connector(tcp);
        let mut client = Client::builder(TokioExecutor::new());
        client.http1_max_buf_size(BUFFER_BYTES);
        Ok(HttpClient::new(HyperClient(client.build(connector))))
    }
}

#[derive(Debug)]
struct HyperClient(Client<HttpsConnector<TcpConnector>, HttpRequestBody>);

#[async_trait]
impl HttpService for HyperClient {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let is_listing = request.uri().query().is_some_and(|query| query.contains("list-type=2"));
        let response = self.0.request(request).await.map_err(|error| {
            let kind = if error.is_connect() { HttpErrorKind::Connect } else { HttpErrorKind::Unknown };
            HttpError::new(kind, error)
        })?;
        let (parts, body) = response.into_parts();
        if parts.status.is_success() && !is_listing {
            let body = Limited::new(body, OBJECT_MAX).map_err(interrupted);
            return Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(body)));
        }
        let most = if parts.status.is_success() { OBJECT_MAX } else { REPORT_MAX };
        let body = Limited::new(body, most).collect().await.map_err(interrupted)?.to_bytes();
        let status = parts.status.as_u16();
        let code = if parts.status.is_success() { root_element(&body).to_owned() } else { code(&body) };
        match (status, &*code) {
            // To the library, any XML is a listing. It has its own errors for a missing object, and for one that exists.
            (200..300, "ListBucketResult") | (404, "NoSuchKey") | (409 | 412, _) => {
                Ok(HttpResponse::from_parts(parts, HttpResponseBody::from(body)))
            }
            _ => Err(HttpError::new(HttpErrorKind::Unknown, Rejection { status, code })),
        }
    }
}

/// The error of a response that was cut off or is too long.
fn interrupted(error: Box<dyn Error + Send + Sync>) -> HttpError {
    HttpError::new_boxed(HttpErrorKind::Interrupted, error)
}

/// The code in an error response, which is a word. Empty if there is none.
fn code(report: &[u8]) -> String {
    let report = String::from_utf8_lossy(report);
    let code = report.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>"));
    let is_word =
        |code: &&str| code.len() <= NAME_MAX && code.bytes().all(|byte| byte.is_ascii_alphanumeric());
    code.map(|(code, _)| code).filter(is_word).unwrap_or_default().to_owned()
}

/// The name of the first element of an XML document. Empty if it has none, or a long one.
fn root_element(document: &[u8]) -> &str {
    let is_letter = |byte: &u8| byte.is_ascii_alphanumeric();
    let mut tags = document.split(|byte| *byte == b'<').skip(1);
    let root = tags.find(|tag| tag.first().is_some_and(is_letter)).unwrap_or_default();
    let name = root.split(|byte| !is_letter(byte)).next().unwrap_or_default();
    if name.len() <= NAME_MAX { str::from_utf8(name).unwrap_or_default() } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_code_of_an_error_response_is_kept() {
        let report =
            "<?xml version=\"1.0\"?><Error><Code>NoSuchBucket</Code><BucketName>b</BucketName></Error>";
        assert_eq!(code(report.as_bytes()), "NoSuchBucket");
        for report in ["", "<Code></Code>", "<Code>a b</Code>", "<Code>AccessDenied"] {
            assert_eq!(code(report.as_bytes()), "", "{report}");
        }
    }

    #[test]
    fn the_root_element_says_what_a_document_is() {
        for (document, root) in [
            ("<?xml version=\"1.0\"?>\n<ListBucketResult xmlns=\"x\"><Name>b</Name>", "ListBucketResult"),
            ("<!DOCTYPE html><html/>", "html"),
            ("", ""),
            ("OK", ""),
        ] {
            assert_eq!(root_element(document.as_bytes()), root, "{document}");
        }
    }
}
