//! `petstore keys`: issues, lists, rotates and revokes API keys. It changes the key file, and a running service reloads it.

mod table;

use std::io::{self, Write as _};

use adapters::access::{
    KeyId, Scopes,
    api_keys::{Issued, KeyFile, KeyName, KeyState, NewKey},
};
use anyhow::{Context as _, anyhow};
use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};

use crate::{config::KeysCommand, output, wire};

pub(crate) fn run(command: KeysCommand) -> anyhow::Result<()> {
    let now = Utc::now();
    let expires = |lifetime: Option<TimeDelta>| lifetime.map(|lifetime| now + lifetime);
    match command {
        KeysCommand::Issue { name, scopes, expires_in, rate_limit, file } => {
            let scopes = Scopes::new(scopes).unwrap_or(Scopes::READ_WRITE);
            let new = NewKey { name, scopes, rate_limit, expires: expires(expires_in) };
            issue(&wire::key_file(&file.path)?, new, now)
        }
        KeysCommand::List { json, file } => list(&wire::key_file(&file.path)?, json),
        KeysCommand::Rotate { key, overlap, expires_in, file } => {
            let file = wire::key_file(&file.path)?;
            let (issued, replaced) =
                file.rotate(&file.id_of(&key, now)?, overlap, expires(expires_in), now)?;
            let end = match (replaced.state(now), replaced.end()) {
                (KeyState::Active, end) => {
                    end.map_or_else(String::new, |end| format!("accepted until {}", time(end)))
                }
                (state @ (KeyState::Expired | KeyState::Revoked), _) => state.to_string(),
            };
            // Rotating keeps the owner; `issue` would create a new one.
            let if_not_printed = format!("rotate {} with --overlap 0s", issued.record.id());
            show(&issued, &format!("the old key {} is {end}\n", replaced.id()), &if_not_printed)
        }
        KeysCommand::Revoke { key, file } => {
            let file = wire::key_file(&file.path)?;
            revoke(&file, &file.id_of(&key, now)?)
        }
    }
}

fn issue(file: &KeyFile, new: NewKey, now: DateTime<Utc>) -> anyhow::Result<()> {
    let is_new_file = !file.path().exists();
    let issued = file.issue(new, now)?;
    if is_new_file && let Ok(path) = file.path().canonicalize() {
        let path = path.display();
        output::print_error(format_args!(
            "note: created the key file {path}; a service with --keys {path} accepts only the keys in it"
        ));
    }
    show(&issued, "", "revoke it and issue another")
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

fn list(file: &KeyFile, json: bool) -> anyhow::Result<()> {
    let keys = file.keys()?;
    if let Err(error) = file.check_protection() {
        output::print_error(format_args!("warning: {error}"));
    }
    let render = if json { table::render_json } else { table::render };
    let text = render(&keys, Utc::now());
    output::print_document(text.as_bytes())
}

fn revoke(file: &KeyFile, id: &KeyId) -> anyhow::Result<()> {
    let (key, changed) = file.revoke(id, Utc::now())?;
    let (name, when) = (printable(&key.name), key.revoked.map(time).unwrap_or_default());
    let words = if changed {
        format!("revoked {id} ({name}); a running service rejects it within two seconds")
    } else {
        format!("{id} ({name}) was already revoked at {when}")
    };
    writeln!(io::stdout().lock(), "{words}").context("cannot write to standard output")
}

/// A name with control and invisible characters escaped, which could control the terminal or hide the rest of the line.
fn printable(name: &KeyName) -> String {
    name.as_str().escape_debug().to_string().replace(r"\'", "'").replace(r#"\""#, "\"")
}

fn time(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Secs, true)
}
