//! What clients sent and got in one run, with the time of each request and response by one clock.

use std::time::Duration;

/// The time since the run began, by a clock that never goes back.
pub(crate) type Moment = Duration;

/// Everything that happened in a run.
#[derive(Debug, Clone, Default)]
pub(crate) struct History {
    pub(crate) operations: Vec<Operation>,
    /// Every pet, in the order of the list, after the last request.
    pub(crate) pets: Vec<Pet>,
}

/// A request and its outcome.
#[derive(Debug, Clone)]
pub(crate) struct Operation {
    pub(crate) node: usize,
    /// Before the connection was opened.
    pub(crate) sent: Moment,
    /// After the last byte of the response, or after the connection was lost.
    pub(crate) ended: Moment,
    /// The `Log-Position` of the request.
    pub(crate) asked: Option<Position>,
    pub(crate) request: Request,
    pub(crate) outcome: Outcome,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    /// Names are unique, except that a request is repeated under its `Idempotency-Key`.
    Create {
        name: String,
        key: Option<String>,
    },
    List {
        after: u64,
        limit: usize,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// 201.
    Created { pet: Pet, replayed: bool, position: Position },
    /// 200, with the id after which the next page begins.
    Page { pets: Vec<Pet>, next: Option<u64>, position: Position },
    /// Any other status, with the `code` of the error. The pet of a create may still be added.
    Rejected(u16, String),
    /// The connection ended before the response was complete. The pet of a create may still be added.
    Lost,
}

/// A pet as it was shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pet {
    pub(crate) id: u64,
    /// The name if all fields are those that were sent, otherwise the whole pet.
    pub(crate) name: String,
}

/// A `Log-Position`, for example `128-9f2b6c0d4e5a7381`. An empty log has no hash.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    pub(crate) number: u64,
    pub(crate) hash: String,
}

impl Operation {
    /// The `Log-Position` of a successful response.
    pub(crate) fn position(&self) -> Option<&Position> {
        match &self.outcome {
            Outcome::Created { position, .. } | Outcome::Page { position, .. } => Some(position),
            Outcome::Rejected(..) | Outcome::Lost => None,
        }
    }

    /// The pets in a successful response.
    pub(crate) fn shown(&self) -> &[Pet] {
        match &self.outcome {
            Outcome::Created { pet, .. } => std::slice::from_ref(pet),
            Outcome::Page { pets, .. } => pets,
            Outcome::Rejected(..) | Outcome::Lost => &[],
        }
    }

    /// The response shows that at least so many pets exist.
    pub(crate) fn at_least(&self) -> u64 {
        self.shown().last().map_or(0, |pet| pet.id)
    }

    /// The response shows that at most so many pets were visible: a page without a next one is the last page.
    pub(crate) fn at_most(&self) -> Option<u64> {
        match (&self.request, &self.outcome) {
            (Request::List { after, .. }, Outcome::Page { pets, next: None, .. }) => {
                Some(pets.last().map_or(*after, |pet| pet.id))
            }
            _ => None,
        }
    }
}
