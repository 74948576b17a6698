//! A prefix of a bucket: its URL, the variables that complete the URL, and the requests for objects.

use std::{env, fs, sync::Arc, time::Duration};

use application::ports::{Fault, LogError};
use bytes::Bytes;
use futures_util::StreamExt as _;
use hyper::{Uri, header::HeaderValue};
use object_store::{
    ClientConfigKey, Error, ObjectMeta, ObjectStore as _, ObjectStoreExt as _, PutMode, RetryConfig,
    aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut},
    client::{HttpError, HttpErrorKind},
    path::Path,
};
use tokio::time;

use super::client::{Connector, OBJECT_MAX, Rejection, cause, innermost};
use crate::{loopback::is_loopback, root_certificates};

/// How long a response may take, and the transfer of an object.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(3);
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum length of a prefix. A key has at most 1,024 bytes.
const PREFIX_MAX: usize = 512;

/// The environment variables of this process, among them those that complete a URL: credentials, region and endpoint, under
/// the names that the tools of S3 use.
pub fn variables() -> Vec<(String, String)> {
    env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// One prefix of a bucket, and the server that holds it.
#[derive(Debug)]
pub(super) struct Bucket {
    client: AmazonS3,
    pub(super) name: String,
    pub(super) prefix: Path,
    /// The endpoint, for messages.
    pub(super) server: String,
}

/// An object that was not created.
#[derive(Debug)]
pub(super) enum NotCreated {
    /// There is an object with this key, or another request is creating it.
    Exists,
    /// Certainly not stored.
    Rejected(LogError),
    /// May be stored, or stored later.
    Unclear(LogError),
}

impl From<NotCreated> for LogError {
    fn from(error: NotCreated) -> Self {
        match error {
            NotCreated::Exists => Fault::Unreachable.error("another node is creating the same object"),
            NotCreated::Rejected(error) | NotCreated::Unclear(error) => error,
        }
    }
}

/// Accepts an object that exists.
pub(super) fn or_exists(created: Result<(), NotCreated>) -> Result<(), LogError> {
    match created {
        Ok(()) | Err(NotCreated::Exists) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Parses `s3://BUCKET/PREFIX`. `None` if the URL has another form.
pub(super) fn parse(url: &str) -> Option<(&str, &str)> {
    let (bucket, prefix) = url.strip_prefix("s3://")?.split_once('/')?;
    let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
    let is_word = |word: &str| {
        !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    };
    let parts_are_words = prefix.split('/').all(|part| is_word(part) && part != "." && part != "..");
    (is_word(bucket) && parts_are_words && prefix.len() <= PREFIX_MAX).then_some((bucket, prefix))
}

impl Bucket {
    /// Fails if there are no credentials, but does not use them. Other variables than those of S3, and empty ones, are ignored.
    pub(super) async fn open(url: &str, variables: &[(String, String)]) -> Result<Arc<Self>, LogError> {
        let unusable = |why: String| Fault::CannotOpen.error(why);
        let (name, prefix) = parse(url)
            .ok_or_else(|| unusable("the store URL must have the form s3://BUCKET/PREFIX".into()))?;
        let mut builder = AmazonS3Builder::new();
        for (variable, value) in variables.iter().filter(|(name, _)| name.starts_with("AWS_")) {
            let Ok(key) = variable.to_lowercase().parse() else { continue };
            let value = value.trim();
            if let Some(what) = unsendable(key, value) {
                return Err(unusable(format!("{variable} {what}")));
            }
            if !value.is_empty() {
                builder = builder.with_config(key, value);
            }
        }
        builder = builder
            .with_bucket_name(name)
            // The library retries a create that may have been stored, and then reports its own object as another one.
            .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            .with_http_connector(Connector);
        let endpoint = [AmazonS3ConfigKey::S3Endpoint, AmazonS3ConfigKey::Endpoint]
            .iter()
            .find_map(|key| builder.get_config_value(key));
        let server = endpoint.clone().unwrap_or_else(|| "Amazon S3".to_owned());
        if let Some(endpoint) = endpoint {
            let uri: Uri = endpoint.parse().unwrap_or_default();
            let host = uri.host().unwrap_or_default();
            let authority = uri.authority().map_or("", |authority| authority.as_str());
            let is_place = authority == host || (uri.port_u16().is_some() && !authority.contains('@'));
            let is_plain = uri.scheme_str() == Some("http");
            if host.is_empty() || !is_place || !(is_plain || uri.scheme_str() == Some("https")) {
                return Err(unusable("AWS_ENDPOINT_URL must have the form https://HOST:PORT".into()));
            }
            let allow_http = AmazonS3ConfigKey::Client(ClientConfigKey::AllowHttp);
            let is_allowed = builder.get_config_value(&allow_http).is_some_and(|value| value == "true");
            if is_plain && !is_loopback(host) && !is_allowed {
                return Err(unusable(format!(
                    "{server} is on a network, and plain HTTP would expose the log there: use an https:// endpoint, or \
                     set AWS_ALLOW_HTTP=true if you trust the network"
                )));
            }
            builder = builder.with_allow_http(is_plain || is_allowed);
        }
        // Without keys, the library looks for a role.
        let connect = async {
            let client = builder.build()?;
            client.credentials().get_credential().await?;
            Ok::<_, Error>(client)
        };
        let reason = match time::timeout(RESPONSE_TIMEOUT, connect).await {
            Ok(Ok(client)) => {
                let (name, prefix) = (name.to_owned(), Path::from(prefix));
                return Ok(Arc::new(Self { client, name, prefix, server }));
            }
            Ok(Err(error)) => innermost(&error),
            Err(_elapsed) => "no response in time".to_owned(),
        };
        Err(unusable(format!(
            "no credentials for {server} ({reason}): set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and check the other \
             AWS_* variables"
        )))
    }

    pub(super) fn key(&self, parts: &[&str]) -> Path {
        parts.iter().fold(self.prefix.clone(), |path, part| path.join(*part))
    }

    /// Creates an object, unless it exists.
    pub(super) async fn create(&self, key: &Path, bytes: Bytes) -> Result<(), NotCreated> {
        let creating = self.client.put_opts(key, bytes.into(), PutMode::Create.into());
        let error = match time::timeout(BODY_TIMEOUT, creating).await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(Error::AlreadyExists { .. })) => return Err(NotCreated::Exists),
            Ok(Err(error)) => error,
            Err(_elapsed) => return Err(NotCreated::Unclear(self.late())),
        };
        let is_rejected = match cause(&error) {
            Some(Rejection { status, .. }) => (300..500).contains(status) && *status != 408,
            None => is_not_connected(&error),
        };
        let failure = self.failure("PUT", key, &error);
        Err(if is_rejected { NotCreated::Rejected(failure) } else { NotCreated::Unclear(failure) })
    }

    /// Reads an object, if it exists.
    pub(super) async fn get(&self, key: &Path) -> Result<Option<Bytes>, LogError> {
        let found = match time::timeout(RESPONSE_TIMEOUT, self.client.get(key)).await {
            Ok(Err(Error::NotFound { .. })) => return Ok(None),
            found => self.in_time("GET", key, found)?,
        };
        let size = found.meta.size;
        if size > OBJECT_MAX as u64 {
            return Err(Fault::Damaged.error(format!(
                "the object {key} has {size} bytes and was not written by petstore: its objects have at most {OBJECT_MAX}"
            )));
        }
        let bytes = self.in_time("GET", key, time::timeout(BODY_TIMEOUT, found.bytes()).await)?;
        if bytes.len() as u64 == size {
            return Ok(Some(bytes));
        }
        Err(Fault::Unreachable.error(format!("the response of {} was cut off", self.server)))
    }

    /// Lists the objects in a directory, in the order of their names, starting after the name `after`. Returns the first
    /// `max` that `parse` accepts.
    pub(super) async fn list<T: PartialOrd>(
        &self,
        directory: &Path,
        after: &str,
        max: usize,
        parse: impl Fn(ObjectMeta) -> Option<T>,
    ) -> Result<Vec<T>, LogError> {
        let mut listed = self.client.list_with_offset(Some(directory), &directory.clone().join(after));
        let mut found = Vec::new();
        while found.len() < max {
            let next = time::timeout(RESPONSE_TIMEOUT, listed.next()).await;
            let Some(object) = self.in_time("LIST", directory, next.map(Option::transpose))? else { break };
            let Some(next) = parse(object) else { continue };
            // A listing that repeats itself would never end.
            if found.last().is_some_and(|last| *last >= next) {
                let detail = format!("{} cannot hold a log: it lists objects in a wrong order", self.server);
                return Err(Fault::CannotOpen.error(detail));
            }
            found.push(next);
        }
        Ok(found)
    }

    fn in_time<T>(
        &self,
        method: &str,
        key: &Path,
        result: Result<Result<T, Error>, time::error::Elapsed>,
    ) -> Result<T, LogError> {
        result.map_err(|_elapsed| self.late())?.map_err(|error| self.failure(method, key, &error))
    }

    pub(super) fn late(&self) -> LogError {
        Fault::Unreachable.error(format!("no response from {} in time", self.server))
    }

    /// Describes a failed request for a key, or for a listing of the keys under it, without what the library adds to its
    /// errors: URLs, headers and whole responses.
    fn failure(&self, method: &str, key: &Path, error: &Error) -> LogError {
        let (server, bucket) = (&self.server, &self.name);
        if let Some(reason) = root_certificates::rejection(error, "SSL_CERT_FILE") {
            return Fault::CannotOpen.error(format!("{server} cannot be used: {reason}"));
        }
        if root_certificates::is_without_tls(error) {
            let detail =
                format!("{server} does not use TLS: use http:// instead of https:// in AWS_ENDPOINT_URL");
            return Fault::CannotOpen.error(detail);
        }
        if is_not_connected(error) {
            let host = server.rsplit('/').next().unwrap_or_default();
            return Fault::Unreachable.error(format!("cannot connect to {host}: {}", innermost(error)));
        }
        let Some(rejection) = cause::<Rejection>(error) else {
            return Fault::Unreachable.error(format!("a request to {server} failed: {}", innermost(error)));
        };
        if rejection.status < 300 {
            let element = &rejection.code;
            let what = if element.is_empty() { "no XML".to_owned() } else { format!("<{element}>") };
            return Fault::CannotOpen.error(format!(
                "{server} responded to a listing with {what} instead of <ListBucketResult>: check that AWS_ENDPOINT_URL is \
                 the URL of an S3 server"
            ));
        }
        let advice = match (rejection.status, &*rejection.code) {
            (408 | 429 | 500.., _) => {
                return Fault::Unreachable.error(format!("{server} responded with {rejection}"));
            }
            (404, "NoSuchBucket") => {
                return Fault::CannotOpen.error(format!(
                    "the bucket {bucket} does not exist at {server}: create it, or check the URL and AWS_ENDPOINT_URL"
                ));
            }
            (_, "RequestTimeTooSkewed") => "check the clock of this machine",
            (401 | 403, _) => {
                "check the credentials in AWS_* variables, and that they allow GetObject, PutObject and ListBucket"
            }
            _ => "check the URL, AWS_REGION and AWS_ENDPOINT_URL",
        };
        let is_denied = matches!(rejection.status, 401 | 403);
        let fault = if is_denied && method == "PUT" { Fault::WriteFailed } else { Fault::CannotOpen };
        fault.error(format!("{server} rejected {method} {key} ({rejection}): {advice}"))
    }
}

/// Says what is wrong with a variable that cannot be a part of a request. The library would panic.
fn unsendable(key: AmazonS3ConfigKey, value: &str) -> Option<&'static str> {
    let is_sent = |byte: u8| byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte);
    match key {
        _ if value.contains(char::is_control) => {
            Some("contains a control character: set it to one line of text")
        }
        AmazonS3ConfigKey::SecretAccessKey | AmazonS3ConfigKey::WebIdentityTokenFile => None,
        AmazonS3ConfigKey::ContainerAuthorizationTokenFile => {
            let is_unusable = fs::read(value).is_ok_and(|token| HeaderValue::from_bytes(&token).is_err());
            is_unusable.then_some(
                "names a file with a line break or a control character: write only the token to it",
            )
        }
        _ => (!value.bytes().all(is_sent))
            .then_some("contains a character that a request cannot have: check it"),
    }
}

/// Whether a request was never sent.
fn is_not_connected(error: &Error) -> bool {
    cause::<HttpError>(error).is_some_and(|error| error.kind() == HttpErrorKind::Connect)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_bucket_and_a_prefix() {
        assert_eq!(parse("s3://b/p"), Some(("b", "p")));
        assert_eq!(parse("s3://my-bucket.eu/a/b_c/2026.1/"), Some(("my-bucket.eu", "a/b_c/2026.1")));
        let long = format!("s3://b/{}", "p".repeat(PREFIX_MAX + 1));
        let wrong = "s3: s3:b/p s3://b s3://b/ s3:///p s3://b//p s3://b/p//q s3://b/../p s3://b/./p s3://b/p?x=1 s3://u:s@b/p s3://b/p#x";
        for url in wrong.split(' ').chain([&*long, "s3://b/p q", "http://b/p"]) {
            assert_eq!(parse(url), None, "{url}");
        }
    }
}
