//! HTTPS on both listeners: a certificate from two files, which may change while the service runs.

use std::{
    fs,
    io::Read as _,
    net::TcpStream,
    ops::Range,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Output},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, SystemTime},
};

use harness::{App, Call, key_file, petstore, program, serve, value_of, wait_until};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

/// A service that speaks TLS, with its certificate in its own directory.
pub(crate) fn start_secure(flags: &[&str]) -> App {
    let mut app = stopped(Duration::from_hours(24 * 90), flags);
    app.begin();
    app.wait_until_listening().unwrap();
    wait_until("the service is ready", || status(&app, "/readyz", &[]) == "200\n");
    app
}

/// curl on an address of the service, with more arguments.
fn curl(app: &App, path: &str, arguments: &[&str]) -> Output {
    Command::new("curl")
        .args(["--silent", "--show-error", "--max-time", "60", "--cacert"])
        .arg(app.directory().join("ca.pem"))
        .args(["--header", &format!("Authorization: Bearer {}", app.key)])
        .args(arguments)
        .arg(format!("https://{}{path}", app.address()))
        .output()
        .unwrap()
}

/// The status of each response.
fn status(app: &App, path: &str, arguments: &[&str]) -> String {
    let output = ["--output", "/dev/null", "--write-out", "%{http_code}\n"];
    String::from_utf8(curl(app, path, &[arguments, &output].concat()).stdout).unwrap()
}

/// A service that has not been started yet, with a certificate that is valid for so long from now.
fn stopped(valid: Duration, flags: &[&str]) -> App {
    let directory = tempfile::tempdir().unwrap();
    certify(directory.path(), valid);
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (certificate, key) = (path("server.pem"), path("server.key"));
    let flags = [&["--tls-cert", &certificate, "--tls-key", &key], flags].concat();
    App::stopped_on(program(), "memory:", directory, &flags)
}

/// Writes a new authority and a certificate that it signed, valid for so long from now.
fn certify(directory: &Path, valid: Duration) {
    certify_for(directory, SystemTime::UNIX_EPOCH..SystemTime::now() + valid);
}

/// Writes a new authority and a certificate that it signed, valid for this period. The key comes first, as careful tools do
/// it; in between the two files do not fit together.
fn certify_for(directory: &Path, valid: Range<SystemTime>) {
    let key = || KeyPair::generate().unwrap();
    let mut authority = CertificateParams::new(vec![]).unwrap();
    // Two authorities of one name could not be distinguished by clients that trust both.
    authority.distinguished_name.push(DnType::CommonName, format!("authority for {:?}", valid.end));
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, key()).unwrap();
    let mut certificate = CertificateParams::new(vec!["127.0.0.1".into()]).unwrap();
    certificate.not_before = valid.start.into();
    certificate.not_after = valid.end.into();
    let key = key();
    let private_key = directory.join("server.key");
    fs::write(&private_key, key.serialize_pem()).unwrap();
    fs::set_permissions(private_key, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(directory.join("server.pem"), certificate.signed_by(&key, &authority).unwrap().pem()).unwrap();
    fs::write(directory.join("ca.pem"), authority.pem()).unwrap();
}

#[test]
fn clients_call_the_service_over_https_with_http_1_and_http_2() {
    let secure = start_secure(&["--admin-listen", "127.0.0.1:0"]);
    for (protocol, version) in [("--http1.1", "1.1"), ("--http2", "2")] {
        let shown = curl(&secure, "/v1/pets", &[protocol, "--write-out", "%{http_version}"]);
        assert_eq!(String::from_utf8_lossy(&shown.stdout), format!("[]{version}"));
    }
    let old = curl(&secure, "/livez", &["--tls-max", "1.1"]);
    assert!(!old.status.success(), "TLS 1.1 is too old");
    assert!(curl(&secure, "/livez", &["--tls-max", "1.2"]).status.success());
    let metrics = curl(&secure, "/livez", &[&format!("https://{}/metrics", secure.admin())]);
    let metrics = String::from_utf8_lossy(&metrics.stdout).into_owned();
    let expiry = value_of("petstore_tls_certificate_expiry_timestamp_seconds", &metrics);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
    assert!((89.0..=90.0).contains(&((expiry - now) / 86_400.0)), "{expiry}");
    let ca = secure.directory().join("ca.pem");
    let address = format!("https://{}", secure.admin());
    petstore(["health", &address, "--ca", ca.to_str().unwrap()]).exits_with(0);
    assert_eq!(petstore(["health", &address]).code, Some(3), "an unknown authority is not trusted");
    let (stdout, _) = secure.printed();
    assert!(stdout.contains("listens on https://") && !stdout.contains("http://"), "{stdout}");
}

