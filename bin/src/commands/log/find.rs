//! `petstore log find`: finds events in a log, and describes them.

use std::io::{self, BufWriter, Write as _};

use anyhow::bail;
use application::{
    OwnerId,
    log::commit::{Commit, Entry},
    transfer::{self, Tally},
};
use chrono::SecondsFormat;
use domain::{CategoryId, NewPet, Pet, PetEvent, PetStatus};
use serde_json::Value;

use crate::{config::FindArguments, output, wire};

impl FindArguments {
    fn matches(&self, by: Option<&OwnerId>, commit: &Commit, entry: &Entry) -> bool {
        let pet = match &entry.event {
            PetEvent::Added(pet) => pet.id,
        };
        self.pet.is_none_or(|id| id == pet)
            && by.is_none_or(|by| *by == entry.by)
            && self.since.is_none_or(|time| commit.time >= time)
            && self.idempotency_key.as_ref().is_none_or(|key| entry.request_key.as_ref() == Some(key))
    }
}

/// Reads and checks the whole history, and prints the matching events.
pub(super) async fn run(wanted: &FindArguments) -> anyhow::Result<()> {
    let FindArguments { by, json, source, keys, .. } = wanted;
    let by = by.as_deref().map(|by| anyhow::Ok(wire::key_file(keys)?.owner_of(by)?)).transpose()?;
    let log = wire::open_source(&source.store, &source.access).await?;
    let mut out = BufWriter::new(io::stdout().lock());
    let mut found = 0_u64;
    let walked = transfer::walk::<anyhow::Error>(&*log, &mut Tally::default(), async |record, commit| {
        for (index, entry) in commit.entries.iter().enumerate() {
            if wanted.matches(by.as_ref(), commit, entry) {
                let line = if *json { as_json(&record.bytes, index)? } else { as_text(commit, entry) };
                writeln!(out, "{line}")?;
                found += 1;
            }
        }
        Ok(())
    })
    .await;
    // Print the events that were found before an error.
    let flushed = out.flush();
    match walked.and_then(|()| Ok(flushed?)).map_err(anyhow::Error::downcast::<io::Error>) {
        // The reader, for example `head`, has closed the pipe.
        Err(Ok(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(Ok(error)) => bail!("cannot write to {}: {error}", output::destination()),
        Err(Err(error)) => Err(error),
        Ok(()) if found == 0 => bail!("no event in {} matches", source.store),
        Ok(()) => Ok(()),
    }
}

/// Describes an event in columns, of which the last has any width. Texts from clients are quoted and escaped, so that they
/// cannot control the terminal.
pub(super) fn as_text(
    Commit { position, time, .. }: &Commit,
    Entry { event, by, request_key }: &Entry,
) -> String {
    let (time, by) = (time.to_rfc3339_opts(SecondsFormat::Millis, true), by.0.escape_debug().to_string());
    let PetEvent::Added(Pet { id, details: NewPet { name, category_id: CategoryId(category), status } }) =
        event;
    let (id, name, status) = (id.get(), name.as_str(), status.map_or("no status", PetStatus::as_str));
    let request = request_key.as_ref().map(|key| format!(", idempotency key {:?}", key.as_str()));
    format!(
        "{:>8}  {time}  {by:<12}  added pet {id:>8}  {name:?}, category {category}, {status}{}",
        position.0,
        request.unwrap_or_default()
    )
}

/// The event of this record as JSON, with the position, id and time of its commit.
fn as_json(record: &[u8], index: usize) -> io::Result<String> {
    let mut record: Value = serde_json::from_slice(record)?;
    let mut event = record["events"][index].take();
    event["commit"] = record["id"].take();
    for field in ["position", "time"] {
        event[field] = record[field].take();
    }
    Ok(event.to_string())
}
