//! TLS to the gateway, with a certificate that a private CA has issued.

use std::process::Command;

use harness::{App, Gateway, finished, program};

#[test]
fn a_gateway_is_trusted_with_the_certificate_of_its_ca_only() {
    let directory = tempfile::tempdir().unwrap();
    let gateway = Gateway::start_with_tls(directory.path());
    let url = gateway.url();
    let mut app = App::stopped(&url, &[]);
    app.run_by(&gateway.wrapper());
    app.start_again();
    app.add("Rex");
    let mut variables = gateway.variables();
    variables.retain(|(name, _)| name != "SSL_CERT_FILE");
    let distrusting =
        finished(Command::new(program()).args(["log", "stat", "--store", &url]).envs(variables));
    distrusting.exits_with(1).says("was not issued by a trusted CA").says("SSL_CERT_FILE");
}
