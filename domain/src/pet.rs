//! The values that make up a pet. Each type can only hold valid values.

use std::{str::FromStr, sync::Arc};

/// The id of a pet. Ids start at 1 and are never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PetId(i64);

impl PetId {
    /// The id of the first pet of every inventory.
    pub const FIRST: Self = Self(1);

    /// Accepts numbers from 1 upwards.
    pub fn new(id: i64) -> Result<Self, &'static str> {
        if id >= Self::FIRST.0 { Ok(Self(id)) } else { Err("a pet id must be at least 1") }
    }

    /// The number itself.
    pub fn get(self) -> i64 {
        self.0
    }

    /// The id after this one, unless this is the largest.
    pub fn next(self) -> Option<Self> {
        self.0.checked_add(1).map(Self)
    }
}

/// The name of a pet, exactly as it was given. Clones share the text.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PetName(Arc<str>);

impl PetName {
    /// The maximum length of a name, in Unicode scalar values.
    pub const MAX_CHARS: usize = 200;

    /// Accepts 1 to 200 characters, at least one of them not white space, none of them a control character.
    pub fn new(name: impl Into<Arc<str>>) -> Result<Self, &'static str> {
        let name = name.into();
        if name.chars().all(char::is_whitespace) {
            return Err("must contain at least one character that is not white space");
        }
        if name.chars().nth(Self::MAX_CHARS).is_some() {
            return Err("must have at most 200 characters");
        }
        if name.chars().any(char::is_control) {
            return Err("must not contain control characters");
        }
        Ok(Self(name))
    }

    /// Accepts the text of a name that was checked before, because a name is checked in three passes, and a page has up to
    /// 100 of them.
    pub fn of_checked(name: &str) -> Self {
        debug_assert!(Self::new(name).is_ok(), "{name:?} was checked before");
        Self(name.into())
    }

    /// The name as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The id of a category. Categories are managed elsewhere, so every number is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CategoryId(pub i64);

/// Availability of a pet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PetStatus {
    /// For sale.
    Available,
    /// Reserved for a customer.
    Pending,
    /// Sold.
    Sold,
}

impl PetStatus {
    /// All statuses.
    pub const ALL: [Self; 3] = [Self::Available, Self::Pending, Self::Sold];

    /// The status as it is written in the API and in the log.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Available => "available",
            Self::Pending => "pending",
            Self::Sold => "sold",
        }
    }
}

impl FromStr for PetStatus {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = Self::ALL.into_iter().find(|status| status.as_str() == text);
        named.ok_or("must be one of available, pending, sold")
    }
}

/// A pet without an id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewPet {
    /// The name of the pet.
    pub name: PetName,
    /// The category it belongs to.
    pub category_id: CategoryId,
    /// Its availability. Optional.
    pub status: Option<PetStatus>,
}

/// A pet in the inventory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pet {
    /// Assigned when the pet was added.
    pub id: PetId,
    /// All its other fields.
    pub details: NewPet,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Strings on both sides of every rule: long and short, blank, with control characters, and plain ones.
    fn any_text() -> impl Strategy<Value = String> {
        prop_oneof![
            any::<String>(),
            "[ \t\u{a0}\u{2003}]{0,4}",
            "\\PC{190,210}",
            prop::collection::vec(any::<char>(), 0..8).prop_map(String::from_iter),
            "[a-z]{1,5}[\0-\u{1f}\u{7f}-\u{9f}]?",
        ]
    }

    proptest! {
        #[test]
        fn a_name_is_accepted_as_it_is_exactly_when_the_rule_says(text in any_text()) {
            let length = text.chars().count();
            let follows_the_rule = (1..=200).contains(&length)
                && text.chars().any(|c| !c.is_whitespace())
                && !text.chars().any(char::is_control);
            let name = PetName::new(text.as_str()).ok();
            prop_assert_eq!(name.as_ref().map(PetName::as_str), follows_the_rule.then_some(text.as_str()));
        }

        #[test]
        fn only_the_three_words_are_a_status(text in any_text()) {
            let expected = ["available", "pending", "sold"].contains(&text.as_str());
            prop_assert_eq!(text.parse::<PetStatus>().is_ok(), expected);
        }

        #[test]
        fn every_number_from_one_on_is_an_id(number in any::<i64>()) {
            prop_assert_eq!(PetId::new(number).ok().map(PetId::get), (number >= 1).then_some(number));
        }
    }

    #[test]
    fn a_status_is_read_back_from_its_text() {
        for status in PetStatus::ALL {
            assert_eq!(status.as_str().parse(), Ok(status));
        }
    }

    #[test]
    fn the_length_of_a_name_counts_characters_not_bytes() {
        assert!(PetName::new("🐈".repeat(200)).is_ok());
        assert_eq!(PetName::new("🐈".repeat(201)), Err("must have at most 200 characters"));
    }
}
