//! What a request says by name, in its query string or its body: each name counts once.

/// A value that may be given.
#[derive(Default)]
pub(super) enum Field<T> {
    #[default]
    Absent,
    Given(T),
    Repeated,
}

impl<T> Field<T> {
    pub(super) fn give(&mut self, value: T) {
        *self = match self {
            Self::Absent => Self::Given(value),
            Self::Given(_) | Self::Repeated => Self::Repeated,
        };
    }

    /// What `read` makes of the value, if there is one. The error names the field and the rule.
    pub(super) fn read<R>(
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

    /// The same for a value that must be there.
    pub(super) fn require<R>(
        self,
        name: &str,
        read: impl FnOnce(&T) -> Result<R, String>,
    ) -> Result<R, String> {
        self.read(name, read)?.ok_or_else(|| format!("{name} is required"))
    }
}

/// One message that names every fault.
pub(super) fn faults(faults: impl IntoIterator<Item = Option<String>>) -> String {
    faults.into_iter().flatten().collect::<Vec<_>>().join("; ")
}
