//! The HTTP client of the object store: hyper with rustls, like every other client of petstore. An error response
//! becomes a [`Rejection`], because the library keeps the status of a response only as text.

use std::{error::Error, fmt, io, iter, time::Duration};

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

use super::bucket::OBJECT_MAX;
use crate::root_certificates;

/// How long a TCP connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The maximum size of an error response, in bytes. Only its code is used.
const REPORT_MAX: usize = 64 * 1024;

/// An error response.
#[derive(Debug, Error)]
#[error("{status} {code}")]
pub(super) struct Rejection {
    pub(super) status: u16,
    /// The code in its body, for example `NoSuchBucket`. Empty if there is none.
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
        Ok(HttpClient::new(HyperClient(Client::builder(TokioExecutor::new()).build(connector))))
    }
}

struct HyperClient(Client<HttpsConnector<TcpConnector>, HttpRequestBody>);

impl fmt::Debug for HyperClient {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("HyperClient")
    }
}

#[async_trait]
impl HttpService for HyperClient {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let response = self.0.request(request).await.map_err(|error| {
            let kind = if error.is_connect() { HttpErrorKind::Connect } else { HttpErrorKind::Unknown };
            HttpError::new(kind, error)
        })?;
        let (parts, body) = response.into_parts();
        if parts.status.is_success() {
            let body = Limited::new(body, OBJECT_MAX);
            let body = body.map_err(|error| HttpError::new_boxed(HttpErrorKind::Interrupted, error));
            return Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(body)));
        }
        let report = Limited::new(body, REPORT_MAX).collect().await;
        let report = report.map_err(|error| HttpError::new_boxed(HttpErrorKind::Interrupted, error))?;
        let report = report.to_bytes();
        let rejection = Rejection { status: parts.status.as_u16(), code: code(&report) };
        match (rejection.status, &*rejection.code) {
            // The library has its own errors for these: a missing object, and an object that exists.
            (404, "NoSuchKey") | (409 | 412, _) => {
                Ok(HttpResponse::from_parts(parts, HttpResponseBody::from(report)))
            }
            _ => Err(HttpError::new(HttpErrorKind::Unknown, rejection)),
        }
    }
}

/// The code in an error response, which is a word. Empty if there is none.
fn code(report: &[u8]) -> String {
    let report = String::from_utf8_lossy(report);
    let code = report.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>"));
    let is_word = |code: &&str| code.bytes().all(|byte| byte.is_ascii_alphanumeric());
    code.map(|(code, _)| code).filter(is_word).unwrap_or_default().to_owned()
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
}
