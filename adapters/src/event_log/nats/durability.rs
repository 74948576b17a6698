//! What a JetStream acknowledgement promises. Replicas and storage are read from the stream. Only the
//! servers' monitoring endpoints say whether they sync before they acknowledge; without them the operator can
//! state it, and otherwise it is reported as unknown.

use std::{collections::BTreeMap, time::Duration};

use application::ports::{Durability, DurabilityLevel, Fault, LogError};
use async_nats::jetstream::stream::Info;
use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::{
    address::Address,
    monitoring::{self, SyncSetting},
};

/// How often the servers are asked again: these settings change only with a restart.
pub(super) const REFRESH_INTERVAL: Duration = Duration::from_mins(1);

/// What is known about how the servers sync.
pub(super) struct Syncing {
    monitors: Vec<String>,
    stated: bool,
    /// By server name.
    checked: Mutex<BTreeMap<String, SyncSetting>>,
}

/// Whether the servers sync a record before they acknowledge it.
enum Verdict {
    Always(&'static str),
    NotAlways(String),
    Unknown(String),
}

impl Syncing {
    /// Asks every monitoring endpoint. Fails if one of them contradicts what the operator stated.
    pub(super) async fn look_up(address: &Address) -> Result<Self, LogError> {
        let syncing = Self {
            monitors: address.monitors.clone(),
            stated: address.sync_stated,
            checked: Mutex::default(),
        };
        syncing.refresh().await;
        let checked = syncing.checked.lock().clone();
        let contradiction = checked.iter().find(|(_, setting)| **setting != SyncSetting::Always);
        match contradiction {
            Some((server, setting)) if address.sync_stated => Err(LogError::new(
                Fault::CannotOpen,
                format!("the store URL says sync=always, but server {server} syncs {setting}"),
            )),
            Some(_) | None => Ok(syncing),
        }
    }

    /// Asks all servers at once. The last answer of a server that does not respond remains in force.
    pub(super) async fn refresh(&self) {
        let mut answers: JoinSet<_> = self.monitors.iter().cloned().map(monitoring::ask).collect();
        while let Some(Ok((monitor, answer))) = answers.join_next().await {
            match answer {
                Ok((server, setting)) => {
                    self.checked.lock().insert(server, setting);
                }
                Err(error) => tracing::warn!("the monitoring endpoint at {monitor} cannot be used: {error}"),
            }
        }
    }

    /// Whether there are monitoring endpoints to ask.
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
        let facts = [
            ("replicas", replicas.to_string()),
            ("storage", format!("{:?}", info.config.storage).to_lowercase()),
            ("sync_interval", sync),
            ("servers", servers(info).collect::<Vec<_>>().join(", ")),
        ];
        let facts = facts.into_iter().map(|(name, value)| (name.into(), value)).collect();
        Durability { engine: "nats", level, promise, facts }
    }

    /// Checked facts come first; the operator's statement counts for servers that could not be asked.
    fn verdict(&self, info: &Info) -> Verdict {
        let checked = self.checked.lock();
        let settings: Vec<_> = servers(info).map(|server| (server, checked.get(server))).collect();
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
            Some((server, _)) if !checked.is_empty() => {
                Verdict::Unknown(format!("UNKNOWN for {server}: its monitoring endpoint did not answer"))
            }
            Some(_) | None => Verdict::Unknown(
                "UNKNOWN: no monitoring endpoint is configured; by default servers acknowledge before they sync".into(),
            ),
        }
    }
}

fn buffered(replicas: usize) -> String {
    let copies = match replicas {
        0 | 1 => "ONE server has it, and a power cut there can lose the last moments".into(),
        2 => "it survives the end of a process, but a power cut can lose the last moments".into(),
        more => format!(
            "a majority of {more} servers has it, so losing one of them loses nothing, but a simultaneous \
             power cut can lose the last moments"
        ),
    };
    format!(
        "ACKNOWLEDGED BEFORE IT IS ON DISK: {copies} (run the servers with sync_interval: always and put \
         sync=always or monitor=host:port into the store URL)"
    )
}

/// The names of the servers that hold the stream.
fn servers(info: &Info) -> impl Iterator<Item = &str> {
    let cluster = info.cluster.iter();
    cluster.flat_map(|cluster| {
        cluster.leader.as_deref().into_iter().chain(cluster.replicas.iter().map(|peer| &*peer.name))
    })
}
