//! The store URL `nats://[user:password@]host:port[,host:port…]/STREAM[?option=value&…]`.

use std::{fmt, path::PathBuf};

use application::ports::{Fault, LogError};
use percent_encoding::percent_decode_str;

use crate::{event_log::Environment, loopback::is_loopback};

/// The servers, the stream and how to connect.
#[derive(Default)]
pub(super) struct Address {
    /// `host:port` of the servers to try first. They announce the rest of the cluster.
    pub(super) servers: Vec<String>,
    pub(super) stream: String,
    /// The user, or a token if there is no password.
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    /// A file with credentials, which replaces the user.
    pub(super) credentials: Option<PathBuf>,
    pub(super) tls: TlsMode,
    /// The only authority whose certificates are trusted; otherwise those that the system trusts.
    pub(super) ca: Option<PathBuf>,
    /// The certificate of this client, and its key.
    pub(super) client_certificate: Option<(PathBuf, PathBuf)>,
    /// How many replicas a new stream gets (`replicas=3`).
    pub(super) replicas: Option<usize>,
    /// Whether the operator states that every server runs with `sync_interval: always` (`sync=always`).
    pub(super) sync_stated: bool,
    /// `host:port` of the servers' monitoring endpoints (`monitor=host:8222,…`), to check how they sync.
    pub(super) monitors: Vec<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum TlsMode {
    /// If the server requires it. The default if all servers are on this machine.
    #[default]
    ServerDecides,
    /// The same on a network, which the operator trusts (`tls=off`).
    Waived,
    /// Always, with a certificate that is trusted (`tls=required`). The default on a network.
    Required,
}

const OPTIONS: &str = "tls=off, tls=required, ca, cert, key, creds, replicas, sync=always, monitor";
/// Stream names become part of subjects, so they contain neither dots nor wildcards.
const STREAM_NAME_MAX: usize = 64;
/// JetStream supports no more.
const REPLICAS_MAX: usize = 5;

impl Address {
    /// Parses the URL. A user without a password gets it from `NATS_PASSWORD`, if `environment` has one.
    pub(super) fn parse(url: &str, environment: Environment<'_>) -> Result<Self, LogError> {
        let rest = url.strip_prefix("nats://").ok_or_else(|| {
            wrong("must look like nats://[user:password@]host:port[,host:port]/STREAM[?option=value]")
        })?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, stream) =
            rest.rsplit_once('/').ok_or_else(|| wrong("must name a stream, as in nats://host:4222/PETS"))?;
        let (user, servers) =
            authority.rsplit_once('@').map_or((None, authority), |(user, servers)| (Some(user), servers));
        let mut address = Self { servers: hosts(servers)?, stream: stream_name(stream)?, ..Self::default() };
        if let Some(user) = user {
            let (user, password) = user.split_once(':').map_or((user, None), |(user, it)| (user, Some(it)));
            address.user = Some(decoded(user)?);
            address.password = password.map(decoded).transpose()?.or_else(|| environment("NATS_PASSWORD"));
        }
        let (mut cert, mut key) = (None, None);
        for (option, value) in form_urlencoded::parse(query.as_bytes()) {
            match (&*option, &*value) {
                (_, "") => return Err(wrong("must give each option a value")),
                ("tls", "off") => address.tls = TlsMode::Waived,
                ("tls", "required") => address.tls = TlsMode::Required,
                ("ca", file) => address.ca = Some(file.into()),
                ("cert", file) => cert = Some(file.into()),
                ("key", file) => key = Some(file.into()),
                ("creds", file) => {
                    address.user = None;
                    address.credentials = Some(file.into());
                }
                ("replicas", number) => match number.parse() {
                    Ok(number @ 1..=REPLICAS_MAX) => address.replicas = Some(number),
                    Ok(_) | Err(_) => {
                        return Err(wrong(format!("must have replicas between 1 and {REPLICAS_MAX}")));
                    }
                },
                ("sync", "always") => address.sync_stated = true,
                ("monitor", servers) => address.monitors.extend(hosts(servers)?),
                // Do not repeat an unknown option: it may be the end of a password that was not escaped.
                _ => return Err(wrong(format!("supports only the options {OPTIONS}"))),
            }
        }
        if cert.is_some() != key.is_some() {
            return Err(wrong("must have both cert and key, or neither"));
        }
        address.client_certificate = cert.zip(key);
        // Otherwise an attacker in between could pretend to be a server without TLS.
        if address.tls == TlsMode::ServerDecides && !address.servers.iter().all(|server| is_local(server)) {
            address.tls = TlsMode::Required;
        }
        Ok(address)
    }

    /// The subject of a store's commits (`commits`), or the one on which the leader announces each of them without its
    /// content (`stored`). Each store has its own, so stores can share a cluster.
    pub(super) fn subject(&self, messages: &str) -> String {
        format!("petstore.{}.{messages}", self.stream)
    }
}

