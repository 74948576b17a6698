//! The public side of the service: its URLs, the operator's contact, and the web pages that may call it.

use std::str::FromStr;

use axum::http::{Uri, uri::Scheme};
use thiserror::Error;

use super::middleware::cors::Origins;

/// The settings of the public side.
#[derive(Debug, Clone, Default)]
pub struct Site {
    /// The URL of the production service, for the OpenAPI document.
    pub base_url: Option<ServerUrl>,
    /// The URL of the staging service, for the OpenAPI document.
    pub staging_url: Option<ServerUrl>,
    /// The contact for questions, for the OpenAPI document.
    pub contact: Option<ContactUrl>,
    /// The web pages that may call this service from a browser.
    pub origins: Origins,
}

/// The public URL of a service, ending in the version of the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerUrl(pub(super) String);

/// The contact of the operator: a web page or a `mailto:` address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContactUrl(pub(super) String);

/// A setting that cannot be parsed; holds what is expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("expected {0}")]
pub struct InvalidSetting(pub(super) &'static str);

impl ServerUrl {
    /// Its scheme, host and port: what a browser asks for permission to call.
    pub(super) fn origin(&self) -> &str {
        let end = self.0.match_indices('/').nth(2).map_or(self.0.len(), |(path, _)| path);
        &self.0[..end]
    }
}

impl FromStr for ContactUrl {
    type Err = InvalidSetting;

    fn from_str(text: &str) -> Result<Self, InvalidSetting> {
        let of_the_web = ["http://", "https://"].iter().any(|scheme| text.starts_with(scheme));
        let page = of_the_web
            && text.parse::<Uri>().is_ok_and(|uri| uri.host().is_some_and(|host| !host.is_empty()));
        let mail = text.strip_prefix("mailto:").is_some_and(|to| {
            to.split_once('@').is_some_and(|(name, host)| !name.is_empty() && !host.is_empty())
        });
        let plain = text.chars().all(|c| c.is_ascii_graphic());
        let url = Some(text.to_owned()).filter(|_| (page || mail) && plain);
        url.map(Self).ok_or(InvalidSetting("the http(s):// or mailto: URL where you can be reached"))
    }
}

impl FromStr for ServerUrl {
    type Err = InvalidSetting;

    fn from_str(text: &str) -> Result<Self, InvalidSetting> {
        let text = text.trim_end_matches('/');
        let is_api = text.parse::<Uri>().is_ok_and(|uri| {
            let web = uri.scheme().is_some_and(|scheme| [Scheme::HTTP, Scheme::HTTPS].contains(scheme));
            let host = uri.host().is_some_and(|host| !host.is_empty());
            web && host && uri.path().ends_with("/v1")
        });
        // A quote, a comma or a semicolon would mean something in the headers that name the address.
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._~:/[]".contains(c);
        let url = Some(text.to_owned()).filter(|_| is_api && text.chars().all(plain));
        url.map(Self).ok_or(InvalidSetting(
            "an http:// or https:// URL that ends in /v1, for example https://api.example.com/v1",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
