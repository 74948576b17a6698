//! Logs a lasting error once when it begins and once when it ends. A leaf that every adapter may use.

use std::fmt::Display;

/// The last logged error, while it lasts.
#[derive(Debug, Default)]
pub struct LogOnce(Option<String>);

/// What to log after an attempt.
#[derive(Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing has changed.
    None,
    /// A new error.
    Failed(String),
    /// The error has ended.
    Recovered,
}

impl LogOnce {
    /// Takes the error of the latest attempt, or `None` if it succeeded.
    pub fn attempt(&mut self, error: Option<&impl Display>) -> Change {
        let error = error.map(ToString::to_string);
        if error == self.0 {
            return Change::None;
        }
        self.0.clone_from(&error);
        error.map_or(Change::Recovered, Change::Failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_is_reported_once_and_so_is_its_end() {
        let mut log = LogOnce::default();
        let attempts = [None, Some("gone"), Some("gone"), Some("broken"), Some("broken"), None, None];
        let changes = attempts.map(|error| log.attempt(error.as_ref()));
        let failed = |error: &str| Change::Failed(error.to_owned());
        assert_eq!(
            changes,
            [
                Change::None,
                failed("gone"),
                Change::None,
                failed("broken"),
                Change::None,
                Change::Recovered,
                Change::None
            ]
        );
    }
}
