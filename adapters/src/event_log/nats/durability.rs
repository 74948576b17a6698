//! The durability of an acknowledged message. Replicas and storage are settings of the stream. Whether the servers sync
//! before they acknowledge is shown only by their monitoring endpoints. Without them, the operator can state it;
//! otherwise it is reported as unknown.

use std::{collections::BTreeMap, time::Duration};

use application::ports::{Durability, DurabilityLevel, Fault, LogError};
use async_nats::jetstream::stream::Info;
use parking_lot::Mutex;
use tokio::{sync::Mutex as AsyncMutex, task::JoinSet, time::Instant};

use super::{
    address::Address,
    monitoring::{self, SyncSetting},
    stream,
};
use crate::log_once::{Change, LogOnce};

/// How often the monitoring endpoints are polled: a restarted server may have other settings.
pub(super) const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// An older report no longer counts.
const REPORT_AGE_MAX: Duration = Duration::from_secs(10);

/// The known sync settings of the servers.
pub(super) struct SyncSettings {
    monitors: Vec<String>,
    stated: bool,
    /// By server name.
    reports: Mutex<BTreeMap<String, ServerReport>>,
    /// The number of the connection and the servers of the stream at the last poll.
    last_poll: Mutex<Option<(u64, Vec<String>)>>,
    /// The last logged error of each endpoint. Locked during a poll.
    logged_errors: AsyncMutex<BTreeMap<String, LogOnce>>,
}

/// The sync setting that a server reported.
struct ServerReport {
    setting: SyncSetting,
    asked: Instant,
}

/// Whether the servers sync a record before they acknowledge it.
enum Verdict {
    Always(&'static str),
    NotAlways(String),
    Unknown(String),
}

impl SyncSettings {
    /// No setting is known until the first poll.
    pub(super) fn new(address: &Address) -> Self {
        let (reports, last_poll, logged_errors) = Default::default();
        Self {
            monitors: address.monitors.clone(),
            stated: address.sync_stated,
            reports,
            last_poll,
            logged_errors,
        }
    }

