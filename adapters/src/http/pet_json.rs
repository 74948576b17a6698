//! Pets as JSON, written straight into one buffer, because lists are requested most often.

use domain::Pet;

/// What a pet takes, roughly: enough that a page seldom grows its buffer.
const PET_BYTES: usize = 96;

/// One pet.
pub(super) fn pet(pet: &Pet) -> Vec<u8> {
    let mut out = Vec::with_capacity(PET_BYTES);
    write_pet(&mut out, pet);
    out
}

/// An array of pets.
pub(super) fn pets(pets: &[Pet]) -> Vec<u8> {
    let mut out = Vec::with_capacity(2 + pets.len() * PET_BYTES);
    out.push(b'[');
    for (index, pet) in pets.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write_pet(&mut out, pet);
    }
    out.push(b']');
    out
}

/// The fields in the order of the interface. A pet without status has no such field.
fn write_pet(out: &mut Vec<u8>, pet: &Pet) {
    out.extend_from_slice(br#"{"id":"#);
    write_value(out, &pet.id.get());
    out.extend_from_slice(br#","name":"#);
    write_value(out, pet.details.name.as_str());
    out.extend_from_slice(br#","categoryId":"#);
    write_value(out, &pet.details.category_id.0);
    if let Some(status) = pet.details.status {
        out.extend_from_slice(br#","status":""#);
        out.extend_from_slice(status.as_str().as_bytes());
        out.push(b'"');
    }
    out.push(b'}');
}

fn write_value<T: serde::Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    serde_json::to_writer(out, value).expect("a buffer takes every number and every text");
}

#[cfg(test)]
mod tests {
    use domain::{CategoryId, NewPet, PetId, PetName, PetStatus};
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    prop_compose! {
        fn any_pet()(
            id in 1_i64..,
            name in "\\PC{0,20}[\"\\\\/<a-z🐈]\\PC{0,20}",
            category in any::<i64>(),
            status in prop::option::of(prop::sample::select(PetStatus::ALL.to_vec())),
        ) -> Pet {
            let details = NewPet { name: PetName::new(name).unwrap(), category_id: CategoryId(category), status };
            Pet { id: PetId::new(id).unwrap(), details }
        }
    }

    fn expected(pet: &Pet) -> Value {
        let mut value = json!({
            "id": pet.id.get(),
            "name": pet.details.name.as_str(),
            "categoryId": pet.details.category_id.0,
        });
        if let Some(status) = pet.details.status {
            value["status"] = status.as_str().into();
        }
        value
    }

    #[test]
    fn the_fields_come_in_the_order_of_the_interface() {
        let name = PetName::new("Rex").unwrap();
        let details = NewPet { name, category_id: CategoryId(7), status: Some(PetStatus::Sold) };
        let rex = Pet { id: PetId::FIRST, details };
        assert_eq!(pet(&rex), br#"{"id":1,"name":"Rex","categoryId":7,"status":"sold"}"#);
        let page = pets(&[rex.clone(), rex]);
        assert_eq!(page.len(), 2 * 52 + 3);
        assert_eq!(pets(&[]), b"[]");
    }

    proptest! {
        #[test]
        fn every_pet_is_the_same_json_that_serde_would_write(all in prop::collection::vec(any_pet(), 0..5)) {
            let page: Value = serde_json::from_slice(&pets(&all)).unwrap();
            prop_assert_eq!(page, Value::Array(all.iter().map(expected).collect()));
            for one in &all {
                prop_assert_eq!(serde_json::from_slice::<Value>(&pet(one)).unwrap(), expected(one));
            }
        }
    }
}
