//! A named value in a query string, a header or a body. A repeated name is a fault.

/// An optional value.
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

    /// Parses the value, if there is one. The error names the field and the rule.
    pub(crate) fn read<R>(
        self,
        name: &str,
        read: impl FnOnce(&T) -> Result<R, String>,
    ) -> Result<Option<R>, String> {
        let value = match self {
            Self::Absent => Ok(None),
            Self::Given(value) => read(&value).map(Some),
            Self::Repeated => Err("must be given only once".into()),
        };
        value.map_err(|rule| format!("{name} {rule}"))
    }

    /// Parses a required value.
    pub(crate) fn require<R>(
        self,
        name: &str,
        read: impl FnOnce(&T) -> Result<R, String>,
    ) -> Result<R, String> {
        self.read(name, read)?.ok_or_else(|| format!("{name} is required"))
    }
}

/// One message that names every fault.
pub(crate) fn faults(faults: impl IntoIterator<Item = Option<String>>) -> String {
    faults.into_iter().flatten().collect::<Vec<_>>().join("; ")
}
