//! The durability of an acknowledged message. Replicas are a setting of the stream. Only the monitoring endpoints of the
//! servers show whether they sync before they acknowledge. Without one, the statement of the operator counts.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use application::ports::{Durability, DurabilityLevel, Fault, LogError};
use async_nats::jetstream::stream::Info;
use futures_util::future;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::{self, Instant};

use super::{address::Address, stream::servers_in_contact};
use crate::service_client::{self, ServiceClient, ServiceUrl};

/// How often the monitoring endpoints are polled: a restarted server may have other settings.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
const POLL_TIMEOUT: Duration = Duration::from_secs(1);
/// A monitoring page is a few kilobytes long; anything much longer is not one.
const PAGE_MAX: usize = 1024 * 1024;
/// A report that is older than this when the leader responds no longer counts. Without a leader, no server acknowledges
/// anything.
const REPORT_AGE_MAX: Duration = Duration::from_secs(10);

pub(super) struct SyncSettings {
    monitors: Vec<String>,
    /// Whether the store URL has `sync=always`, the statement of the operator.
    is_stated: bool,
    /// The interval at which each server syncs, by its name, or `None` if it syncs before it acknowledges, and when the
    /// server was asked.
    reports: Mutex<BTreeMap<String, (Option<Duration>, Instant)>>,
}

impl SyncSettings {
    /// Polls the monitoring endpoints. Rejects servers that contradict `sync=always`.
    pub(super) async fn open(address: &Address) -> Result<Self, LogError> {
        let (monitors, is_stated) = (address.monitors.clone(), address.sync_stated);
        let settings = Self { monitors, is_stated, reports: Mutex::default() };
        settings.poll().await;
        for (server, (interval, _)) in settings.reports.lock().iter().filter(|_| is_stated) {
            if let Some(interval) = interval {
                return Err(Fault::CannotOpen.error(format!(
                    "the store URL has sync=always, but {server} syncs every {interval:?}: change one of them"
                )));
            }
        }
        Ok(settings)
    }

    pub(super) async fn poll_periodically(self: Arc<Self>) {
        while !self.monitors.is_empty() {
            time::sleep(REFRESH_INTERVAL).await;
            self.poll().await;
        }
    }

    /// Forgets reports that are too old, if another poll does not renew them. Called when the leader responds.
    pub(super) async fn expire(&self) {
        let is_recent = |(_, asked): &(_, Instant)| asked.elapsed() < REPORT_AGE_MAX;
        let all_are_recent = self.reports.lock().values().all(is_recent);
        if !all_are_recent {
            self.poll().await;
            self.reports.lock().retain(|_, report| is_recent(report));
        }
    }

    /// Polls all endpoints at the same time. The last report of a server that does not respond counts until it is too old.
    async fn poll(&self) {
        let asked = Instant::now();
        let polls = self.monitors.iter().map(async |host| {
            if let Ok(Some((server, interval))) = time::timeout(POLL_TIMEOUT, get(host)).await {
                self.reports.lock().insert(server, (interval, asked));
            }
        });
        future::join_all(polls).await;
    }

    pub(super) fn durability(&self, info: &Info) -> Durability {
        let replicas = info.config.num_replicas;
        let copies = match replicas {
            0 | 1 => "a single server".to_owned(),
            more => format!("a majority of {more} servers"),
        };
        let (is_synced, sync) = self.sync_setting(info);
        let (level, promise) = if is_synced == Some(true) {
            let level = if replicas < 3 { DurabilityLevel::Synced } else { DurabilityLevel::Replicated };
            let source = sync.trim_start_matches("always");
            (level, format!("every acknowledged commit is on the disks of {copies}{source}"))
        } else {
            let are = if is_synced.is_some() { "ARE" } else { "MAY BE" };
            let loss = match replicas {
                0 | 1 => "only ONE server has them, and a power cut there can lose the latest".to_owned(),
                _ => format!("{copies} have them, but a simultaneous power cut can lose the latest"),
            };
            let promise = format!(
                "COMMITS {are} ACKNOWLEDGED BEFORE THEY ARE ON DISK: {loss} (run the servers with sync_interval: always and \
                 put sync=always or monitor=host:port into the store URL)"
            );
            (DurabilityLevel::Buffered, promise)
        };
        let servers = info.cluster.iter().flat_map(|cluster| {
            cluster.leader.as_deref().into_iter().chain(cluster.replicas.iter().map(|peer| &*peer.name))
        });
        let settings = [
            ("replicas", replicas.to_string()),
            ("storage", format!("{:?}", info.config.storage).to_lowercase()),
            ("sync_interval", sync),
            ("servers", servers.collect::<Vec<_>>().join(", ")),
        ];
        let settings = settings.map(|(name, value)| (name.to_owned(), value)).into();
        Durability { engine: "nats", level, promise, settings }
    }

    /// Whether the servers sync a record before they acknowledge it, if that is known, and the setting in words. A report of a
    /// server counts more than the statement of the operator.
    fn sync_setting(&self, info: &Info) -> (Option<bool>, String) {
        let (reports, servers) = (self.reports.lock(), servers_in_contact(info));
        let mut unknown = None;
        for server in servers.iter().copied() {
            match reports.get(server) {
                Some((None, _)) => {}
                Some((Some(interval), _)) => {
                    return (Some(false), format!("{interval:?} (checked on {server})"));
                }
                None => unknown = Some(server),
            }
        }
        if unknown.is_none() && !servers.is_empty() {
            (Some(true), "always (checked)".into())
        } else if self.is_stated {
            (Some(true), "always (stated by the operator, not checked)".into())
        } else {
            let server = unknown.unwrap_or("the leader");
            (None, format!("UNKNOWN: no monitoring endpoint reports how {server} syncs"))
        }
    }
}

/// Requests the monitoring page at `host`. Returns the name of the server and its setting.
async fn get(host: &str) -> Option<(String, Option<Duration>)> {
    let url = format!("http://{host}").parse::<ServiceUrl>().ok()?;
    let response = ServiceClient::new(url, None, "ca").ok()?.send("GET", "/varz").await.ok()?;
    let page = service_client::text(response, PAGE_MAX).await.ok()?;
    let page: Value = serde_json::from_str(&page).ok()?;
    let config = page["jetstream"]["config"].as_object()?;
    let interval = config.get("sync_interval").and_then(Value::as_u64).unwrap_or_default();
    let is_always = config.get("sync_always") == Some(&Value::Bool(true));
    Some((page["server_name"].as_str()?.to_owned(), (!is_always).then(|| Duration::from_nanos(interval))))
}
