//! The durability of an acknowledged message. Replicas and storage are settings of the stream. Only the monitoring
//! endpoints of the servers show whether they sync before they acknowledge. Where no endpoint responds, the statement of
//! the operator counts (`sync=always` in the store URL); without either, the durability is reported as unknown.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use application::ports::{Durability, DurabilityLevel, Fault, LogError};
use async_nats::jetstream::stream::Info;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::{
    sync::Mutex as AsyncMutex,
    task::JoinSet,
    time::{self, Instant},
};

use super::{address::Address, stream};
use crate::{
    log_once::{Change, LogOnce},
    service_client::{self, ServiceClient, ServiceUrl},
};

/// How often the monitoring endpoints are polled: a restarted server may have other settings.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
const POLL_TIMEOUT: Duration = Duration::from_secs(2);
/// A monitoring page is a few kilobytes long; anything much longer is not one.
const PAGE_MAX: usize = 1024 * 1024;
/// A report that was older than this when the leader last responded no longer counts. Without a leader, no server
/// acknowledges anything.
const REPORT_AGE_MAX: Duration = Duration::from_secs(10);

/// The interval at which a server syncs stored messages, or `None` if it syncs before it acknowledges.
type SyncInterval = Option<Duration>;

pub(super) struct SyncSettings {
    monitors: Vec<String>,
    /// Whether the store URL has `sync=always`, the statement of the operator.
    stated: bool,
    /// The last report of each server, by its name, and when it was requested.
    reports: Mutex<BTreeMap<String, (SyncInterval, Instant)>>,
    /// The epoch of the connection and the servers in contact at the last poll.
    last_poll: Mutex<Option<(u64, Vec<String>)>>,
    /// The last logged error of each endpoint. Locked during a poll.
    logged_errors: AsyncMutex<BTreeMap<String, LogOnce>>,
}

impl SyncSettings {
    /// No setting is known until the first poll.
    pub(super) fn new(address: &Address) -> Self {
        Self {
            monitors: address.monitors.clone(),
            stated: address.sync_stated,
            reports: Mutex::default(),
            last_poll: Mutex::default(),
            logged_errors: AsyncMutex::default(),
        }
    }

    /// Rejects servers that contradict sync=always in the store URL.
    pub(super) fn check_sync_always(&self) -> Result<(), LogError> {
        let reports = self.reports.lock();
        match reports.iter().find_map(|(server, (interval, _))| Some((server, (*interval)?))) {
            Some((server, interval)) if self.stated => Err(Fault::CannotOpen.error(format!(
                "the store URL has sync=always, but {server} syncs every {interval:?}: change one of them"
            ))),
            Some(_) | None => Ok(()),
        }
    }

    /// Polls the servers, for as long as it is polled itself.
    pub(super) async fn refresh_periodically(self: Arc<Self>) {
        loop {
            time::sleep(REFRESH_INTERVAL).await;
            self.refresh().await;
        }
    }

    /// Polls the servers if the connection or the servers of the stream have changed: one of them may have restarted.
    pub(super) async fn refresh_if_changed(&self, epoch: u64, info: &Info) {
        let current = Some((epoch, servers_in_contact(info)));
        if *self.last_poll.lock() == current {
            return;
        }
        self.refresh().await;
        *self.last_poll.lock() = current;
    }

    /// Polls all servers concurrently. The last report of a server that does not respond counts until it is too old.
    async fn refresh(&self) {
        let mut logged = self.logged_errors.lock().await;
        let asked = Instant::now();
        let mut polling: JoinSet<_> = self.monitors.iter().cloned().map(ask).collect();
        while let Some(Ok((monitor, report))) = polling.join_next().await {
            match logged.entry(monitor.clone()).or_default().attempt(report.as_ref().err()) {
                Change::None => {}
                Change::Failed(error) => {
                    tracing::warn!(
                        target: "petstore::storage",
                        %monitor, %error,
                        "NATS monitoring endpoint unavailable"
                    );
                }
                Change::Recovered => {
                    tracing::info!(
                        target: "petstore::storage",
                        %monitor,
                        "NATS monitoring endpoint available again"
                    );
                }
            }
            if let Ok((server, interval)) = report {
                self.reports.lock().insert(server, (interval, asked));
            }
        }
    }

    pub(super) fn is_monitored(&self) -> bool {
        !self.monitors.is_empty()
    }

