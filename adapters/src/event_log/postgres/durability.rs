//! What the server does before it acknowledges a commit, read from its settings.

use application::ports::{Durability, DurabilityLevel};
use tokio_postgres::{Client, Error};

/// Every setting that decides whether an acknowledged commit survives a crash.
const LOOK_UP: &str = "\
    SELECT current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit'), \
        current_setting('full_page_writes'), current_setting('synchronous_standby_names'), \
        (SELECT relpersistence::text FROM pg_class WHERE oid = 'petstore_commits'::regclass)";

#[derive(Debug, Clone)]
struct Facts {
    server_version: String,
    fsync: String,
    synchronous_commit: String,
    full_page_writes: String,
    synchronous_standby_names: String,
    /// `p` for a permanent table, `u` for an unlogged one, which a crash empties.
    persistence: String,
}

/// Reads the settings and derives the promise.
pub(super) async fn look_up(client: &Client) -> Result<Durability, Error> {
    let row = client.query_one(LOOK_UP, &[]).await?;
    Ok(Facts {
        server_version: row.try_get(0)?,
        fsync: row.try_get(1)?,
        synchronous_commit: row.try_get(2)?,
        full_page_writes: row.try_get(3)?,
        synchronous_standby_names: row.try_get(4)?,
        persistence: row.try_get(5)?,
    }
    .durability())
}

impl Facts {
    fn durability(self) -> Durability {
        let (level, promise) = self.promise();
        let mut promise = promise.to_owned();
        if self.full_page_writes == "off" {
            promise += "; full_page_writes is off, so a power cut may damage the database unless its file system \
                        never tears a page";
        }
        let table = if self.persistence == "u" { "UNLOGGED" } else { "logged" };
        let facts = [
            ("server_version", self.server_version),
            ("fsync", self.fsync),
            ("synchronous_commit", self.synchronous_commit),
            ("full_page_writes", self.full_page_writes),
            ("synchronous_standby_names", self.synchronous_standby_names),
            ("table", table.into()),
        ];
        Durability {
            engine: "postgres",
            level,
            promise,
            facts: facts.map(|(setting, value)| (setting.to_owned(), value)).into(),
        }
    }

    /// The weakest setting decides.
    fn promise(&self) -> (DurabilityLevel, &'static str) {
        use DurabilityLevel::{Buffered, Replicated, Synced};
        let standbys = !self.synchronous_standby_names.is_empty();
        match (self.fsync.as_str(), self.persistence.as_str(), self.synchronous_commit.as_str()) {
            ("off", _, _) => {
                (Buffered, "NOT DURABLE: fsync is off, a power cut can lose or destroy everything")
            }
            (_, "u", _) => (Buffered, "NOT DURABLE: the table is UNLOGGED, a crash of the server empties it"),
            (_, _, "off") => (
                Buffered,
                "NOT DURABLE: synchronous_commit is off, a crash of the server can lose the last commits \
                 that were acknowledged",
            ),
            (_, _, "on" | "remote_apply") if standbys => (
                Replicated,
                "every acknowledged commit is on the disks of the server and of its synchronous standbys",
            ),
            (_, _, "remote_write") if standbys => (
                Synced,
                "every acknowledged commit is on the disk of the server and in the memory of its synchronous \
                 standbys: it survives a power cut of the server, or its loss, but not both at once",
            ),
            _ => (
                Synced,
                "every acknowledged commit is on the disk of the server: it survives crashes and power cuts, but \
                 not the loss of that disk",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_weakest_setting_decides_the_level() {
        use DurabilityLevel::{Buffered, Replicated, Synced};
        for (fsync, synchronous_commit, standbys, persistence, level) in [
            ("on", "on", "", "p", Synced),
            ("on", "local", "", "p", Synced),
            ("on", "local", "ANY 1 (a, b)", "p", Synced),
            ("on", "remote_write", "ANY 1 (a, b)", "p", Synced),
            ("on", "on", "ANY 1 (a, b)", "p", Replicated),
            ("on", "remote_apply", "a", "p", Replicated),
            ("on", "remote_apply", "", "p", Synced),
            ("on", "off", "a", "p", Buffered),
            ("off", "on", "a", "p", Buffered),
            ("on", "on", "a", "u", Buffered),
        ] {
            let facts = Facts {
                server_version: "17".into(),
                fsync: fsync.into(),
                synchronous_commit: synchronous_commit.into(),
                full_page_writes: "on".into(),
                synchronous_standby_names: standbys.into(),
                persistence: persistence.into(),
            };
            let durability = facts.clone().durability();
            assert_eq!(durability.level, level, "{facts:?}");
            assert_eq!(durability.promise.contains("NOT DURABLE"), level == Buffered, "{facts:?}");
        }
    }
}
