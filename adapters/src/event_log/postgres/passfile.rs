//! The password file of PostgreSQL's own clients: lines of `host:port:database:user:password`.

use std::{fs, io, os::unix::fs::PermissionsExt as _, path::PathBuf};

use application::ports::{Fault, LogError};

use crate::event_log::Environment;

/// Reads the file at `named`, or else the one that `PGPASSFILE` names.
pub(super) fn load(named: Option<PathBuf>, environment: Environment<'_>) -> Result<Option<String>, LogError> {
    let Some(path) = named.or_else(|| environment("PGPASSFILE").map(PathBuf::from)) else { return Ok(None) };
    let unusable =
        |why: String| Fault::CannotOpen.error(format!("the password file {} {why}", path.display()));
    let unreadable = |error: io::Error| unusable(format!("cannot be read: {error}"));
    if fs::metadata(&path).map_err(unreadable)?.permissions().mode() & 0o077 != 0 {
        return Err(unusable("is accessible to other users; protect it with chmod 600".into()));
    }
    fs::read_to_string(&path).map(Some).map_err(unreadable)
}

/// The password in the first line for this host, port, database and user.
pub(super) fn password(file: &str, of: [&str; 4]) -> Option<String> {
    let matches = |(pattern, value): (&String, &str)| pattern == "*" || pattern == value;
    let mut lines = file.lines().filter(|line| !line.starts_with('#')).filter_map(fields);
    lines.find(|line| line.iter().zip(of).all(matches)).map(|[.., password]| password)
}

/// Splits a line at its colons. A backslash escapes a colon or a backslash.
fn fields(line: &str) -> Option<[String; 5]> {
    let mut fields = vec![String::new()];
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match character {
            ':' => fields.push(String::new()),
            '\\' => fields.last_mut()?.extend(characters.next()),
            _ => fields.last_mut()?.push(character),
        }
    }
    fields.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_matching_line_gives_the_password() {
        let file = "# comment\n\
             db1:5432:pets:rex:one\n\
             db1:*:*:rex:two\\:\\\\three\n\
             not a valid line\n\
             *:*:*:*:last\n";
        for (host, port, database, user, expected) in [
            ("db1", "5432", "pets", "rex", "one"),
            ("db1", "5433", "pets", "rex", "two:\\three"),
            ("db1", "5432", "cats", "rex", "two:\\three"),
            ("db2", "5432", "pets", "rex", "last"),
            ("db1", "5432", "pets", "tom", "last"),
        ] {
            let found = password(file, [host, port, database, user]);
            assert_eq!(found.as_deref(), Some(expected), "{host}:{port}:{database}:{user}");
        }
    }
}
