//! The records of the interface. Limits come from the types that enforce them.

use std::collections::BTreeMap;

use application::Limit;
use domain::{PetId, PetName, PetStatus};
use serde_json::{Value, json};
use utoipa::openapi::{
    AllOfBuilder, ArrayBuilder, KnownFormat, ObjectBuilder, Ref, RefOr, Schema, SchemaFormat, Type,
};

/// A name as a regular expression that every dialect reads alike: no control characters, and at least one
/// character that is not white space.
pub(super) const NAME_PATTERN: &str = concat!(
    r"^[^\u0000-\u001F\u007F-\u009F]*",
    r"[^\u0000-\u0020\u007F-\u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000]",
    r"[^\u0000-\u001F\u007F-\u009F]*$",
);

/// The schemas by their names.
pub(super) fn all() -> BTreeMap<String, RefOr<Schema>> {
    let schemas = [
        ("PetStatus", pet_status().into()),
        ("NewPet", new_pet().into()),
        ("Pet", pet()),
        ("Error", error().into()),
    ];
    schemas.into_iter().map(|(name, schema): (_, RefOr<Schema>)| (name.to_owned(), schema)).collect()
}

/// A reference to one of them.
pub(super) fn named(name: &str) -> Ref {
    Ref::from_schema_name(name)
}

/// An integer of 64 bits within these bounds.
pub(super) fn int64(minimum: i64, maximum: i64) -> ObjectBuilder {
    ObjectBuilder::new()
        .schema_type(Type::Integer)
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::Int64)))
        .minimum(Some(minimum))
        .maximum(Some(maximum))
}

/// A text.
pub(super) fn text() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

/// A page of pets.
pub(super) fn page() -> RefOr<Schema> {
    let pets = ArrayBuilder::new().items(named("Pet")).max_items(Some(Limit::MAX));
    pets.description(Some("Pets, sorted by ascending id.")).into()
}

/// The pet of the examples.
pub(super) fn rex() -> Value {
    json!({ "id": 41, "name": "Rex", "categoryId": 7, "status": "available" })
}

fn pet_status() -> ObjectBuilder {
    text()
        .enum_values(Some(PetStatus::ALL.map(PetStatus::as_str)))
        .description(Some("Availability of the pet."))
        .examples(["available"])
}

fn new_pet() -> ObjectBuilder {
    let name = text()
        .min_length(Some(1))
        .max_length(Some(PetName::MAX_CHARS))
        .pattern(Some(NAME_PATTERN))
        .description(Some(
            "The animal's name, returned exactly as sent. It must contain a character that is not white space, and no \
             control characters.",
        ))
        .examples(["Rex"]);
    let category = int64(i64::MIN, i64::MAX)
        .description(Some("Identifier of the category the animal belongs to."))
        .examples([7]);
    let mut status = named("PetStatus");
    status.description =
        "Availability status. A pet that was added without one has no `status` field.".into();
    ObjectBuilder::new()
        .description(Some("A pet to add. Unknown fields are ignored."))
        .property("name", name)
        .required("name")
        .property("categoryId", category)
        .required("categoryId")
        .property("status", status)
        .examples([json!({ "name": "Rex", "categoryId": 7, "status": "available" })])
}

fn pet() -> RefOr<Schema> {
    let id = int64(PetId::FIRST.get(), i64::MAX)
        .description(Some("Unique identifier, assigned by the service on creation."))
        .examples([41]);
    let assigned = ObjectBuilder::new().property("id", id).required("id");
    let pet = AllOfBuilder::new().item(named("NewPet")).item(assigned);
    pet.description(Some("A pet in the store.")).examples([rex()]).into()
}

fn error() -> ObjectBuilder {
    let code = text().description(Some("Machine-readable error code.")).examples(["invalid_request"]);
    let message = text()
        .description(Some("Human-readable description. It names every error in the request."))
        .examples(["limit must be between 1 and 100"]);
    let status = ObjectBuilder::new()
        .schema_type(Type::Integer)
        .minimum(Some(400))
        .maximum(Some(599))
        .description(Some("The HTTP status code."))
        .examples([400]);
    ObjectBuilder::new()
        .description(Some("Why the request failed."))
        .property("code", code)
        .required("code")
        .property("message", message)
        .required("message")
        .property("status", status)
        .required("status")
}

#[cfg(test)]
mod tests {
    use regex::Regex;

    use super::*;

    #[test]
    fn the_pattern_of_a_name_says_what_the_name_itself_says() {
        let pattern = Regex::new(NAME_PATTERN).unwrap();
        for character in char::MIN..=char::MAX {
            for name in [format!("{character}"), format!("a{character}"), format!("{character} ")] {
                assert_eq!(pattern.is_match(&name), PetName::new(&*name).is_ok(), "{name:?}");
            }
        }
        assert!(!pattern.is_match(""));
    }
}
