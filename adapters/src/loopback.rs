//! Distinguishes this machine from the network, where connections need verified TLS or an explicit waiver.

use std::net::IpAddr;

/// Whether connections to `host`, a name or an address, stay on this machine. Names other than `localhost` count as remote, because a resolver
/// decides where they lead.
pub(crate) fn is_loopback(host: &str) -> bool {
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    address.eq_ignore_ascii_case("localhost")
        || address.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_loopback() {
        for host in ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "::ffff:127.0.0.1", "localhost", "LocalHost"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in
            ["", "10.0.0.1", "0.0.0.0", "::", "[::2]", "db", "localhost.example.com", "127.0.0.1.example"]
        {
            assert!(!is_loopback(host), "{host}");
        }
    }
}
