//! The arguments that name a log to read, which may be that of a running service.

use std::{env, fs, os::unix::fs::PermissionsExt as _, path::PathBuf};

use anyhow::{Context as _, bail};
use clap::Args;

use crate::{store_url::StoreUrl, wire::Access};

/// A log that is only read.
#[derive(Debug, Clone, Args)]
pub(crate) struct SourceArgument {
    /// Where the log is stored (see petstore serve), or <https://HOST:PORT> of the operators' listener of a running service.
    #[arg(
        long,
        env = "PETSTORE_STORE",
        hide_env_values = true,
        default_value = "sled:petstore-data/log",
        value_name = "URL"
    )]
    pub(crate) store: StoreUrl,
    #[command(flatten)]
    pub(crate) access: AccessArguments,
}

/// How the log of a running service may be read. Other logs need none of it.
#[derive(Debug, Clone, Args)]
pub(crate) struct AccessArguments {
    /// File with an API key that has the scope log, for the log of a running service. Alternatively, the environment variable
    /// `PETSTORE_LOG_KEY` holds the key itself.
    #[arg(long, env = "PETSTORE_KEY_FILE", value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// File with the certificates (PEM) to trust for https [default: those of the system]
    #[arg(long, env = "PETSTORE_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
}

impl AccessArguments {
    /// Reads the key.
    pub(crate) fn access(&self) -> anyhow::Result<Access> {
        let key = match &self.key_file {
            Some(file) => {
                let unreadable = || format!("the key file {} cannot be read", file.display());
                if fs::metadata(file).with_context(unreadable)?.permissions().mode() & 0o007 != 0 {
                    bail!("every user can use the API key in {0}: run chmod 600 {0}", file.display());
                }
                Some(fs::read_to_string(file).with_context(unreadable)?)
            }
            None => env::var("PETSTORE_LOG_KEY").ok().filter(|key| !key.is_empty()),
        };
        Ok(Access { key, ca: self.ca.clone() })
    }
}
