//! Users and passwords that complete a store URL, from environment variables and files.

use std::{env, fs, path::Path};

use application::ports::{Fault, LogError};

use crate::private_files::is_readable_by_all;

pub(super) type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Looks up a variable of this process. An empty one counts as unset.
pub(super) fn of_this_process(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// Reads a file that holds only a password.
pub(super) fn read_password(file: &Path) -> Result<String, LogError> {
    let unusable = |why: &str| Fault::CannotOpen.error(format!("the password file {} {why}", file.display()));
    let password = fs::read_to_string(file).map_err(|error| unusable(&format!("cannot be read: {error}")))?;
    if is_readable_by_all(file) {
        return Err(unusable("is readable by other users; protect it with chmod 600"));
    }
    Ok(password.trim_end().to_owned())
}
