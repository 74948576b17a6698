//! Checks the addresses of the listeners before anything is opened.

use anyhow::bail;

use super::ServeArguments;

impl ServeArguments {
    pub(crate) fn check_listeners(&self) -> anyhow::Result<()> {
        self.check_addresses()?;
        self.check_plain_http()
    }

    /// Rejects two listeners on one address, which the system would report as taken by another process.
    fn check_addresses(&self) -> anyhow::Result<()> {
        let listen = self.listen;
        let Some(admin) = self.ops_listen else { return Ok(()) };
        let same_host =
            listen.ip() == admin.ip() || [listen, admin].iter().any(|address| address.ip().is_unspecified());
        if listen.port() == admin.port() && listen.port() != 0 && same_host {
            bail!(
                "--listen {listen} and --ops-listen {admin} are the same address: choose another port for \
                 --ops-listen"
            );
        }
        Ok(())
    }

    /// Rejects plain HTTP on a network, which would expose API keys, unless the operator allows it.
    fn check_plain_http(&self) -> anyhow::Result<()> {
        if self.tls_cert.is_some() || self.insecure_http {
            return Ok(());
        }
        let listeners = [
            (Some(self.listen), "--insecure-http"),
            (self.ops_listen.filter(|_| !self.ops_insecure_http), "--ops-insecure-http"),
        ];
        for (address, flag) in listeners {
            if let Some(address) = address.filter(|address| !address.ip().is_loopback()) {
                bail!(
                    "{address} is reachable from other machines, and plain HTTP exposes API keys to the network: listen on \
                     127.0.0.1, give a certificate with --tls-cert and --tls-key, or pass {flag} if a proxy in front \
                     terminates TLS"
                )
            }
        }
        Ok(())
    }
}
