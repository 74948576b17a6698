//! The address of a client: that of the peer, or the one that trusted proxies report.

use std::{net::IpAddr, str::FromStr};

use axum::http::{HeaderMap, HeaderName, HeaderValue, header::FORWARDED};
use ipnet::IpNet;

use crate::http::site::InvalidSetting;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// A proxy, or a range of them, whose reports about client addresses are trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrustedProxy(IpNet);

impl FromStr for TrustedProxy {
    type Err = InvalidSetting;

    fn from_str(text: &str) -> Result<Self, InvalidSetting> {
        let address = text.parse::<IpAddr>().map(|address| address.to_canonical().into());
        let range = address.or_else(|_| text.parse());
        range.map(Self).map_err(|_| InvalidSetting("an IP address or range, such as 10.0.0.0/8"))
    }
}

pub(crate) fn is_trusted(proxies: &[TrustedProxy], address: IpAddr) -> bool {
    proxies.iter().any(|TrustedProxy(range)| range.contains(&address))
}

/// What counts as one client: an IPv4 address, or the 64 bits of an IPv6 address that one subscriber is given.
pub(crate) fn network(address: IpAddr) -> IpNet {
    IpNet::new_assert(address, if address.is_ipv4() { 32 } else { 64 }).trunc()
}

/// The client behind a peer. Every proxy appends the address that it saw, so the list is read from its end, as long as the
/// entries belong to trusted proxies. If the two headers disagree, a client has forged one of them: then the result is the
/// address of the proxy.
pub(crate) fn of(peer: IpAddr, proxies: &[TrustedProxy], headers: &HeaderMap) -> IpAddr {
    if !is_trusted(proxies, peer) {
        return peer;
    }
    // A header that is not text is ignored.
    let list = |name| {
        let values = headers.get_all(name).iter().map(HeaderValue::to_str);
        let values: Vec<&str> = values.collect::<Result<_, _>>().ok()?;
        Some(values.join(",")).filter(|list| !list.is_empty())
    };
    let client = |hops: Vec<Option<IpAddr>>| {
        let known: Vec<IpAddr> = hops.into_iter().rev().map_while(|hop| hop).collect();
        let first_client = known.iter().find(|hop| !is_trusted(proxies, **hop));
        *first_client.or(known.last()).unwrap_or(&peer)
    };
    let forwarded = list(FORWARDED).map(|list| client(forwarded_hops(&list)));
    let x_forwarded_for = list(X_FORWARDED_FOR).map(|list| client(list.split(',').map(node).collect()));
    match (forwarded, x_forwarded_for) {
        (Some(one), Some(other)) if one != other => peer,
        (one, other) => one.or(other).unwrap_or(peer),
    }
}

/// The `for` of every element of a `Forwarded` header (RFC 7239); `None` where it names no address.
fn forwarded_hops(value: &str) -> Vec<Option<IpAddr>> {
    let hop = |element| {
        let mut pairs = split_outside_quotes(element, ';').filter_map(|pair| pair.split_once('='));
        let (_, value) = pairs.find(|(name, _)| name.trim().eq_ignore_ascii_case("for"))?;
        node(value.trim().trim_matches('"'))
    };
    split_outside_quotes(value, ',').map(hop).collect()
}

fn split_outside_quotes(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    text.split(move |c| {
        quoted ^= c == '"';
        c == separator && !quoted
    })
}

