//! `s3://BUCKET/PREFIX`, and the environment variables that complete it.

use std::env;

use application::ports::{Fault, LogError};
use object_store::{
    ClientConfigKey, RetryConfig,
    aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut},
    path::Path,
};

use super::client::Connector;
use crate::event_log::loopback::is_loopback;

/// The maximum length of a prefix. A key has at most 1,024 bytes.
const PREFIX_MAX: usize = 512;

/// The variables that complete a URL: credentials, region and endpoint, under the names that the tools of S3 use.
#[derive(Clone)]
pub struct Variables(Vec<(String, String)>);

impl Variables {
    /// The variables of this process.
    pub fn of_this_process() -> Self {
        env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect()
    }
}

/// Other variables, and empty ones, are ignored.
impl FromIterator<(String, String)> for Variables {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(variables: I) -> Self {
        Self(
            variables
                .into_iter()
                .filter(|(name, value)| name.starts_with("AWS_") && !value.is_empty())
                .collect(),
        )
    }
}

/// Where the log is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) bucket: String,
    pub(super) prefix: Path,
}

impl Address {
    /// Parses a URL. `None` if it has another form.
    pub(super) fn parse(url: &str) -> Option<Self> {
        let (bucket, prefix) = url.strip_prefix("s3://")?.split_once('/')?;
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        let is_word = |word: &str| {
            !word.is_empty()
                && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        };
        let parts_are_words = prefix.split('/').all(|part| is_word(part) && part != "." && part != "..");
        (is_word(bucket) && parts_are_words && prefix.len() <= PREFIX_MAX)
            .then(|| Self { bucket: bucket.to_owned(), prefix: Path::from(prefix) })
    }

    /// Creates a client, and returns it with the address of its server, for messages.
    pub(super) fn client(&self, variables: &Variables) -> Result<(AmazonS3, String), LogError> {
        let unusable = |why: String| Fault::CannotOpen.error(why);
        // The library retries a create that may have been stored, and then reports its own object as another one.
        let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        let known =
            variables.0.iter().filter_map(|(name, value)| Some((name.to_lowercase().parse().ok()?, value)));
        let builder =
            known.fold(AmazonS3Builder::new(), |builder, (key, value)| builder.with_config(key, value));
        let mut builder = builder
            .with_bucket_name(&self.bucket)
            .with_retry(retry)
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            .with_http_connector(Connector);
        let endpoint = [AmazonS3ConfigKey::S3Endpoint, AmazonS3ConfigKey::Endpoint]
            .iter()
            .find_map(|key| builder.get_config_value(key));
        if let Some(rest) = endpoint.as_deref().and_then(|endpoint| endpoint.strip_prefix("http://")) {
            let authority = rest.split('/').next().unwrap_or_default();
            let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
            let allow_http = AmazonS3ConfigKey::Client(ClientConfigKey::AllowHttp);
            let is_allowed = builder.get_config_value(&allow_http).is_some_and(|value| value == "true");
            if !is_loopback(host) && !is_allowed {
                return Err(unusable(format!(
                    "http://{authority} is on a network, and plain HTTP would expose the log there: use an https:// \
                     endpoint, or set AWS_ALLOW_HTTP=true if you trust the network"
                )));
            }
            builder = builder.with_allow_http(true);
        }
        let server = endpoint.map_or_else(
            || "Amazon S3".to_owned(),
            |endpoint| endpoint.rsplit_once('@').map_or(endpoint.clone(), |(_, place)| place.to_owned()),
        );
        let client = builder.build().map_err(|error| {
            unusable(format!("the settings of the object store in AWS_* variables cannot be used: {error}"))
        })?;
        Ok((client, server))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_bucket_and_a_prefix() {
        for (url, bucket, prefix) in
            [("s3://b/p", "b", "p"), ("s3://my-bucket.eu/a/b_c/2026.1/", "my-bucket.eu", "a/b_c/2026.1")]
        {
            let address = Address::parse(url).unwrap();
            assert_eq!((&*address.bucket, address.prefix.as_ref()), (bucket, prefix));
        }
        let long = format!("s3://b/{}", "p".repeat(PREFIX_MAX + 1));
        let wrong = "s3: s3:b/p s3://b s3://b/ s3:///p s3://b//p s3://b/p//q s3://b/../p s3://b/./p s3://b/p?x=1 s3://u:s@b/p s3://b/p#x";
        for url in wrong.split(' ').chain([&*long, "s3://b/p q", "http://b/p"]) {
            assert_eq!(Address::parse(url), None, "{url}");
        }
    }
}
