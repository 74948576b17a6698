//! The only encoder of pets in responses. With serde, a list of 20 over HTTP takes a tenth longer.

use domain::{NewPet, Pet};

/// The size of a typical pet: with this capacity a page seldom grows its buffer.
const PET_BYTES: usize = 96;
/// The capacity that a page may keep unused.
const SPARE_MAX: usize = 1024;

pub(crate) fn pet(pet: &Pet) -> Vec<u8> {
    let mut out = Vec::with_capacity(PET_BYTES);
    write_pet(&mut out, pet);
    out
}

/// An array of pets. A response may wait for a slow client, so it does not keep much unused memory.
pub(crate) fn page(pets: &[Pet]) -> Vec<u8> {
    let mut out = Vec::with_capacity(2 + pets.len() * PET_BYTES);
    out.push(b'[');
    for (index, pet) in pets.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write_pet(&mut out, pet);
    }
    out.push(b']');
    if out.capacity() - out.len() > SPARE_MAX {
        out.shrink_to_fit();
    }
    out
}

/// The fields in the order of the API description. A pet without a status has no such field.
fn write_pet(out: &mut Vec<u8>, Pet { id, details: NewPet { name, category_id, status } }: &Pet) {
    out.extend_from_slice(br#"{"id":"#);
    out.extend_from_slice(itoa::Buffer::new().format(id.get()).as_bytes());
    out.extend_from_slice(br#","name":""#);
    write_escaped(out, name.as_str());
    out.extend_from_slice(br#"","categoryId":"#);
    out.extend_from_slice(itoa::Buffer::new().format(category_id.0).as_bytes());
    if let Some(status) = status {
        out.extend_from_slice(br#","status":""#);
        out.extend_from_slice(status.as_str().as_bytes());
        out.push(b'"');
    }
    out.push(b'}');
}

/// A text without its quotes. Most names need no escaping and are copied.
fn write_escaped(out: &mut Vec<u8>, text: &str) {
    if text.bytes().any(|byte| byte < b' ' || byte == b'"' || byte == b'\\') {
        let quoted = serde_json::to_vec(text).expect("every text has a JSON form");
        out.extend_from_slice(&quoted[1..quoted.len() - 1]);
    } else {
        out.extend_from_slice(text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use domain::{
        PetStatus,
        test_values::{self, any_pet, named},
    };
    use proptest::prelude::*;
    use serde::Serialize;

    use super::*;

    /// What serde makes of a pet.
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Expected<'a> {
        id: i64,
        name: &'a str,
        category_id: i64,
        #[serde(skip_serializing_if = "Option::is_none")]
        status: Option<&'static str>,
    }

    impl<'a> From<&'a Pet> for Expected<'a> {
        fn from(Pet { id, details: NewPet { name, category_id, status } }: &'a Pet) -> Self {
            let (name, status) = (name.as_str(), status.map(PetStatus::as_str));
            Self { id: id.get(), name, category_id: category_id.0, status }
        }
    }

    #[test]
    fn the_fields_come_in_the_order_of_the_interface() {
        let rex = test_values::pet(1, NewPet { status: Some(PetStatus::Sold), ..named("Rex") });
        assert_eq!(pet(&rex), br#"{"id":1,"name":"Rex","categoryId":7,"status":"sold"}"#);
        assert_eq!(page(&[rex.clone(), rex]).len(), 2 * 52 + 3);
        assert_eq!(page(&[]), b"[]");
    }

    #[test]
    fn every_text_is_escaped_like_serde_escapes_it() {
        for text in ["", "\0", "\u{1f}\u{7f}\u{80}", "\"\\\n\t/", "🐈\u{2028}"] {
            let mut out = Vec::new();
            write_escaped(&mut out, text);
            assert_eq!([b"\"", &*out, b"\""].concat(), serde_json::to_vec(text).unwrap(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn every_page_is_byte_for_byte_what_serde_would_write(pets in prop::collection::vec(any_pet(), 0..25)) {
            let expected: Vec<_> = pets.iter().map(Expected::from).collect();
            prop_assert_eq!(page(&pets), serde_json::to_vec(&expected).unwrap());
            for (one, expected) in pets.iter().zip(&expected) {
                prop_assert_eq!(pet(one), serde_json::to_vec(expected).unwrap());
            }
        }
    }
}
