//! Pages of pets: the request and the result.

use domain::{CategoryId, NewPet, Pet, PetId, PetStatus};
use thiserror::Error;

/// The maximum number of pets on a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit(usize);

/// A page size outside the bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("must be an integer between {min} and {max}", min = Limit::MIN, max = Limit::MAX)]
pub struct LimitOutOfRange;

impl Limit {
    /// The smallest page.
    pub const MIN: usize = 1;
    /// The largest page.
    pub const MAX: usize = 100;
    /// The default page size.
    pub const DEFAULT: Self = Self(20);

    /// Accepts 1 to 100.
    pub fn new(limit: usize) -> Result<Self, LimitOutOfRange> {
        if (Self::MIN..=Self::MAX).contains(&limit) { Ok(Self(limit)) } else { Err(LimitOutOfRange) }
    }

    /// The number itself.
    pub fn get(self) -> usize {
        self.0
    }
}

impl Default for Limit {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// A request for one page: the first `limit` pets with this status whose id is greater than `after`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ListPets {
    /// The page size.
    pub limit: Limit,
    /// Only pets with this status; `None` selects all pets, including those without a status.
    pub status: Option<PetStatus>,
    /// The last id of the previous page; `None` starts at the beginning.
    pub after: Option<PetId>,
}

/// A pet, borrowed from the read model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PetView<'a> {
    /// Assigned when the pet was added.
    pub id: PetId,
    /// Its name, already validated.
    pub name: &'a str,
    /// The category it belongs to.
    pub category_id: CategoryId,
    /// Its availability, if it has one.
    pub status: Option<PetStatus>,
}

impl<'a> From<&'a Pet> for PetView<'a> {
    fn from(Pet { id, details: NewPet { name, category_id, status } }: &'a Pet) -> Self {
        Self { id: *id, name: name.as_str(), category_id: *category_id, status: *status }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_the_number_that_was_accepted() {
        for limit in [Limit::MIN, 7, Limit::MAX] {
            assert_eq!(Limit::new(limit).map(Limit::get), Ok(limit));
        }
        for limit in [0, Limit::MAX + 1, usize::MAX] {
            assert_eq!(Limit::new(limit), Err(LimitOutOfRange), "{limit}");
        }
    }
}
