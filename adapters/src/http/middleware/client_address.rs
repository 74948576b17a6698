//! The address of a client: that of the peer, or the one that trusted proxies report.

use std::net::{IpAddr, SocketAddr};

use axum::http::{HeaderMap, HeaderName};
use ipnet::IpNet;

use crate::http::settings::TrustedProxy;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

pub(crate) fn is_trusted(proxies: &[TrustedProxy], address: IpAddr) -> bool {
    proxies.iter().any(|TrustedProxy(range)| range.contains(&address))
}

/// The network that counts as one client: an IPv4 address, or the 64 bits of an IPv6 address that one subscriber is given.
pub(crate) fn network(address: IpAddr) -> IpNet {
    IpNet::new_assert(address, if address.is_ipv4() { 32 } else { 64 }).trunc()
}

/// The client behind a peer. Every proxy appends the address that it saw to `X-Forwarded-For`, so the list is read from
/// its end, for as long as a trusted proxy vouches for the next entry. An entry that is no address ends it.
pub(crate) fn of(peer: IpAddr, proxies: &[TrustedProxy], headers: &HeaderMap) -> IpAddr {
    let lines = headers.get_all(X_FORWARDED_FOR).iter();
    let mut hops = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b',')).rev();
    let mut client = peer;
    while is_trusted(proxies, client)
        && let Some(address) = hops.next().and_then(parse)
    {
        client = address;
    }
    client
}

/// An address, with or without a port.
fn parse(entry: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(entry).ok()?.trim();
    let address = text.parse().or_else(|_| text.parse::<SocketAddr>().map(|address| address.ip()));
    Some(address.ok()?.to_canonical())
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
    fn only_trusted_proxies_may_name_a_client() {
        let spoofed = [(X_FORWARDED_FOR, "9.9.9.9")];
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
            ("6.6.6.6,, 10.2.3.4", "10.2.3.4"),
            ("6.6.6.6, \"9.9.9.9\", 10.2.3.4", "10.2.3.4"),
            ("6.6.6.6, 9.9.9.9:x", "10.0.0.1"),
            ("unknown", "10.0.0.1"),
            ("", "10.0.0.1"),
        ] {
            assert_eq!(client("10.0.0.1", &[(X_FORWARDED_FOR, value)]), expected, "{value}");
        }
        let two = [(X_FORWARDED_FOR, "6.6.6.6"), (X_FORWARDED_FOR, "9.9.9.9, 10.0.0.2")];
        assert_eq!(client("10.0.0.1", &two), "9.9.9.9", "lines of one header are one list");
    }

    #[test]
    fn an_ipv6_client_is_its_network() {
        let network = |text: &str| super::network(text.parse().unwrap());
        assert_eq!(network("2001:db8:1:2::1"), network("2001:db8:1:2:ffff::9"));
        assert_ne!(network("2001:db8:1:2::1"), network("2001:db8:1:3::1"));
        assert_ne!(network("9.9.9.9"), network("9.9.9.8"));
    }
}
