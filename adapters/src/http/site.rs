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
pub struct ServerUrl(String);

/// The contact of the operator: a web page or a `mailto:` address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContactUrl(String);

/// An invalid contact URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("expected the http(s):// or mailto: URL where you can be reached")]
pub struct InvalidContactUrl;

/// An invalid server URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("expected an http:// or https:// URL that ends in /v1, for example https://api.example.com/v1")]
pub struct InvalidServerUrl;

impl ServerUrl {
    /// The address as it was given, without a slash at its end.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its scheme, host and port: what a browser asks for permission to call.
    pub(super) fn origin(&self) -> &str {
        let host = self.0.find("://").map_or(0, |scheme| scheme + "://".len());
        let end = self.0[host..].find('/').map_or(self.0.len(), |path| host + path);
        &self.0[..end]
    }
}

impl ContactUrl {
    /// The URL as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ContactUrl {
    type Err = InvalidContactUrl;

    fn from_str(text: &str) -> Result<Self, InvalidContactUrl> {
        let of_the_web = ["http://", "https://"].iter().any(|scheme| text.starts_with(scheme));
        let page = of_the_web
            && text.parse::<Uri>().is_ok_and(|uri| uri.host().is_some_and(|host| !host.is_empty()));
        let mail = text.strip_prefix("mailto:").is_some_and(|to| {
            to.split_once('@').is_some_and(|(name, host)| !name.is_empty() && !host.is_empty())
        });
        let plain = text.chars().all(|c| c.is_ascii_graphic());
        if (page || mail) && plain { Ok(Self(text.to_owned())) } else { Err(InvalidContactUrl) }
    }
}

impl FromStr for ServerUrl {
    type Err = InvalidServerUrl;

    fn from_str(text: &str) -> Result<Self, InvalidServerUrl> {
        let text = text.trim_end_matches('/');
        let uri: Uri = text.parse().map_err(|_| InvalidServerUrl)?;
        let web = uri.scheme().is_some_and(|scheme| [Scheme::HTTP, Scheme::HTTPS].contains(scheme));
        let host =
            uri.authority().is_some_and(|host| !host.as_str().contains('@') && !host.host().is_empty());
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._~:/[]".contains(c);
        // A quote, a comma or a semicolon would mean something in the headers that name the address.
        if web && host && uri.path().ends_with("/v1") && text.chars().all(plain) {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidServerUrl)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contact_is_a_web_page_or_a_mail_address() {
        for text in ["https://example.com/help?topic=pets", "http://help.internal", "mailto:pets@example.com"]
        {
            assert_eq!(text.parse::<ContactUrl>().unwrap().as_str(), text);
        }
        let wrong = "pets@example.com https:// mailto: mailto:@ tel:1 javascript:1";
        for text in wrong.split(' ').chain(["", "https://a b"]) {
            assert_eq!(text.parse::<ContactUrl>(), Err(InvalidContactUrl), "{text}");
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
            assert_eq!((url.as_str(), url.origin()), (text.trim_end_matches('/'), origin));
        }
        for text in [
            "",
            "/v1",
            "pets.example.com/v1",
            "ftp://pets.example.com/v1",
            "https://pets.example.com",
            "https://pets.example.com/v1x",
            "https://pets.example.com/v1?a=b",
            "https://pets.example.com/v1#a",
            "https://a:b@pets.example.com/v1",
            "https://pets.example.com/;script-src/v1",
            "https:///v1",
        ] {
            assert_eq!(text.parse::<ServerUrl>(), Err(InvalidServerUrl), "{text}");
        }
    }
}
