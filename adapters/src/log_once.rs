//! Logs a lasting error once when it begins and once when it ends. A leaf that every adapter may use.

use std::fmt::Display;

/// The last logged error, while it lasts.
#[derive(Debug, Default)]
pub struct LogOnce(Option<String>);

impl LogOnce {
    /// Takes the error of the latest attempt, or `None` if it succeeded, and returns whether to log this: the error is
    /// new, or an earlier one has ended.
    pub fn is_change(&mut self, error: Option<&impl Display>) -> bool {
        let error = error.map(ToString::to_string);
        let is_change = error != self.0;
        self.0 = error;
        is_change
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_is_reported_once_and_so_is_its_end() {
        let mut log = LogOnce::default();
        let attempts = [None, Some("gone"), Some("gone"), Some("broken"), Some("broken"), None, None];
        let changes = attempts.map(|error| log.is_change(error.as_ref()));
        assert_eq!(changes, [false, true, false, true, false, true, false]);
    }
}
