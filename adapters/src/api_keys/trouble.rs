//! Tells news about a lasting trouble from what was said before, so that each is logged once.

use std::fmt::Display;

/// The trouble that was reported last, if it lasts.
#[derive(Debug, Default)]
pub(super) struct Trouble(Option<String>);

/// What there is to report.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Nothing new.
    None,
    /// A trouble that was not there before, or another one.
    Worse(String),
    /// It is over.
    Better,
}

impl Trouble {
    /// Takes the outcome of one more try.
    pub(super) fn note(&mut self, error: Option<&impl Display>) -> Change {
        let error = error.map(ToString::to_string);
        if error == self.0 {
            return Change::None;
        }
        self.0.clone_from(&error);
        error.map_or(Change::Better, Change::Worse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_trouble_is_reported_once_and_so_is_its_end() {
        let mut trouble = Trouble::default();
        let outcomes = [None, Some("gone"), Some("gone"), Some("broken"), Some("broken"), None, None];
        let reported = outcomes.map(|error| trouble.note(error.as_ref()));
        let worse = |error: &str| Change::Worse(error.to_owned());
        assert_eq!(
            reported,
            [
                Change::None,
                worse("gone"),
                Change::None,
                worse("broken"),
                Change::None,
                Change::Better,
                Change::None
            ]
        );
    }
}
