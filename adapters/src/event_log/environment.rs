//! Environment variables that complete a store URL: users, passwords and password files.

use std::env;

pub(super) type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Looks up a variable of this process. An empty one counts as unset.
pub(super) fn of_this_process(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}