/// An address, with or without brackets and a port.
fn node(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let address = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?.0.parse(),
        None => {
            text.parse().or_else(|error| text.split_once(':').map_or(Err(error), |(host, _)| host.parse()))
        }
    };
    address.ok().map(|address: IpAddr| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(peer: &str, headers: &[(HeaderName, &str)]) -> String {
        let proxies = ["10.0.0.0/8", "2001:db8::1"].map(|text| text.parse().unwrap());
        let headers = headers.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect();
        of(peer.parse().unwrap(), &proxies, &headers).to_string()
    }

    #[test]
    fn only_trusted_proxies_are_believed() {
        let spoofed = [(X_FORWARDED_FOR, "9.9.9.9"), (FORWARDED, "for=9.9.9.9")];
        assert_eq!(client("203.0.113.7", &spoofed), "203.0.113.7");
        assert_eq!(client("10.0.0.1", &spoofed), "9.9.9.9");
        assert_eq!(client("10.0.0.1", &[]), "10.0.0.1");
    }

    #[test]
    fn the_client_is_the_last_address_that_is_no_trusted_proxy() {
        for (value, expected) in [
            ("9.9.9.9", "9.9.9.9"),
            ("6.6.6.6, 9.9.9.9", "9.9.9.9"),
            ("6.6.6.6, 9.9.9.9, 10.2.3.4,10.0.0.9", "9.9.9.9"),
            ("10.7.7.7", "10.7.7.7"),
            ("9.9.9.9:4711", "9.9.9.9"),
            ("2001:db8::77", "2001:db8::77"),
            ("[2001:db8::77]:4711", "2001:db8::77"),
            ("::ffff:9.9.9.9", "9.9.9.9"),
            ("6.6.6.6, nonsense, 10.2.3.4", "10.2.3.4"),
            ("unknown", "10.0.0.1"),
            ("", "10.0.0.1"),
        ] {
            assert_eq!(client("10.0.0.1", &[(X_FORWARDED_FOR, value)]), expected, "{value}");
        }
        let two = [(X_FORWARDED_FOR, "6.6.6.6"), (X_FORWARDED_FOR, "9.9.9.9, 10.0.0.2")];
        assert_eq!(client("10.0.0.1", &two), "9.9.9.9", "lines of one header are one list");
    }

    #[test]
    fn the_standard_header_is_read_with_its_quotes() {
        for (value, expected) in [
            ("for=9.9.9.9", "9.9.9.9"),
            (r#"For="[2001:db8::77]:4711";proto=https;by=10.0.0.1"#, "2001:db8::77"),
            (r#"for=6.6.6.6, proto=https;for="9.9.9.9:80""#, "9.9.9.9"),
            (r#"for=9.9.9.9, for=10.1.1.1;host="a,for=7.7.7.7""#, "9.9.9.9"),
            (r#"for="6.6.6.6:80", for=9.9.9.9"#, "9.9.9.9"),
            ("for=_hidden, for=10.1.1.1", "10.1.1.1"),
            ("for=unknown", "10.0.0.1"),
            ("proto=https", "10.0.0.1"),
        ] {
            assert_eq!(client("10.0.0.1", &[(FORWARDED, value)]), expected, "{value}");
        }
    }

    #[test]
    fn headers_that_disagree_name_no_client() {
        let disagree = [(FORWARDED, "for=6.6.6.6"), (X_FORWARDED_FOR, "9.9.9.9")];
        assert_eq!(client("10.0.0.1", &disagree), "10.0.0.1");
    }

    #[test]
    fn an_ipv6_client_is_its_network() {
        let network = |text: &str| super::network(text.parse().unwrap());
        assert_eq!(network("2001:db8:1:2::1"), network("2001:db8:1:2:ffff::9"));
        assert_ne!(network("2001:db8:1:2::1"), network("2001:db8:1:3::1"));
        assert_ne!(network("9.9.9.9"), network("9.9.9.8"));
    }

    #[test]
    fn a_proxy_is_an_address_or_a_range() {
        for text in ["10.0.0.1", "10.0.0.0/8", "2001:db8::/32", "::1"] {
            assert!(text.parse::<TrustedProxy>().is_ok(), "{text}");
        }
        for text in ["", "proxy", "10.0.0.0/33", "10.0.0.1:80", "*"] {
            assert!(text.parse::<TrustedProxy>().is_err(), "{text}");
        }
    }
}
