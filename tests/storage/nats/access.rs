//! Servers that require credentials and encrypted connections.

use std::{fs, path::Path};

use adapters::event_log::nats::NatsLog;
use application::ports::{Fault, LogSource as _, Position};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use harness::{NatsCluster, NatsSync};
use nkeys::KeyPair;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa};
use serde_json::{Value, json};

use super::open_log;

#[tokio::test(flavor = "multi_thread")]
async fn a_password_opens_the_log_and_is_never_shown() {
    let access = "authorization { user: joe, password: \"s3/cr?t\" }";
    let cluster = NatsCluster::start_with(1, NatsSync::Default, access).await;
    let servers = cluster.addresses();
    let log = open_log(&format!("nats://joe:s3%2Fcr%3Ft@{servers}/PETS")).await;
    assert_eq!(log.head().await, Ok(Position::START));
    let wrong = NatsLog::open(&format!("nats://joe:hidden@{servers}/PETS"), None).await;
    let error = wrong.err().expect("the password is wrong");
    assert_eq!(error.fault, Fault::CannotOpen, "{error}");
    assert!(!error.detail.contains("hidden") && !format!("{error:?}").contains("hidden"), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_protect_the_connection_both_ways() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let files = directory.path();
    make_certificates(files, "127.0.0.1");
    let path = |name: &str| files.join(name).display().to_string();
    let tls = format!(
        "tls {{ cert_file: {:?}, key_file: {:?}, ca_file: {:?}, verify: true }}",
        path("server.pem"),
        path("server.key"),
        path("ca.pem")
    );
    let cluster = NatsCluster::start_with(1, NatsSync::Default, &tls).await;
    let url = format!(
        "{}?tls=required&ca={}&cert={}&key={}",
        cluster.url("PETS"),
        path("ca.pem"),
        path("client.pem"),
        path("client.key")
    );
    let log = open_log(&url).await;
    assert_eq!(log.head().await, Ok(Position::START));
    for url in [cluster.url("PETS"), format!("{}?ca={}", cluster.url("PETS"), path("ca.pem"))] {
        NatsLog::open(&url, None)
            .await
            .err()
            .expect("a client without the authority or a certificate is rejected");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_must_be_encrypted_is_never_made_without_tls() {
    let cluster = NatsCluster::start(1, NatsSync::Default).await;
    NatsLog::open(&format!("{}?tls=required", cluster.url("PETS")), None)
        .await
        .err()
        .expect("the server has no TLS");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_credentials_file_opens_the_log() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("petstore.creds");
    let operator = make_operator(&file);
    let cluster = NatsCluster::start_with(1, NatsSync::Default, &operator).await;
    let url = format!("{}?creds={}", cluster.url("PETS"), file.display());
    let log = open_log(&url).await;
    assert_eq!(log.head().await, Ok(Position::START));
    let rejected = NatsLog::open(&cluster.url("PETS"), None)
        .await
        .err()
        .expect("a client without credentials is rejected");
    assert_eq!(rejected.fault, Fault::CannotOpen, "{rejected}");
    let missing = NatsLog::open(&format!("{}?creds=/nowhere", cluster.url("PETS")), None).await;
    assert!(missing.err().expect("there is no such file").detail.contains("/nowhere"));
}

/// Writes the credentials of a user and returns the configuration of servers that know its operator.
fn make_operator(credentials: &Path) -> String {
    let (operator, system, pets) = (KeyPair::new_operator(), KeyPair::new_account(), KeyPair::new_account());
    let user = KeyPair::new_user();
    let unlimited = json!({ "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "conn": -1,
                            "leaf": -1, "wildcards": true, "mem_storage": -1, "disk_storage": -1,
                            "streams": -1, "consumer": -1 });
    let no_storage = json!({ "subs": -1, "data": -1, "payload": -1, "conn": -1, "leaf": -1 });
    let account = |limits: Value| json!({ "type": "account", "version": 2, "limits": limits });
    let user_claims = json!({ "type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1 });
    let user_jwt = sign(&pets, &user, &user_claims);
    let seed = user.seed().expect("a new key has a seed");
    let text = format!(
        "-----BEGIN NATS USER JWT-----\n{user_jwt}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    );
    fs::write(credentials, text).expect("the directory can be written");
    format!(
        "operator: {}\nsystem_account: {}\nresolver: MEMORY\nresolver_preload {{ {}: {}, {}: {} }}",
        sign(&operator, &operator, &json!({ "type": "operator", "version": 2 })),
        system.public_key(),
        system.public_key(),
        sign(&operator, &system, &account(no_storage)),
        pets.public_key(),
        sign(&operator, &pets, &account(unlimited)),
    )
}

/// The claims about `subject`, in the words of its issuer.
fn sign(issuer: &KeyPair, subject: &KeyPair, claims: &Value) -> String {
    let body = json!({ "iss": issuer.public_key(), "sub": subject.public_key(), "name": "petstore",
                       "iat": 1_700_000_000, "jti": "1", "nats": claims });
    let header = json!({ "typ": "JWT", "alg": "ed25519-nkey" });
    let text = [header, body].map(|part| URL_SAFE_NO_PAD.encode(part.to_string())).join(".");
    let signature = issuer.sign(text.as_bytes()).expect("a new key signs");
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))
}

/// Writes the certificate of an authority, and two that it signed: for the server at `address` and for the client.
fn make_certificates(directory: &Path, address: &str) {
    let write =
        |name: &str, pem: String| fs::write(directory.join(name), pem).expect("the directory can be written");
    let key = || rcgen::KeyPair::generate().expect("a key can be made");
    let mut authority = CertificateParams::new(vec![]).expect("no names are fine");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, key()).expect("an authority signs itself");
    write("ca.pem", authority.pem());
    for name in ["server", "client"] {
        let key = key();
        let certificate = CertificateParams::new(vec![address.into()]).expect("an address is a fine name");
        let certificate = certificate.signed_by(&key, &authority).expect("the authority signs");
        write(&format!("{name}.pem"), certificate.pem());
        write(&format!("{name}.key"), key.serialize_pem());
    }
}
