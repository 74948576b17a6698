//! `petstore keys`: issues, lists, rotates and revokes API keys. It changes the key file, and a running service reloads it.

mod table;

use std::{
    io::{self, Write as _},
    path::Path,
};

use adapters::access::{
    Scopes,
    api_keys::{Issued, KeyName, KeyRecord, KeyState, NewKey},
};
use anyhow::{Context as _, anyhow, bail};
use chrono::{DateTime, SecondsFormat, Utc};

use crate::{config::KeysCommand, output, wire};

pub(crate) fn run(command: KeysCommand, file: &Path) -> anyhow::Result<()> {
    let (file, now) = (wire::key_file(file)?, Utc::now());
    match command {
        KeysCommand::Issue { name, scopes, expires_in, rate_limit } => {
            let scopes = Scopes::new(scopes).unwrap_or(Scopes::READ_WRITE);
            let expires = expires_in.map(|lifetime| now + lifetime);
            let is_new_file = !file.path().exists();
            let issued = file.issue(NewKey { name, scopes, rate_limit, expires }, now)?;
            if is_new_file && let Ok(path) = file.path().canonicalize() {
                let path = path.display();
                output::print_error(format_args!(
                    "note: created the key file {path}; a service with --keys {path} accepts only the keys in it"
                ));
            }
            show(&issued, "", "revoke it and issue another")
        }
        KeysCommand::List { json } => {
            let keys = file.keys()?;
            if let Err(error) = file.check_protection() {
                output::print_error(format_args!("warning: {error}"));
            }
            let render = if json { table::render_json } else { table::render };
            output::print_document(render(&keys, now).as_bytes())
        }
        KeysCommand::Rotate { key, overlap, expires_in } => {
            let id = file.id_of(&key, now)?;
            let is_revoked = |record: &KeyRecord| record.id() == id && record.revoked.is_some();
            if file.keys()?.iter().any(|record| is_revoked(record) && record.name.as_str() == key) {
                bail!("key {id} of this name is revoked: to issue another key for its owner, rotate {id}");
            }
            let expires = expires_in.map(|lifetime| now + lifetime);
            let (issued, replaced) = file.rotate(&id, overlap, expires, now)?;
            let end = match replaced.state(now) {
                KeyState::Active => {
                    format!("accepted until {}", replaced.end().map(time).unwrap_or_default())
                }
                state @ (KeyState::Expired | KeyState::Revoked) => state.to_string(),
            };
            // Rotating keeps the owner; `issue` would create a new one.
            let if_not_printed = format!("rotate {} with --overlap 0s", issued.record.id());
            show(&issued, &format!("the old key {id} is {end}\n"), &if_not_printed)
        }
        KeysCommand::Revoke { key } => {
            let (key, changed) = file.revoke(&file.id_of(&key, now)?, now)?;
            let (id, name) = (key.id(), printable(&key.name));
            let words = if changed {
                format!("revoked {id} ({name}); a running service rejects it within two seconds")
            } else {
                let when = key.revoked.map(time).unwrap_or_default();
                format!("{id} ({name}) was already revoked at {when}")
            };
            writeln!(io::stdout().lock(), "{words}").context("cannot write to standard output")
        }
    }
}

/// Describes a new key on standard error, and prints it alone on standard output. `if_not_printed` is what to do if that
/// fails.
fn show(Issued { key, record }: &Issued, note: &str, if_not_printed: &str) -> anyhow::Result<()> {
    let until =
        record.expires.map_or_else(|| "until it is revoked".to_owned(), |end| format!("until {}", time(end)));
    let limit = record.rate_limit.map_or_else(String::new, |limit| format!(", {limit}"));
    let (id, name, scopes) = (record.id(), printable(&record.name), record.scopes);
    output::print_error(format_args!(
        "issued key {id} (name {name}, scopes {scopes}{limit}), valid {until}\n{note}store the new key safely; it is not \
         shown again:"
    ));
    writeln!(io::stdout().lock(), "{}", key.reveal())
        .map_err(|error| anyhow!("key {id} was issued but cannot be printed: {error}; {if_not_printed}"))
}

/// A name with control and invisible characters escaped, which could control the terminal or hide the rest of the line.
fn printable(name: &KeyName) -> String {
    name.as_str().escape_debug().to_string().replace(r"\'", "'").replace(r#"\""#, "\"")
}

fn time(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Secs, true)
}