    /// Rejects servers that contradict sync=always in the store URL.
    pub(super) fn check_sync_always(&self) -> Result<(), LogError> {
        let reports = self.reports.lock();
        match reports.iter().find(|(_, report)| report.setting != SyncSetting::Always) {
            Some((server, ServerReport { setting, .. })) if self.stated => Err(LogError::new(
                Fault::CannotOpen,
                format!("the store URL has sync=always, but {server} syncs {setting}: change one of them"),
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// Polls the servers. The last report of a server that does not respond counts until it is too old.
    pub(super) async fn refresh(&self) {
        let mut logged_errors = self.logged_errors.lock().await;
        let reports = self.ask(&mut logged_errors).await;
        self.reports.lock().extend(reports);
    }

    /// Polls the servers if the connection or the servers of the stream have changed: one of them may have restarted.
    pub(super) async fn follow(&self, epoch: u64, info: &Info) {
        let current = Some((epoch, serving(info)));
        if *self.last_poll.lock() == current {
            return;
        }
        self.refresh().await;
        *self.last_poll.lock() = current;
    }

    /// Polls all servers concurrently.
    async fn ask(&self, logged: &mut BTreeMap<String, LogOnce>) -> BTreeMap<String, ServerReport> {
        let asked = Instant::now();
        let mut polling: JoinSet<_> = self.monitors.iter().cloned().map(monitoring::ask).collect();
        let mut reports = BTreeMap::new();
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
            if let Ok((server, setting)) = report {
                reports.insert(server, ServerReport { setting, asked });
            }
        }
        reports
    }

    /// Whether the store URL names monitoring endpoints.
    pub(super) fn is_monitored(&self) -> bool {
        !self.monitors.is_empty()
    }

    pub(super) fn durability(&self, info: &Info) -> Durability {
        let replicas = info.config.num_replicas;
        let verdict = self.verdict(info);
        let (level, promise) = match &verdict {
            Verdict::Always(source) if replicas >= 3 => (
                DurabilityLevel::Replicated,
                format!("on the disks of a majority of {replicas} servers before it is acknowledged{source}"),
            ),
            Verdict::Always(source) => {
                let copies = if replicas == 2 { "both of two servers" } else { "a single server" };
                (
                    DurabilityLevel::Synced,
                    format!("on the disk of {copies} before it is acknowledged{source}"),
                )
            }
            Verdict::NotAlways(_) => (DurabilityLevel::Buffered, buffered(replicas)),
            Verdict::Unknown(_) => (DurabilityLevel::Buffered, format!("PERHAPS {}", buffered(replicas))),
        };
        let sync = match verdict {
            Verdict::Always(source) => format!("always{source}"),
            Verdict::NotAlways(what) | Verdict::Unknown(what) => what,
        };
        let settings = [
            ("replicas", replicas.to_string()),
            ("storage", format!("{:?}", info.config.storage).to_lowercase()),
            ("sync_interval", sync),
            ("servers", servers(info).collect::<Vec<_>>().join(", ")),
        ];
        let settings = settings.into_iter().map(|(name, value)| (name.into(), value)).collect();
        Durability { engine: "nats", level, promise, settings }
    }

    /// Reported settings take precedence; the statement of the operator counts for servers without a report.
    fn verdict(&self, info: &Info) -> Verdict {
        let reports = self.reports.lock();
        let setting = |server: &str| {
            let report = reports.get(server).filter(|report| report.asked.elapsed() < REPORT_AGE_MAX);
            report.map(|report| &report.setting)
        };
        let serving = serving(info);
        let settings: Vec<_> = serving.iter().map(|server| (server, setting(server))).collect();
        let otherwise = settings.iter().find_map(|(server, setting)| match setting {
            Some(SyncSetting::Always) | None => None,
            Some(SyncSetting::Every(interval)) => Some((server, interval)),
        });
        if let Some((server, interval)) = otherwise {
            return Verdict::NotAlways(format!("{interval:?} (checked on {server})"));
        }
        let unchecked = settings.iter().find(|(_, setting)| setting.is_none());
        match unchecked {
            None if !settings.is_empty() => Verdict::Always(" (checked)"),
            Some(_) | None if self.stated => Verdict::Always(" (stated by the operator, not checked)"),
            Some((server, _)) if self.is_monitored() => {
                Verdict::Unknown(format!("UNKNOWN for {server}: its monitoring endpoint did not respond"))
            }
            Some(_) | None => Verdict::Unknown(
                "UNKNOWN: no monitoring endpoint is configured; by default servers acknowledge before they sync".into(),
            ),
        }
    }
}

fn buffered(replicas: usize) -> String {
    let copies = match replicas {
        0 | 1 => "ONE server has it, and a power cut there can lose the latest commits".into(),
        2 => "it survives a process crash, but a power cut can lose the latest commits".into(),
        more => format!(
            "a majority of {more} servers has it, so losing one of them loses nothing, but a simultaneous \
             power cut can lose the latest commits"
        ),
    };
    format!(
        "ACKNOWLEDGED BEFORE IT IS ON DISK: {copies} (run the servers with sync_interval: always and put \
         sync=always or monitor=host:port into the store URL)"
    )
}

/// The names of the leader and of the replicas that it is in contact with. Other replicas acknowledge nothing, so their
/// settings do not matter.
fn serving(info: &Info) -> Vec<String> {
    let leader = info.cluster.iter().filter_map(|cluster| cluster.leader.clone());
    let mut replicas: Vec<_> = stream::in_contact(info).map(|peer| peer.name.clone()).collect();
    replicas.sort_unstable();
    leader.chain(replicas).collect()
}

/// The names of the servers that hold the stream.
fn servers(info: &Info) -> impl Iterator<Item = &str> {
    let cluster = info.cluster.iter();
    cluster.flat_map(|cluster| {
        cluster.leader.as_deref().into_iter().chain(cluster.replicas.iter().map(|peer| &*peer.name))
    })
}
