//! `petstore keys`: issues, lists and revokes API keys. It changes the key file, and a running service reloads it.

mod lifetime;
mod table;

use std::{
    io::{self, Write as _},
    path::PathBuf,
};

use adapters::api_keys::{
    Issued, KeyFile, KeyHash, KeyName, KeyRecord, KeyState, NewKey, RevokeError, Revoked,
};
use anyhow::{Context as _, anyhow};
use application::{KeyId, Scope, Scopes};
use chrono::{SecondsFormat, Utc};
use clap::{Args, Subcommand, ValueEnum};

use self::lifetime::Lifetime;

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// Create a key and print it, alone, on the last line of standard output.
    ///
    /// The key is shown only once, because only its hash is stored. A running service accepts it within two seconds.
    Issue {
        /// Name of the key in lists and metrics: 1 to 100 characters.
        #[arg(long, env = "PETSTORE_NAME")]
        name: KeyName,
        /// What the key may do. Repeat the flag or separate scopes with commas [default: read,write]
        #[arg(long = "scope", env = "PETSTORE_SCOPE", value_name = "SCOPE", value_delimiter = ',')]
        scopes: Vec<ScopeArgument>,
        /// How long the key is valid, such as 12h, 90d or 1w, at most ten years [default: no expiry]
        #[arg(long, env = "PETSTORE_EXPIRES_IN", value_name = "TIME")]
        expires_in: Option<Lifetime>,
        #[command(flatten)]
        file: KeyFileArgument,
    },
    /// List all keys with their id, name, scopes, times and state, but never the secret.
    ///
    /// The service records when a key was last used in a file beside the key file, at most ten seconds late.
    List {
        #[command(flatten)]
        file: KeyFileArgument,
    },
    /// Revoke a key for good. A running service rejects it within two seconds.
    Revoke {
        /// The id of the key, as shown by `petstore keys list`, or the key itself.
        id: String,
        #[command(flatten)]
        file: KeyFileArgument,
    },
}

/// Where the keys are.
#[derive(Debug, Args)]
pub(crate) struct KeyFileArgument {
    /// The key file.
    #[arg(
        long = "keys",
        value_name = "FILE",
        env = "PETSTORE_KEYS",
        default_value = "petstore-data/keys.toml"
    )]
    path: PathBuf,
}

/// A scope as it is written on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ScopeArgument {
    /// List and get pets.
    Read,
    /// Add pets.
    Write,
}

/// Runs the subcommand.
pub(crate) fn run(command: KeysCommand) -> anyhow::Result<()> {
    match command {
        KeysCommand::Issue { name, scopes, expires_in, file } => {
            issue(&KeyFile::at(file.path), name, scopes_of(&scopes), expires_in)
        }
        KeysCommand::List { file } => list(&KeyFile::at(file.path)),
        KeysCommand::Revoke { id, file } => revoke(&KeyFile::at(file.path), &id),
    }
}

/// How many keys an error message names at most, before it points to the list instead.
const NAMED_MAX: usize = 10;

fn issue(file: &KeyFile, name: KeyName, scopes: Scopes, lifetime: Option<Lifetime>) -> anyhow::Result<()> {
    let now = Utc::now();
    let expires = lifetime.map(|lifetime| lifetime.after(now));
    let Issued { key, record, namesakes } = file.issue(NewKey { name, scopes, expires }, now)?;
    let until = record.expires.map_or_else(
        || "until it is revoked".to_owned(),
        |end| format!("until {}", end.to_rfc3339_opts(SecondsFormat::Secs, true)),
    );
    let (id, name, scopes) = (record.id(), &record.name, record.scopes);
    let mut words = io::stderr().lock();
    if namesakes > 0 {
        writeln!(
            words,
            "note: {namesakes} other active key(s) have this name; revoke those that are no longer needed"
        )?;
    }
    writeln!(
        words,
        "issued key {id} for {name} ({scopes}), valid {until}; store it safely, it is not shown again:"
    )?;
    writeln!(io::stdout().lock(), "{}", key.reveal())
        .with_context(|| format!("cannot print key {id}: revoke it and issue another"))
}

fn list(file: &KeyFile) -> anyhow::Result<()> {
    let keys = file.keys()?;
    let text = table::render(&keys, file.last_uses().ok().as_ref(), Utc::now());
    match io::stdout().lock().write_all(text.as_bytes()) {
        // The reader, `head` for example, has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write the list to standard output"),
    }
}

fn revoke(file: &KeyFile, text: &str) -> anyhow::Result<()> {
    // Whoever finds a leaked key has the key, not its id.
    let id = KeyHash::of_presented(text).map_or_else(|| KeyId(text.into()), |hash| hash.id());
    let words = match file.revoke(&id, Utc::now()) {
        Ok(Revoked::Now(key)) => {
            format!("revoked {id} ({}); a running service rejects it within two seconds", key.name)
        }
        Ok(Revoked::Before(key)) => {
            let when = key.revoked.map(|time| time.to_rfc3339_opts(SecondsFormat::Secs, true));
            format!("{id} ({}) was already revoked at {}", key.name, when.unwrap_or_default())
        }
        Err(RevokeError::Unknown(keys)) => return Err(unknown_id(file, &keys)),
        Err(RevokeError::File(error)) => return Err(error.into()),
    };
    writeln!(io::stdout().lock(), "{words}").context("cannot write to standard output")
}

/// Never repeats the given id: it may be a mistyped key.
fn unknown_id(file: &KeyFile, keys: &[KeyRecord]) -> anyhow::Error {
    let now = Utc::now();
    let active: Vec<String> = keys
        .iter()
        .filter(|key| key.state(now) == KeyState::Active)
        .map(|key| format!("{} ({})", key.id(), key.name))
        .collect();
    let path = file.path().display();
    match active.len() {
        0 => anyhow!("no key has this id: there are no active keys in {path}"),
        1..=NAMED_MAX => {
            anyhow!("no key has this id: the active keys in {path} are {}", active.join(", "))
        }
        count => anyhow!("no key has this id: `petstore keys list` shows the {count} active keys in {path}"),
    }
}

fn scopes_of(given: &[ScopeArgument]) -> Scopes {
    let scopes = given.iter().map(|scope| match scope {
        ScopeArgument::Read => Scope::Read,
        ScopeArgument::Write => Scope::Write,
    });
    Scopes::new(scopes).unwrap_or(Scopes::READ_WRITE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_scope_means_read_and_write() {
        use ScopeArgument::{Read, Write};
        assert_eq!(scopes_of(&[]), Scopes::READ_WRITE);
        assert_eq!(scopes_of(&[Read]), Scope::Read.into());
        assert_eq!(scopes_of(&[Write, Write]), Scope::Write.into());
        assert_eq!(scopes_of(&[Write, Read]), Scopes::READ_WRITE);
    }
}
