//! `petstore log find`: finds events in a log.

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

use crate::{
    config::{Filter, FindArguments},
    output, wire,
};

impl Filter {
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
pub(super) async fn run(FindArguments { filter, json, source, keys }: &FindArguments) -> anyhow::Result<()> {
    let by =
        filter.by.as_deref().map(|by| anyhow::Ok(wire::key_file(&keys.path)?.owner_of(by)?)).transpose()?;
    let log = wire::open_source(&source.store, &source.access).await?;
    let mut out = BufWriter::new(io::stdout().lock());
    let mut found = 0_u64;
    let walked = transfer::walk::<anyhow::Error>(&*log, &mut Tally::default(), async |record, commit| {
        for (index, entry) in commit.entries.iter().enumerate() {
            if filter.matches(by.as_ref(), commit, entry) {
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

fn as_text(commit: &Commit, entry: &Entry) -> String {
    let time = commit.time.to_rfc3339_opts(SecondsFormat::Millis, true);
    let (position, by, what) = (commit.position, entry.by.0.escape_debug(), describe(&entry.event));
    let request = entry.request_key.as_ref().map(|key| format!(", idempotency key {:?}", key.as_str()));
    format!("{time}  position {position}  {by} {what}{}", request.unwrap_or_default())
}

/// Describes an event. Texts from clients are quoted and escaped, so that they cannot control the terminal.
fn describe(event: &PetEvent) -> String {
    match event {
        PetEvent::Added(Pet { id, details: NewPet { name, category_id: CategoryId(category), status } }) => {
            let (id, name, status) = (id.get(), name.as_str(), status.map_or("no status", PetStatus::as_str));
            format!("added pet {id}: {name:?}, category {category}, {status}")
        }
    }
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
