//! `log.json`, the marker of a log: found, or created once the server has shown that it creates an object only once.

use application::ports::{Fault, LogError};
use bytes::Bytes;
use futures_util::future;
use object_store::ObjectMeta;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::bucket::{Bucket, NotCreated};

const MARKER: &str = "log.json";
/// The number of the layout of keys and objects.
const FORMAT: u64 = 1;
/// Where a new log races for keys. The objects stay, because petstore never deletes one.
const PROBES: &str = "probes";
const PROBE_KEYS: usize = 20;
const PROBE_REQUESTS: usize = 32;

#[derive(Serialize, Deserialize)]
struct Marker {
    format: u64,
    log: Uuid,
}

/// Creates the marker of this log, unless there is one. A server that denies the request does not say that the marker exists.
pub(super) async fn create(bucket: &Bucket, log: Uuid) -> Result<(), NotCreated> {
    let marker =
        serde_json::to_vec(&Marker { format: FORMAT, log }).expect("text and numbers always serialise");
    bucket.create(&bucket.key(&[MARKER]), marker.into()).await
}

/// Returns the id of the log under the prefix. Fails if there is no marker.
pub(super) async fn existing(bucket: &Bucket) -> Result<Uuid, LogError> {
    find(bucket).await?.ok_or_else(|| missing(bucket))
}

/// Like [`existing`], but returns `None` if there is no marker.
async fn find(bucket: &Bucket) -> Result<Option<Uuid>, LogError> {
    let Some(bytes) = bucket.get(&bucket.key(&[MARKER])).await? else { return Ok(None) };
    let place = &bucket.prefix;
    let marker: Marker = serde_json::from_slice(&bytes).map_err(|_| {
        Fault::Foreign.error(format!(
            "{place}/{MARKER} was not written by petstore, or is damaged: restore it, or use another prefix"
        ))
    })?;
    if marker.format == FORMAT {
        return Ok(Some(marker.log));
    }
    Err(Fault::UnsupportedFormat.error(format!(
        "{place}/{MARKER} has the format {}, and this version of petstore reads only {FORMAT}; use the version that wrote it",
        marker.format
    )))
}

/// The error of a missing marker.
fn missing(bucket: &Bucket) -> LogError {
    let Bucket { name, prefix, .. } = bucket;
    Fault::FilesMissing.error(format!(
        "{prefix}/{MARKER} does not exist in the bucket {name}: restore the objects of the log, or check the URL"
    ))
}

/// Returns the id of the log, and creates the log if the prefix is empty.
pub(super) async fn find_or_create(bucket: &Bucket) -> Result<Uuid, LogError> {
    if let Some(log) = find(bucket).await? {
        return Ok(log);
    }
    let probes = bucket.key(&[PROBES]);
    let other = |object: ObjectMeta| (!object.location.prefix_matches(&probes)).then_some(());
    if !bucket.list(&bucket.prefix, "", 1, other).await?.is_empty() {
        // Another node may have created the log since then.
        return existing(bucket).await;
    }
    let log = Uuid::now_v7();
    tracing::info!(target: "petstore::log", server = bucket.server, "checking that the server creates an object only once");
    probe(bucket, log).await?;
    let created = create(bucket, log).await;
    // Another node may have created it first.
    let found = find(bucket).await?;
    found.ok_or_else(|| created.map_or_else(LogError::from, |()| missing(bucket)))
}

/// Rejects a server that creates an object twice: requests race for new keys, and each key must have one winner, whose
/// bytes are stored.
async fn probe(bucket: &Bucket, log: Uuid) -> Result<(), LogError> {
    for number in 0..PROBE_KEYS {
        let key = bucket.key(&[PROBES, &log.to_string(), &number.to_string()]);
        let rivals = (0..PROBE_REQUESTS).map(async |number| {
            let bytes = Bytes::from(format!("{number}\n"));
            (bucket.create(&key, bytes.clone()).await, bytes)
        });
        let (mut winners, mut failed) = (Vec::new(), None);
        for (outcome, bytes) in future::join_all(rivals).await {
            match outcome {
                Ok(()) => winners.push(bytes),
                Err(NotCreated::Exists) => {}
                Err(error) => failed = Some(error),
            }
        }
        // Two winners are enough to reject the server, whatever the other requests got.
        if let Some(error) = failed.filter(|_| winners.len() < 2) {
            return Err(error.into());
        }
        let stored = bucket.get(&key).await?;
        let server = &bucket.server;
        return Err(match &winners[..] {
            [winner] if stored.as_ref() == Some(winner) => continue,
            [] => Fault::Unreachable.error(format!("{server} created none of {PROBE_REQUESTS} objects")),
            [_] => Fault::CannotOpen.error(format!(
                "{server} cannot hold a log: it confirmed an object, but returned a different one"
            )),
            several => Fault::CannotOpen.error(format!(
                "{server} cannot hold a log: {} of {PROBE_REQUESTS} requests created the same object, so it ignores \
                 If-None-Match or checks it too early; use a server that creates an object only once",
                several.len()
            )),
        });
    }
    Ok(())
}
