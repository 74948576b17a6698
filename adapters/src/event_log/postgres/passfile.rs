//! The password file of PostgreSQL's own clients: lines of `host:port:database:user:password`.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use application::ports::{Fault, LogError};

use crate::event_log::environment::Environment;

pub(super) struct Passwords(Vec<[String; 5]>);

/// Reads the file at `named`, or else the one that `PGPASSFILE` names.
pub(super) fn load(
    named: Option<PathBuf>,
    environment: Environment<'_>,
) -> Result<Option<Passwords>, LogError> {
    named.or_else(|| environment("PGPASSFILE").map(PathBuf::from)).map(|path| read(&path)).transpose()
}

fn read(path: &Path) -> Result<Passwords, LogError> {
    let unusable =
        |why: String| Fault::CannotOpen.error(format!("the password file {} {why}", path.display()));
    let metadata = fs::metadata(path).map_err(|error| unusable(format!("cannot be read: {error}")))?;
    if metadata.permissions().mode() & 0o077 != 0 {
        return Err(unusable("is accessible to other users; protect it with chmod 600".into()));
    }
    let text = fs::read_to_string(path).map_err(|error| unusable(format!("cannot be read: {error}")))?;
    Ok(Passwords::parse(&text))
}

impl Passwords {
    fn parse(text: &str) -> Self {
        Self(text.lines().filter(|line| !line.starts_with('#')).filter_map(fields).collect())
    }

    /// The password of the first line that matches.
    pub(super) fn find(&self, host: &str, port: u16, database: &str, user: &str) -> Option<&str> {
        let port = port.to_string();
        let matches = |pattern: &str, value: &str| pattern == "*" || pattern == value;
        self.0.iter().find_map(|[of_host, of_port, of_database, of_user, password]| {
            let line_matches = matches(of_host, host)
                && matches(of_port, &port)
                && matches(of_database, database)
                && matches(of_user, user);
            line_matches.then_some(password.as_str())
        })
    }
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
        let file = Passwords::parse(
            "# comment\n\
             db1:5432:pets:rex:one\n\
             db1:*:*:rex:two\\:\\\\three\n\
             not a valid line\n\
             *:*:*:*:last\n",
        );
        for (host, port, database, user, password) in [
            ("db1", 5432, "pets", "rex", "one"),
            ("db1", 5433, "pets", "rex", "two:\\three"),
            ("db1", 5432, "cats", "rex", "two:\\three"),
            ("db2", 5432, "pets", "rex", "last"),
            ("db1", 5432, "pets", "tom", "last"),
        ] {
            let found = file.find(host, port, database, user);
            assert_eq!(found, Some(password), "{host}:{port}:{database}:{user}");
        }
    }
}
