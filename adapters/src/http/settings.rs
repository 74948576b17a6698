//! The operator's settings of the HTTP service, the URLs and addresses in them, and the limits that several modules need.

use std::{net::IpAddr, str::FromStr, sync::Arc, time::Duration};

use axum::http::{
    HeaderValue, Uri,
    uri::{Authority, Scheme},
};
use ipnet::IpNet;

use crate::access::RateLimit;

/// Maximum size of a request body, in bytes. A pet takes less than 2 KiB.
pub(super) const BODY_MAX: usize = 64 * 1024;

/// Maximum number of bytes of a body that are drained. A client that sends more may get a broken pipe instead of the response.
pub(super) const DRAIN_MAX: usize = 4 * 1024 * 1024;

/// Maximum memory of the requests on all connections of a listener, in bytes.
pub(super) const MEMORY_MAX: usize = 64 * 1024 * 1024;

/// Maximum number of responses of `/log` in progress: each holds a batch of records and reads the disk.
pub(super) const LOG_READERS_MAX: usize = 16;

/// The settings that an operator chooses.
#[derive(Debug, Clone, Default)]
pub struct HttpSettings {
    /// The URL of the production service, for the OpenAPI document.
    pub base_url: Option<ServerUrl>,
    /// The URL of the staging service, for the OpenAPI document.
    pub staging_url: Option<ServerUrl>,
    /// The contact for questions, for the OpenAPI document.
    pub contact: Option<ContactUrl>,
    /// The web pages that may call this service from a browser.
    pub origins: Arc<[Origin]>,
    /// The proxies whose forwarding headers are trusted.
    pub trusted_proxies: Vec<TrustedProxy>,
    /// Maximum rate of invalid keys per client address; above it, they get 429 instead of 401.
    pub failed_auth_limit: Option<RateLimit>,
    /// Whether every request is logged, not only rejected and failed ones.
    pub access_log: bool,
    /// The limits of the public listener.
    pub public: ListenerSettings,
    /// The limits of the admin listener.
    pub admin: ListenerSettings,
}

/// Limits on connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListenerSettings {
    /// Maximum number of open connections.
    pub connections_max: usize,
    /// Maximum number of open connections per client address. Does not apply to trusted proxies.
    pub connections_per_address: Option<usize>,
    /// How long requests in flight may take to finish after the shutdown signal.
    pub drain: Duration,
}

/// A proxy, or a range of them, whose reports about client addresses are trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrustedProxy(pub(super) IpNet);

/// The scheme, host and port of a web page, as browsers write it, or `*` for all pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin(pub(super) HeaderValue);

/// The public URL of a service, ending in the version of the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerUrl(pub(super) String);

/// The contact of the operator: a web page or a `mailto:` address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContactUrl(pub(super) String);

impl Default for ListenerSettings {
    fn default() -> Self {
        Self { connections_max: 10_000, connections_per_address: None, drain: Duration::from_secs(10) }
    }
}

impl ServerUrl {
    /// Its scheme, host and port: what a browser asks for permission to call.
    pub(super) fn origin(&self) -> &str {
        let end = self.0.match_indices('/').nth(2).map_or(self.0.len(), |(path, _)| path);
        &self.0[..end]
    }
}

impl FromStr for TrustedProxy {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let address = text.parse::<IpAddr>().map(|address| address.to_canonical().into());
        let range = address.or_else(|_| text.parse());
        range.map(Self).map_err(|_| "expected an IP address or range, such as 10.0.0.0/8")
    }
}

impl FromStr for Origin {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let (scheme, host) = text.split_once("://").unwrap_or_default();
        let default_port = if scheme == "http" { ":80" } else { ":443" };
        let is_origin = ["http", "https"].contains(&scheme)
            && host.parse::<Authority>().is_ok_and(|host| !host.as_str().contains('@'))
            && !host.ends_with(default_port)
            && text == text.to_ascii_lowercase();
        let origin = HeaderValue::try_from(text).ok().filter(|_| is_origin || text == "*");
        origin.map(Self).ok_or(
            "expected * or http(s)://HOST[:PORT] in lower case, without a path, a user or the default port",
        )
    }
}

impl FromStr for ContactUrl {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let mail = text.strip_prefix("mailto:").and_then(|mail| mail.split_once('@'));
        let is_mail = mail.is_some_and(|(name, host)| !name.is_empty() && !host.is_empty());
        let is_plain = text.chars().all(|c| c.is_ascii_graphic());
        let url = Some(text.to_owned()).filter(|_| (is_mail || web_url(text).is_some()) && is_plain);
        url.map(Self).ok_or("expected the http(s):// or mailto: URL where you can be reached")
    }
}

impl FromStr for ServerUrl {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let text = text.trim_end_matches('/');
        let is_api = web_url(text).is_some_and(|url| url.path().ends_with("/v1"));
        // A quote, a comma or a semicolon would mean something in the headers that name the address.
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._~:/[]".contains(c);
        let url = Some(text.to_owned()).filter(|_| is_api && text.chars().all(plain));
        url.map(Self).ok_or(
            "expected an http:// or https:// URL that ends in /v1, for example https://api.example.com/v1",
        )
    }
}

/// An absolute URL with a host.
fn web_url(text: &str) -> Option<Uri> {
    let url: Uri = text.parse().ok()?;
    let is_web = [Scheme::HTTP, Scheme::HTTPS].contains(url.scheme()?);
    Some(url).filter(|url| is_web && url.host().is_some_and(|host| !host.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_an_address_or_a_range() {
        for text in ["10.0.0.1", "10.0.0.0/8", "2001:db8::/32", "::1"] {
            assert!(text.parse::<TrustedProxy>().is_ok(), "{text}");
        }
        for text in ["", "proxy", "10.0.0.0/33", "10.0.0.1:80", "*"] {
            assert!(text.parse::<TrustedProxy>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_contact_is_a_web_page_or_a_mail_address() {
        for text in ["https://example.com/help?topic=pets", "http://help.internal", "mailto:pets@example.com"]
        {
            assert_eq!(text.parse(), Ok(ContactUrl(text.to_owned())));
        }
        let wrong = "pets@example.com https:// mailto: mailto:@ tel:1 javascript:1";
        for text in wrong.split(' ').chain(["", "https://a b"]) {
            assert!(text.parse::<ContactUrl>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_server_url_ends_in_the_version() {
        for (text, origin) in [
            ("https://pets.example.com/v1", "https://pets.example.com"),
            ("https://pets.example.com/v1/", "https://pets.example.com"),
            ("http://127.0.0.1:8080/v1", "http://127.0.0.1:8080"),
            ("http://[::1]:80/api/v1", "http://[::1]:80"),
        ] {
            let url: ServerUrl = text.parse().unwrap();
            assert_eq!((&*url.0, url.origin()), (text.trim_end_matches('/'), origin));
        }
        let schemes =
            "/v1 pets.example.com/v1 ftp://pets.example.com/v1 https:///v1 https://a:b@pets.example.com/v1";
        let paths = ["", "/v1x", "/v1?a=b", "/v1#a", "/;script-src/v1"]
            .map(|path| format!("https://pets.example.com{path}"));
        for text in schemes.split(' ').chain(paths.iter().map(String::as_str)).chain([""]) {
            assert!(text.parse::<ServerUrl>().is_err(), "{text}");
        }
    }
}
