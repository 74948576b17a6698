//! Remembered requests, written down and read.

use super::*;

fn answer(number: u64, status: Option<PetStatus>, name: &str) -> SavedAnswer {
    let id = PetId::new(i64::try_from(number).unwrap() + 40).unwrap();
    let details = NewPet { name: PetName::new(name).unwrap(), category_id: CategoryId(-3), status };
    SavedAnswer {
        owner: KeyId("571aa35373f7".into()),
        number,
        time: DateTime::from_timestamp(1_700_000_000, 123_456_789).unwrap(),
        key: RequestKey::new(format!("key-{number}")).unwrap(),
        pet: Pet { id, details },
    }
}

#[test]
fn answers_are_read_as_they_were_written() {
    let answers = [
        answer(1, None, "Rex"),
        answer(2, Some(PetStatus::Available), "Zoë"),
        answer(3, Some(PetStatus::Pending), "\u{1f408}"),
        answer(4, Some(PetStatus::Sold), "a \"quoted\" name"),
    ];
    assert_eq!(decode_keys(&encode_keys(&answers)), Some(answers.to_vec()));
    assert_eq!(decode_keys(&encode_keys(&[])), Some(Vec::new()));
}

#[test]
fn half_an_answer_is_refused() {
    let [none, one, two] =
        [0, 1, 2].map(|count| encode_keys(&[answer(1, None, "Rex"), answer(2, None, "Rex")][..count]));
    let owner = none.len() + "571aa35373f7".len();
    for cut in 0..two.len() {
        let whole = [owner, one.len()].iter().position(|len| *len == cut);
        assert_eq!(decode_keys(&two[..cut]).map(|answers| answers.len()), whole, "cut at {cut}");
    }
}

#[test]
fn answers_that_no_node_gives_are_refused() {
    let sound = encode_keys(&[answer(1, Some(PetStatus::Sold), "Rex")]);
    for (from, to) in [("sold", "lost"), ("Rex", "\n\t "), ("key-1", "key 1")] {
        let at = sound.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
        let mut changed = sound.clone();
        changed[at..at + to.len()].copy_from_slice(to.as_bytes());
        assert_eq!(decode_keys(&changed), None, "{to:?}");
    }
}
