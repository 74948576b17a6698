//! TLS to the gateway, with a certificate that a private CA has issued.

use harness::Gateway;

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_is_trusted_with_the_certificate_of_its_ca_only() {
    let directory = tempfile::tempdir().unwrap();
    let gateway = Gateway::start_with_tls(directory.path());
    let url = gateway.url();
    let file = directory.path().join("export.jsonl");
    std::fs::write(&file, "").unwrap();
    let import = ["log", "import", file.to_str().unwrap(), "--store", &url];
    let trusting = gateway.petstore(&import);
    assert!(!trusting.stderr.contains("certificate"), "{trusting:?}");
    gateway.petstore(&["log", "stat", "--store", &url]).exits_with(0);
    let mut variables = gateway.variables();
    variables.retain(|(name, _)| name != "SSL_CERT_FILE");
    let program = std::process::Command::new(harness::program())
        .args(["log", "stat", "--store", &url])
        .envs(variables)
        .output();
    let stderr = String::from_utf8(program.unwrap().stderr).unwrap();
    assert!(
        stderr.contains("was not issued by a trusted CA") && stderr.contains("SSL_CERT_FILE"),
        "{stderr}"
    );
}