    pub(super) fn durability(&self, info: &Info, reported: Instant) -> Durability {
        let replicas = info.config.num_replicas;
        let (level, promise, sync) = match self.syncs_always(info, reported) {
            Ok(source) => {
                let (level, copies) = match replicas {
                    0 | 1 => (DurabilityLevel::Synced, "the disk of a single server".to_owned()),
                    2 => (DurabilityLevel::Synced, "the disks of both servers".to_owned()),
                    more => {
                        (DurabilityLevel::Replicated, format!("the disks of a majority of {more} servers"))
                    }
                };
                let promise = format!("every acknowledged commit is on {copies}{source}");
                (level, promise, format!("always{source}"))
            }
            Err((are, sync)) => (DurabilityLevel::Buffered, buffered(are, replicas), sync),
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
        let settings = settings.into_iter().map(|(name, value)| (name.into(), value)).collect();
        Durability { engine: "nats", level, promise, settings }
    }

    /// Whether the servers sync a record before they acknowledge it. `Ok` says how that is known. `Err` holds the verb of
    /// the warning ("ARE" or "MAY BE" acknowledged too early) and the setting. What a server reports counts more than
    /// what the operator states.
    fn syncs_always(&self, info: &Info, reported: Instant) -> Result<&'static str, (&'static str, String)> {
        let reports = self.reports.lock();
        let report = |server: &str| {
            let report = reports.get(server).filter(|(_, asked)| reported < *asked + REPORT_AGE_MAX);
            report.map(|(interval, _)| *interval)
        };
        let serving = servers_in_contact(info);
        let late = serving.iter().find_map(|server| Some((server, report(server)??)));
        if let Some((server, interval)) = late {
            return Err(("ARE", format!("{interval:?} (checked on {server})")));
        }
        match serving.iter().find(|server| report(server).is_none()) {
            None if !serving.is_empty() => Ok(" (checked)"),
            Some(_) | None if self.stated => Ok(" (stated by the operator, not checked)"),
            Some(server) if self.is_monitored() => {
                Err(("MAY BE", format!("UNKNOWN for {server}: its monitoring endpoint did not respond")))
            }
            None => Err(("MAY BE", "UNKNOWN: the stream reports no servers".into())),
            Some(_) => Err((
                "MAY BE",
                "UNKNOWN: no monitoring endpoint is configured; by default servers acknowledge before they sync".into(),
            )),
        }
    }
}

/// Requests the monitoring page at `host`, and returns the host with the server's name and setting.
async fn ask(host: String) -> (String, Result<(String, SyncInterval), String>) {
    let report = time::timeout(POLL_TIMEOUT, get(&host)).await;
    (host, report.unwrap_or_else(|_| Err("no response".into())))
}

async fn get(host: &str) -> Result<(String, SyncInterval), String> {
    let url = format!("http://{host}").parse::<ServiceUrl>()?;
    let requested = async {
        let response = ServiceClient::new(url, None, "ca")?.send("GET", "/varz").await?;
        service_client::text(response, PAGE_MAX).await
    };
    let page = requested.await.map_err(|error| error.to_string())?;
    let page: Value = serde_json::from_str(&page).unwrap_or_default();
    let (Some(server), Some(config)) =
        (page["server_name"].as_str(), page["jetstream"]["config"].as_object())
    else {
        return Err("this is not the monitoring page of a server with JetStream".into());
    };
    let nanos = config.get("sync_interval").and_then(Value::as_u64).unwrap_or_default();
    let is_always = config.get("sync_always") == Some(&Value::Bool(true));
    Ok((server.to_owned(), (!is_always).then(|| Duration::from_nanos(nanos))))
}

fn buffered(are: &str, replicas: usize) -> String {
    let copies = match replicas {
        0 | 1 => "only ONE server has them, and a power cut there can lose the latest".into(),
        2 => "they survive a crash of the processes, but a power cut can lose the latest".into(),
        more => format!(
            "a majority of {more} servers has them, so the loss of one server loses nothing, but a simultaneous power cut \
             can lose the latest"
        ),
    };
    format!(
        "COMMITS {are} ACKNOWLEDGED BEFORE THEY ARE ON DISK: {copies} (run the servers with sync_interval: always and put \
         sync=always or monitor=host:port into the store URL)"
    )
}

/// The names of the leader and of the replicas that it is in contact with. Other replicas acknowledge nothing, so their
/// settings do not matter.
fn servers_in_contact(info: &Info) -> Vec<String> {
    let leader = info.cluster.iter().filter_map(|cluster| cluster.leader.clone());
    let mut replicas: Vec<_> = stream::in_contact(info).map(|peer| peer.name.clone()).collect();
    replicas.sort_unstable();
    leader.chain(replicas).collect()
}
