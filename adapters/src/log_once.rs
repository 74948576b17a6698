//! Tells a new error from one that was logged before, so that a lasting error is logged once when it begins
//! and once when it ends.

use std::fmt::Display;

/// The error that was logged last, while it lasts.
#[derive(Debug, Default)]
pub(super) struct LogOnce(Option<String>);

/// What there is to log.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReloadEvent {
    /// Nothing has changed.
    None,
    /// There is an error, or another one than before.
    Failed(String),
    /// The error is gone.
    Recovered,
}

impl LogOnce {
    /// Takes the error of the latest attempt, or `None` if it succeeded.
    pub(super) fn attempt(&mut self, error: Option<&impl Display>) -> ReloadEvent {
        let error = error.map(ToString::to_string);
        if error == self.0 {
            return ReloadEvent::None;
        }
        self.0.clone_from(&error);
        error.map_or(ReloadEvent::Recovered, ReloadEvent::Failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_is_reported_once_and_so_is_its_end() {
        let mut log = LogOnce::default();
        let attempts = [None, Some("gone"), Some("gone"), Some("broken"), Some("broken"), None, None];
        let news = attempts.map(|error| log.attempt(error.as_ref()));
        let failed = |error: &str| ReloadEvent::Failed(error.to_owned());
        assert_eq!(
            news,
            [
                ReloadEvent::None,
                failed("gone"),
                ReloadEvent::None,
                failed("broken"),
                ReloadEvent::None,
                ReloadEvent::Recovered,
                ReloadEvent::None
            ]
        );
    }
}