#[test]
fn a_new_certificate_is_loaded_without_a_failed_request() {
    let secure = start_secure(&[]);
    let directory = secure.directory();
    // Clients trust both authorities, before and after the exchange.
    let both = directory.join("both.pem");
    let (both, old) = (both.to_str().unwrap(), fs::read(directory.join("ca.pem")).unwrap());
    let staging = tempfile::tempdir().unwrap();
    certify(staging.path(), Duration::from_hours(24 * 30));
    let new = fs::read(staging.path().join("ca.pem")).unwrap();
    fs::write(both, [old, new].concat()).unwrap();
    let exchanged = AtomicBool::new(false);
    let statuses: Vec<String> = thread::scope(|scope| {
        let clients: Vec<_> = ["--http1.1", "--http2"]
            .iter()
            .flat_map(|protocol| [(protocol, "1-50"), (protocol, "1-1")])
            .map(|(protocol, requests)| {
                // Many requests on one connection, and one request on each of many connections.
                let (secure, exchanged) = (&secure, &exchanged);
                scope.spawn(move || {
                    let mut statuses = String::new();
                    loop {
                        let last = exchanged.load(Relaxed);
                        let path = format!("/v1/pets?after=[{requests}]");
                        statuses.push_str(&status(secure, &path, &[protocol, "--cacert", both]));
                        if last {
                            return statuses;
                        }
                    }
                })
            })
            .collect();
        for file in ["server.key", "server.pem", "ca.pem"] {
            fs::copy(staging.path().join(file), directory.join(file)).unwrap();
        }
        secure.signal("HUP");
        wait_until("the new certificate is active", || curl(&secure, "/livez", &[]).status.success());
        exchanged.store(true, Relaxed);
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    for statuses in &statuses {
        let failed: Vec<_> = statuses.lines().filter(|status| *status != "200").collect();
        assert!(failed.is_empty() && !statuses.is_empty(), "{failed:?} of {}", statuses.lines().count());
    }
    secure.wait_for_log("TLS certificate reloaded");
}

#[test]
fn the_log_is_read_over_https_from_a_service_that_is_trusted() {
    let secure = start_secure(&["--admin-listen", "127.0.0.1:0"]);
    let admin = format!("https://{}", secure.admin());
    let directory = secure.directory();
    let key = key_file(directory, &secure.issue_key(&["--name", "backup", "--scope", "log"]));
    let stat = |more: &[&str]| {
        let mut stat = Command::new(program());
        stat.args(["log", "stat", "--store", &admin, "--api-key-file"]).arg(&key).args(more);
        stat.output().unwrap()
    };
    let ca = directory.join("ca.pem");
    let trusted = ["--ca", ca.to_str().unwrap()];
    wait_until("the new key is active", || stat(&trusted).status.success());
    let rejected = stat(&[]);
    assert_eq!(rejected.status.code(), Some(1), "{rejected:?}");
    let sentence = String::from_utf8(rejected.stderr).unwrap();
    assert!(
        sentence.contains("not issued by a trusted CA: pass the certificate of its CA with --ca FILE\n"),
        "{sentence}"
    );
}

#[test]
fn a_certificate_that_cannot_be_used_leaves_the_old_one_active() {
    let secure = start_secure(&[]);
    let directory = secure.directory();
    let authority = fs::read(directory.join("ca.pem")).unwrap();
    fs::write(directory.join("server.pem"), "nonsense").unwrap();
    let complaint = "TLS certificate not reloaded, the previous one stays active";
    secure.wait_for_log(complaint);
    assert_eq!(status(&secure, "/v1/pets", &[]), "200\n");
    assert_eq!(secure.printed().1.matches(complaint).count(), 1, "a lasting fault is logged once");
    let (now, day) = (SystemTime::now(), Duration::from_hours(24));
    for (number, period) in
        [(now - 2 * day)..(now - day), (now + day)..(now + 2 * day)].into_iter().enumerate()
    {
        certify_for(directory, period);
        fs::write(directory.join("ca.pem"), &authority).unwrap();
        wait_until("the service warns", || {
            secure.printed().1.matches("it is valid only from").count() > number
        });
        assert_eq!(status(&secure, "/v1/pets", &[]), "200\n");
    }
    // It expires soon, which is logged.
    certify(directory, 10 * day);
    wait_until("the new one is used", || curl(&secure, "/livez", &[]).status.success());
    let log = secure.wait_for_log("TLS certificate expires soon expires=");
    let expires = log.split("expires soon expires=").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    assert!(chrono::DateTime::parse_from_rfc3339(expires).is_ok(), "{expires}");
    secure.wait_for_log("TLS certificate usable again");
}

#[test]
fn an_expired_certificate_is_reported() {
    let mut app = stopped(Duration::ZERO, &[]);
    app.begin();
    app.wait_for_log("TLS certificate expired expires=");
}

#[test]
fn a_pair_that_does_not_fit_is_rejected_in_one_sentence() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    certify(directory.path(), Duration::from_hours(24));
    fs::copy(path("server.key"), path("another.key")).unwrap();
    certify(directory.path(), Duration::from_hours(24));
    fs::copy(path("server.key"), path("open.key")).unwrap();
    fs::set_permissions(path("open.key"), fs::Permissions::from_mode(0o644)).unwrap();
    for (certificate, key, reason) in [
        ("server.pem", "another.key", "it does not belong to the certificate"),
        ("server.pem", "open.key", "every user can read this private key; run chmod 600"),
        ("server.key", "server.key", "it must hold a chain of PEM certificates"),
        ("server.pem", "server.pem", "server.pem cannot be used"),
        ("nowhere.pem", "server.key", "No such file"),
    ] {
        let rejected =
            serve("memory:", &["--tls-cert", &path(certificate), "--tls-key", &path(key)]).exits_with(1);
        let sentences: Vec<_> =
            rejected.stderr.lines().filter(|line| line.starts_with("petstore: ")).collect();
        assert!(sentences.len() == 1 && sentences[0].contains(reason), "{reason}: {}", rejected.stderr);
    }
    for half in ["--tls-cert", "--tls-key"] {
        petstore(["serve", "--keys", &path("keys.toml"), half, &path("server.pem")])
            .exits_with(2)
            .says("required");
    }
}

#[test]
fn a_client_that_makes_no_tls_connection_is_closed() {
    let secure = start_secure(&[]);
    let mut silent = TcpStream::connect(secure.address()).unwrap();
    let plain = Call::new(secure.address(), "GET", "/livez").try_send();
    assert!(plain.is_none_or(|response| response.status != 200), "plain HTTP gets nothing");
    silent.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
    let mut response = Vec::new();
    silent.read_to_end(&mut response).unwrap();
    assert!(response.is_empty(), "closed without a response: {response:?}");
}
