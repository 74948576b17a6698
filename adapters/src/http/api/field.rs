//! A named value in a query string, a header or a body. A repeated name is an error.

#[derive(Default)]
pub(crate) enum Field<T> {
    #[default]
    Absent,
    Given(T),
    Repeated,
}

impl<T> Field<T> {
    pub(crate) fn give(&mut self, value: T) {
        *self = match self {
            Self::Absent => Self::Given(value),
            Self::Given(_) | Self::Repeated => Self::Repeated,
        };
    }

    /// Parses the value, if there is one. An error names the field and the rule.
    pub(crate) fn read<R>(
        self,
        name: &str,
        errors: &mut Vec<String>,
        read: impl FnOnce(&T) -> Result<R, String>,
    ) -> Option<R> {
        let value = match self {
            Self::Absent => return None,
            Self::Given(value) => read(&value),
            Self::Repeated => Err("must be given only once".into()),
        };
        value.map_err(|rule| errors.push(format!("{name} {rule}"))).ok()
    }

    pub(crate) fn require<R>(
        self,
        name: &str,
        errors: &mut Vec<String>,
        read: impl FnOnce(&T) -> Result<R, String>,
    ) -> Option<R> {
        if matches!(self, Self::Absent) {
            errors.push(format!("{name} is required"));
        }
        self.read(name, errors, read)
    }
}
