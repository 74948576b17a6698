//! Bugs on purpose, to prove that the tests notice them. In a build without `--cfg planted_bugs` none of this
//! exists; `tests/planted-bugs` makes one with it.

use std::{env, sync::LazyLock};

/// Whether this is the bug that the environment asks for.
pub fn is(bug: &str) -> bool {
    static CHOSEN: LazyLock<String> = LazyLock::new(|| env::var("PETSTORE_PLANTED_BUG").unwrap_or_default());
    *CHOSEN == bug
}
