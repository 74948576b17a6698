//! `petstore health`: checks whether a running service is ready or alive, for scripts and container health checks.

use std::{
    io::{self, IsTerminal as _},
    path::Path,
    process::ExitCode,
};

use adapters::service_client::{self, ServiceClient, ServiceUrl};
use anyhow::bail;
use clap::builder::styling::AnsiColor;
use serde_json::Value;
use tokio::time;

use crate::{
    config::{CA_OPTION, HealthArguments, Probe},
    output,
};

/// The exit status of an unhealthy service.
const UNHEALTHY: u8 = 1;
/// The exit status without a valid response. 2 means wrong usage.
const NO_RESPONSE: u8 = 3;
const RESPONSE_MAX: usize = 64 * 1024;

/// Prints the report of the service: on a terminal as lines, otherwise as JSON. The exit status is 0 if it is healthy.
#[tokio::main(flavor = "current_thread")]
pub(crate) async fn run(arguments: HealthArguments) -> ExitCode {
    let HealthArguments { url, probe, ca, timeout, json } = arguments;
    let asked = time::timeout(timeout, ask(&url, probe, ca.as_deref())).await;
    match asked.unwrap_or_else(|_| bail!("no response within {timeout:?}")) {
        Ok((status, report)) => {
            let is_for_people = io::stdout().is_terminal() && !json;
            let colour = if status == 200 { AnsiColor::Green } else { AnsiColor::Red };
            output::print_line(if is_for_people { readable(&report, colour) } else { report });
            if let Err(error) = output::check() {
                output::print_error(format_args!("petstore: {error}"));
                return ExitCode::FAILURE;
            }
            if status == 200 { ExitCode::SUCCESS } else { UNHEALTHY.into() }
        }
        Err(error) => {
            output::print_error(format_args!("petstore: {url}: {error:#}"));
            NO_RESPONSE.into()
        }
    }
}

/// The report as lines: a name and a value each. The status has this colour.
fn readable(report: &str, colour: AnsiColor) -> String {
    let Ok(Value::Object(fields)) = serde_json::from_str(report) else { return report.to_owned() };
    let line = |(name, value): (&String, &Value)| {
        let value = value.get("promise").unwrap_or(value);
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let text = text.replace(char::is_control, " ");
        let text = if name == "status" { output::verdict(text, colour) } else { text };
        format!("{name:<11} {text}")
    };
    let (status, others): (Vec<_>, Vec<_>) = fields.iter().partition(|(name, _)| *name == "status");
    status.into_iter().chain(others).map(line).collect::<Vec<_>>().join("\n")
}

/// Requests a probe. Returns the status code and the report, without control characters because any server may be
/// listening there.
pub(crate) async fn ask(url: &ServiceUrl, probe: Probe, ca: Option<&Path>) -> anyhow::Result<(u16, String)> {
    let path = match probe {
        Probe::Ready => "/readyz",
        Probe::Reads => "/readyz/reads",
        Probe::Writes => "/readyz/writes",
        Probe::Live => "/livez",
    };
    let response = ServiceClient::new(url.clone(), ca, CA_OPTION)?.send("GET", path).await?;
    let status = response.status().as_u16();
    let body = service_client::text(response, RESPONSE_MAX).await?;
    let is_report = body.starts_with("{\"status\":\"");
    match status {
        200 | 503 if is_report => Ok((status, body.replace(char::is_control, " "))),
        _ => bail!("the response is not a petstore report; check the URL"),
    }
}