/// The URL without its secrets, for errors and logs.
impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = if self.user.is_some() { "***@" } else { "" };
        write!(formatter, "nats://{who}{}/{}", self.servers.join(","), self.stream)
    }
}

fn decoded(text: &str) -> Result<String, LogError> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| wrong("has a user or password that is not UTF-8"))
}

fn hosts(list: &str) -> Result<Vec<String>, LogError> {
    let is_sound = |host: &str| !host.is_empty() && !host.contains(['/', '@', '#']);
    if list.split(',').all(is_sound) {
        return Ok(list.split(',').map(String::from).collect());
    }
    Err(wrong("must name its servers as host:port[,host:port]; percent-encode / @ # ? in a password"))
}

/// Whether `host:port` or `host` is on this machine.
fn is_local(server: &str) -> bool {
    let port = server.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok());
    is_loopback(port.map_or(server, |(host, _)| host))
}

fn stream_name(name: &str) -> Result<String, LogError> {
    let is_sound = |character: char| character.is_ascii_alphanumeric() || matches!(character, '-' | '_');
    if (1..=STREAM_NAME_MAX).contains(&name.len()) && name.chars().all(is_sound) {
        return Ok(name.into());
    }
    Err(wrong(format!("must end with a stream name of 1 to {STREAM_NAME_MAX} letters, digits, - and _")))
}

fn wrong(rule: impl fmt::Display) -> LogError {
    Fault::CannotOpen.error(format!("the store URL {rule}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Address, LogError> {
        Address::parse(url, &|_| None)
    }

    #[test]
    fn a_url_names_servers_and_stream() {
        let address = parse("nats://one:4222,[::1]:4223,three/PETS").unwrap();
        assert_eq!(address.servers, ["one:4222", "[::1]:4223", "three"]);
        assert_eq!(address.stream, "PETS");
        assert_eq!(address.user, None);
    }

    #[test]
    fn options_are_parsed() {
        let url =
            "nats://n/S?tls=required&ca=a.pem&cert=b&key=c&creds=d&replicas=5&sync=always&monitor=x:1,y:2";
        let address = parse(url).unwrap();
        assert_eq!((address.tls, address.ca), (TlsMode::Required, Some("a.pem".into())));
        assert_eq!(address.client_certificate, Some(("b".into(), "c".into())));
        assert_eq!(address.credentials, Some("d".into()));
        assert_eq!((address.replicas, address.sync_stated), (Some(5), true));
        assert_eq!(address.monitors, ["x:1", "y:2"]);
    }

    #[test]
    fn on_a_network_tls_is_the_default() {
        for (servers, mode) in [
            ("localhost,127.0.0.1:1,[::1]:2", TlsMode::ServerDecides),
            ("one", TlsMode::Required),
            ("10.0.0.1:4222", TlsMode::Required),
            ("localhost:4222,[fd00::1]:4222", TlsMode::Required),
        ] {
            assert_eq!(parse(&format!("nats://{servers}/S")).unwrap().tls, mode, "{servers}");
            let waived = parse(&format!("nats://{servers}/S?tls=off")).unwrap().tls;
            assert_eq!(waived, TlsMode::Waived, "{servers}");
        }
    }

    #[test]
    fn secrets_are_decoded_and_never_shown() {
        let address = parse("nats://joe:pa%3F/ss@one/S").unwrap();
        assert_eq!((address.user.as_deref(), address.password.as_deref()), (Some("joe"), Some("pa?/ss")));
        assert_eq!(address.to_string(), "nats://***@one/S");
        let environment = |name: &str| (name == "NATS_PASSWORD").then(|| "pass".into());
        let environment = Address::parse("nats://joe@one/S", &environment).unwrap();
        assert_eq!(
            (environment.user.as_deref(), environment.password.as_deref()),
            (Some("joe"), Some("pass"))
        );
    }

    #[test]
    fn wrong_urls_are_rejected_without_showing_a_secret() {
        let options = ["tls=maybe", "cert=x", "replicas=9", "creds=", "unknown=x"];
        let options = options.map(|option| format!("nats://joe:secret@one/S?{option}"));
        let places =
            ["@one", "@/S", "@one,/S", "@one/", "@one/a.b"].map(|place| format!("nats://joe:secret{place}"));
        let others = ["nats:secret", "nats://joe:x/x?secret@one/S"].map(str::to_owned);
        for url in options.iter().chain(&places).chain(&others) {
            let Err(error) = parse(url) else { panic!("{url} was accepted") };
            assert_eq!(error.fault, Fault::CannotOpen, "{url}");
            assert!(!error.detail.contains("secret"), "{url}: {error}");
        }
    }
}
