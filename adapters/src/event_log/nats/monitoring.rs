//! Reads the name and the sync setting of a server from its monitoring endpoint.

use std::{io, time::Duration};

use serde_json::Value;
use tokio::time;

use crate::service_client::{self, ServiceClient};

const TIMEOUT: Duration = Duration::from_secs(2);
/// A monitoring page is a few kilobytes long; anything much longer is not one.
const PAGE_MAX: usize = 1024 * 1024;

/// The interval at which a server syncs stored messages, or `None` if it syncs before it acknowledges.
pub(super) type SyncInterval = Option<Duration>;

/// Requests the monitoring page at `host`, and returns the host with the server's name and setting.
pub(super) async fn ask(host: String) -> (String, io::Result<(String, SyncInterval)>) {
    let report = match time::timeout(TIMEOUT, get(&host)).await {
        Ok(report) => report,
        Err(elapsed) => Err(elapsed.into()),
    };
    (host, report)
}

async fn get(host: &str) -> io::Result<(String, SyncInterval)> {
    let url = format!("http://{host}").parse().map_err(io::Error::other)?;
    let client = ServiceClient::new(url, None).map_err(io::Error::other)?;
    let response = client.send("GET", "/varz").await.map_err(io::Error::other)?;
    let page = service_client::text(response, PAGE_MAX).await.map_err(io::Error::other)?;
    let page: Value = serde_json::from_str(&page)?;
    let (Some(server), Some(config)) =
        (page["server_name"].as_str(), page["jetstream"]["config"].as_object())
    else {
        return Err(io::Error::other("this is not the monitoring page of a server with JetStream"));
    };
    let nanos = config.get("sync_interval").and_then(Value::as_u64).unwrap_or_default();
    let is_always = config.get("sync_always") == Some(&Value::Bool(true));
    Ok((server.to_owned(), (!is_always).then(|| Duration::from_nanos(nanos))))
}
