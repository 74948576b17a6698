//! The arguments of `petstore health`.

use std::{path::PathBuf, time::Duration};

use adapters::service_client::ServiceUrl;
use clap::{Args, ValueEnum};

use super::duration;

#[derive(Debug, Args)]
pub(crate) struct HealthArguments {
    /// URL of the service: `http://HOST:PORT` or `https://HOST:PORT`. Both listeners serve the probes.
    #[arg(env = "PETSTORE_URL", default_value = "http://127.0.0.1:8080")]
    pub(crate) url: ServiceUrl,
    /// Which probe to request.
    #[arg(long, default_value = "ready")]
    pub(crate) probe: Probe,
    /// File with the certificates (PEM) to trust for https [default: those of the system]
    #[arg(long, env = "PETSTORE_CA", value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// How long to wait for the whole response.
    #[arg(long, default_value = "5s", value_name = "TIME", value_parser = duration)]
    pub(crate) timeout: Duration,
    /// Print the report as JSON on a terminal too.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Probe {
    /// Whether the service should get requests (/readyz).
    Ready,
    /// Whether the service should get reads (/readyz/reads).
    Reads,
    /// Whether the service should get writes (/readyz/writes).
    Writes,
    /// Whether the process is alive (/livez).
    Live,
}
