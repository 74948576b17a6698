//! Pages of pets: the request and the result.

use domain::{Pet, PetId, PetStatus};

use crate::log::position::LogPosition;

/// The maximum number of pets on a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit(usize);

impl Limit {
    /// The smallest page.
    pub const MIN: usize = 1;
    /// The largest page.
    pub const MAX: usize = 100;

    /// Accepts 1 to 100.
    pub fn new(limit: usize) -> Option<Self> {
        (Self::MIN..=Self::MAX).contains(&limit).then_some(Self(limit))
    }

    /// The number itself.
    pub fn get(self) -> usize {
        self.0
    }
}

impl Default for Limit {
    fn default() -> Self {
        Self(20)
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

/// The rule of lists, which tests compare lists with.
#[cfg(any(test, feature = "contract"))]
impl ListPets {
    /// A request with each combination of filters.
    pub fn every_filter() -> Vec<Self> {
        let statuses = PetStatus::ALL.map(Some).into_iter().chain([None]);
        statuses.map(|status| Self { status, ..Self::default() }).collect()
    }

    /// Whether the list shows this pet, on this page or a later one.
    pub fn selects(&self, pet: &Pet) -> bool {
        Some(pet.id) > self.after && (self.status.is_none() || pet.details.status == self.status)
    }

    /// The page of these pets, which are in id order, and the id after which the next page begins.
    pub fn page_of(&self, pets: &[Pet]) -> (Vec<Pet>, Option<PetId>) {
        let mut selected = pets.iter().filter(|pet| self.selects(pet));
        let page: Vec<_> = selected.by_ref().take(self.limit.get()).cloned().collect();
        let next = selected.next().and(page.last()).map(|pet| pet.id);
        (page, next)
    }
}

/// One page of pets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The pets in ascending id order, all from the same version.
    pub pets: Vec<Pet>,
    /// The id after which the next page begins; `None` on the last page.
    pub next: Option<PetId>,
    /// The number of pets on all pages, with the same filter.
    pub total: usize,
    /// The last commit that the page shows.
    pub position: LogPosition,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_the_number_that_was_accepted() {
        for limit in [Limit::MIN, 7, Limit::MAX] {
            assert_eq!(Limit::new(limit).map(Limit::get), Some(limit));
        }
        for limit in [0, Limit::MAX + 1, usize::MAX] {
            assert_eq!(Limit::new(limit), None, "{limit}");
        }
    }
}
