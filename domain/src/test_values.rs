//! Pets for tests. A new field of a pet is added here, and every test and property uses it.

use proptest::prelude::*;

use crate::{CategoryId, NewPet, Pet, PetEvent, PetId, PetName, PetStatus};

/// A pet with this name and without optional fields.
pub fn named(name: impl AsRef<str>) -> NewPet {
    let name = PetName::new(name.as_ref()).expect("tests choose valid names");
    NewPet { name, category_id: CategoryId(7), status: None }
}

/// A pet whose fields follow from a number. Among consecutive numbers are all combinations of optional fields.
pub fn numbered(number: u64) -> NewPet {
    varied(format!("pet {number}"), number)
}

/// A pet with this name, whose other fields follow from a number.
pub fn varied(name: impl AsRef<str>, number: u64) -> NewPet {
    let statuses = [None, Some(PetStatus::Available), Some(PetStatus::Pending), Some(PetStatus::Sold)];
    NewPet {
        category_id: CategoryId(number.cast_signed()),
        status: statuses[(number % 4) as usize],
        ..named(name)
    }
}

/// A pet whose fields take the most bytes in a record and in a response.
pub fn largest() -> NewPet {
    NewPet {
        category_id: CategoryId(i64::MIN),
        status: Some(PetStatus::Available),
        ..named("\"".repeat(PetName::MAX_CHARS))
    }
}

/// The pet with this id.
pub fn pet(id: i64, details: NewPet) -> Pet {
    Pet { id: PetId::new(id).expect("tests choose valid ids"), details }
}

/// The event that adds a pet with this id.
pub fn added(id: i64, details: NewPet) -> PetEvent {
    PetEvent::Added(pet(id, details))
}

prop_compose! {
    /// Any pet with an id.
    pub fn any_pet()(
        id in prop_oneof![1_i64.., 1..100_i64, Just(i64::MAX)],
        details in any_new_pet(),
    ) -> Pet {
        pet(id, details)
    }
}

prop_compose! {
    /// Any pet without an id.
    pub fn any_new_pet()(
        name in any_name(),
        category in prop_oneof![any::<i64>(), -10..10_i64, Just(i64::MIN)],
        status in prop::option::of(prop::sample::select(PetStatus::ALL.to_vec())),
    ) -> NewPet {
        NewPet { name, category_id: CategoryId(category), status }
    }
}

/// Plain names, quotes, backslashes, and every plane of Unicode.
fn any_name() -> impl Strategy<Value = PetName> {
    let nasty = "[\"\\\\/<>&a-z\u{2028}\u{2029}\u{feff}\u{fffd}🐈]{1,24}";
    let text = prop_oneof![any::<String>(), "[a-zA-Z0-9 ]{1,40}", nasty];
    text.prop_filter_map("a name", |text| PetName::new(text).ok())
}
