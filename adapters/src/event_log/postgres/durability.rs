//! The durability of a commit, derived from the settings of the server.

use application::ports::{Durability, DurabilityLevel};
use tokio_postgres::{Client, Error};

const SETTINGS: [&str; 5] =
    ["server_version", "fsync", "synchronous_commit", "full_page_writes", "synchronous_standby_names"];

/// Reads the settings, and the persistence of the table: a crash empties an unlogged table.
const SETTINGS_SQL: &str = "\
    SELECT setting, current_setting(setting) FROM unnest($1::text[]) AS setting UNION ALL \
    SELECT 'table', CASE relpersistence WHEN 'u' THEN 'UNLOGGED' ELSE 'logged' END \
        FROM pg_class WHERE oid = 'petstore_commits'::regclass";

pub(super) async fn look_up(client: &Client) -> Result<Durability, Error> {
    let rows = client.query(SETTINGS_SQL, &[&SETTINGS.as_slice()]).await?;
    let settings = rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
    Ok(durability(settings.collect::<Result<_, Error>>()?))
}

/// The weakest setting decides.
fn durability(settings: Vec<(String, String)>) -> Durability {
    use DurabilityLevel::{Buffered, Replicated, Synced};
    let setting = |name: &str| {
        settings.iter().find(|(setting, _)| setting == name).map_or("", |(_, value)| value.as_str())
    };
    let standbys = !setting("synchronous_standby_names").is_empty();
    let (level, promise) = match (setting("fsync"), setting("table"), setting("synchronous_commit")) {
        ("off", _, _) => (Buffered, "NOT DURABLE: fsync is off, a power cut can lose or destroy everything"),
        (_, "UNLOGGED", _) => {
            (Buffered, "NOT DURABLE: the table is UNLOGGED, a crash of the server empties it")
        }
        (_, _, "off") => (
            Buffered,
            "NOT DURABLE: synchronous_commit is off, a crash of the server can lose the last commits that were \
             acknowledged",
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
    };
    let mut promise = promise.to_owned();
    if setting("full_page_writes") == "off" {
        promise += "; full_page_writes is off, so a power cut may damage the database unless its file system \
                    never tears a page";
    }
    Durability { engine: "postgres", level, promise, settings }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_weakest_setting_decides_the_level() {
        use DurabilityLevel::{Buffered, Replicated, Synced};
        for (fsync, synchronous_commit, standbys, table, level) in [
            ("on", "on", "", "logged", Synced),
            ("on", "local", "", "logged", Synced),
            ("on", "local", "ANY 1 (a, b)", "logged", Synced),
            ("on", "remote_write", "ANY 1 (a, b)", "logged", Synced),
            ("on", "on", "ANY 1 (a, b)", "logged", Replicated),
            ("on", "remote_apply", "a", "logged", Replicated),
            ("on", "remote_apply", "", "logged", Synced),
            ("on", "off", "a", "logged", Buffered),
            ("off", "on", "a", "logged", Buffered),
            ("on", "on", "a", "UNLOGGED", Buffered),
        ] {
            let settings = [
                ("fsync", fsync),
                ("synchronous_commit", synchronous_commit),
                ("synchronous_standby_names", standbys),
                ("table", table),
            ];
            let durability = durability(settings.map(|(name, value)| (name.into(), value.into())).into());
            assert_eq!(durability.level, level, "{settings:?}");
            assert_eq!(durability.promise.contains("NOT DURABLE"), level == Buffered, "{settings:?}");
        }
    }
}
