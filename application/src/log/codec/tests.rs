//! The record format: its bytes never change, and damaged records and records of other formats are rejected.

use std::sync::Arc;

use domain::test_values::{added, any_pet, largest, named};
use proptest::prelude::*;

use super::*;
use crate::Digest;

/// The record of [`the_golden_commit`], byte for byte.
const GOLDEN: &[u8] = include_bytes!("../../../golden/commit-v1.json").trim_ascii_end();

fn the_golden_commit() -> Commit {
    let by = |id: &str| OwnerId(id.into());
    let rex = NewPet { category_id: CategoryId(3), status: Some(PetStatus::Available), ..named("Rex") };
    let zoe = NewPet { category_id: CategoryId(i64::MIN), ..named("Zoë \"the\\cat\" 🐈") };
    Commit {
        position: Position(42),
        id: CommitId("0192f0c1-2b3c-7def-8123-456789abcdef".parse().unwrap()),
        previous: "69b6466614fb1b63bc46720a9fd4dd0114843ab1c00be3f697f8be96829f577c".parse().unwrap(),
        node: NodeId(0x0123_4567_89ab_cdef),
        time: "2026-01-02T03:04:05.678901Z".parse().unwrap(),
        entries: vec![
            Entry { event: added(7, rex), by: by("k1"), request_key: None },
            Entry {
                event: added(8, zoe),
                by: by("k2"),
                request_key: Some(RequestKey::new("order-17\"").unwrap()),
            },
        ],
    }
}

fn fault(record: &[u8]) -> Option<Fault> {
    decode(record).err().map(|error| error.fault)
}

/// A record with this body and a checksum that matches it.
fn sealed(body: &str) -> Vec<u8> {
    let open = body.strip_suffix('}').unwrap();
    format!("{open},\"crc32c\":\"{:08x}\"}}", crc32c::crc32c(open.as_bytes())).into_bytes()
}

/// The golden record without its checksum.
fn golden_body() -> &'static str {
    str::from_utf8(GOLDEN).unwrap().split(",\"crc32c\"").next().unwrap()
}

#[test]
fn the_golden_record_is_encoded_byte_for_byte_and_decoded() {
    assert_eq!(str::from_utf8(&encode(&the_golden_commit()).bytes), str::from_utf8(GOLDEN));
    assert_eq!(decode(GOLDEN), Ok(the_golden_commit()));
}

#[test]
fn numbers_in_any_other_spelling_than_ours_are_left_to_serde() {
    let entry = Entry { event: added(1, named("Rex")), by: OwnerId("k".into()), request_key: None };
    let bytes = encode(&Commit { entries: vec![entry], ..the_golden_commit() }).bytes;
    let body = str::from_utf8(&bytes[..bytes.len() - CHECKSUM_LEN]).unwrap();
    let read = |number| {
        let changed = body.replace(r#""categoryId":7"#, &format!(r#""categoryId":{number}"#));
        fast_decoder::read(changed.as_bytes()).is_some()
    };
    for number in ["0", "7", "10", "-7", "9223372036854775807", "-9223372036854775808"] {
        assert!(read(number), "{number}");
    }
    for number in ["", "-", "00", "07", "-0", "-07", "+7", "7.0", "9223372036854775808"] {
        assert!(!read(number), "{number}");
    }
}

#[test]
fn consecutive_events_of_one_owner_share_its_text() {
    let entry =
        |owner: &str| Entry { event: added(1, named("Rex")), by: OwnerId(owner.into()), request_key: None };
    let entries = vec![entry("a"), entry("a"), entry("b")];
    let commit = decode(&encode(&Commit { entries, ..the_golden_commit() }).bytes).unwrap();
    let [first, second, third] = [0, 1, 2].map(|index| commit.entries[index].by.0.clone());
    assert!(Arc::ptr_eq(&first, &second), "10 million pets are decoded without as many copies");
    assert_eq!(*third, *"b");
}

#[test]
fn a_record_without_a_valid_previous_hash_and_node_is_damage() {
    let body = golden_body();
    for (sound, broken) in [
        ("\"previous\":\"", "\"previous\":\"x"),
        ("\"previous\":", "\"forgotten\":"),
        ("\"node\":\"01", "\"node\":\"1"),
        ("\"node\":\"0", "\"node\":\"+"),
        ("\"node\":", "\"forgotten\":"),
    ] {
        assert!(body.contains(sound), "{sound}");
        let record = sealed(&(body.replacen(sound, broken, 1) + "}"));
        assert_eq!(fault(&record), Some(Fault::Damaged), "{broken}");
    }
}

#[test]
fn a_record_of_another_format_is_named_and_never_skipped() {
    for format in [0, 2, 3, 11] {
        let record = sealed(&format!(r#"{{"v":{format},"anything":[]}}"#));
        let error = decode(&record).unwrap_err();
        assert_eq!(error.fault, Fault::UnsupportedFormat);
        assert!(error.detail.contains(&format!("its record format is {format},")), "{error}");
    }
}

#[test]
fn the_envelope_is_read_in_every_spelling_that_is_decoded() {
    let commit = the_golden_commit();
    let expected = Some((commit.position, commit.id, commit.previous));
    assert_eq!(envelope(GOLDEN), expected);
    let spaced = sealed(&(golden_body().replacen("\"position\":", "\"position\": ", 1) + "}"));
    assert_eq!((decode(&spaced), envelope(&spaced)), (Ok(commit), expected));
    for other in [&b""[..], b"hello", &GOLDEN[..100], br#"{"v":1,"position":42}"#] {
        assert_eq!(envelope(other), None);
    }
}

#[test]
fn the_format_in_another_spelling_is_damage() {
    let body = golden_body();
    for version in ["\"v\": 1,", "\"v\":1 ,", "\"v\":-1,", "\"w\":1,"] {
        let record = sealed(&(body.replacen("\"v\":1,", version, 1) + "}"));
        assert_eq!(fault(&record), Some(Fault::Damaged), "{version}");
    }
}

#[test]
fn a_stored_record_is_the_commit_of_its_position_and_id() {
    let stored = |position, id| StoredRecord { position, id, bytes: Bytes::from_static(GOLDEN) };
    let id = the_golden_commit().id;
    for sound in [stored(Position(42), None), stored(Position(42), Some(id))] {
        assert_eq!(decode_stored(&sound), Ok(the_golden_commit()));
    }
    for wrong in [stored(Position(43), Some(id)), stored(Position(42), Some(CommitId(Uuid::nil())))] {
        assert_eq!(decode_stored(&wrong).unwrap_err().fault, Fault::Damaged);
    }
}

#[test]
fn the_largest_pet_fits_into_the_bound_of_its_entry() {
    let by = OwnerId("k".repeat(12).into());
    let event = added(i64::MAX, largest());
    for key in [None, Some("\\".repeat(255)), Some("k".into())] {
        let request_key = key.map(|key| RequestKey::new(&*key).unwrap());
        let entry = Entry { event: event.clone(), by: by.clone(), request_key };
        let bound = ENVELOPE_SIZE_BOUND + entry_size_bound(&entry);
        let commit = Commit { entries: vec![entry], ..the_golden_commit() };
        assert!(encode(&commit).bytes.len() <= bound);
    }
}

#[test]
fn an_unknown_event_is_named_and_never_skipped() {
    let (envelope, _) = golden_body().split_once("\"events\":[").unwrap();
    for (event, kind, version) in [
        (r#"{"type":"pet_sold","v":1,"petId":4}"#, "pet_sold", 1),
        (r#"{"type":"pet_added","v":2,"pet":{"id":1,"name":"a","categoryId":1},"by":"k"}"#, "pet_added", 2),
    ] {
        let record = sealed(&format!("{envelope}\"events\":[{event}]}}"));
        assert_eq!(decode(&record), Err(unsupported_event(kind, version)), "{event}");
    }
}

#[test]
fn an_unknown_field_of_a_pet_is_ignored() {
    let body = golden_body().replacen("\"available\"", "\"available\",\"later\":\"x\"", 1);
    assert_eq!(decode(&sealed(&(body + "}"))), Ok(the_golden_commit()));
}

#[test]
fn content_that_breaks_a_rule_of_the_domain_is_damage() {
    let body = golden_body();
    for (sound, broken) in
        [("\"id\":7", "\"id\":0"), ("\"Rex\"", "\" \""), ("available", "gone"), ("2026-01-02T", "yesterday")]
    {
        let record = sealed(&(body.replacen(sound, broken, 1) + "}"));
        assert_eq!(fault(&record), Some(Fault::Damaged), "{broken}");
    }
}

fn any_commit() -> impl Strategy<Value = Commit> {
    let event = any_pet().prop_map(PetEvent::Added);
    let key = prop::option::of("[!-~]{1,40}").prop_map(|key| key.map(|key| RequestKey::new(&*key).unwrap()));
    let entry = (event, "[0-9a-f]{12}", key).prop_map(|(event, by, request_key)| Entry {
        event,
        by: OwnerId(by.into()),
        request_key,
    });
    let entries = prop::collection::vec(entry, 0..6);
    let (id, previous, node) = (any::<u128>(), any::<[u8; 32]>(), any::<u64>());
    (1..u64::MAX, id, previous, node, 0..4_000_000_000_000_000_i64, entries).prop_map(
        |(position, id, previous, node, micros, entries)| Commit {
            position: Position(position),
            id: CommitId(Uuid::from_u128(id)),
            previous: Digest(previous),
            node: NodeId(node),
            time: DateTime::from_timestamp_micros(micros).unwrap(),
            entries,
        },
    )
}

/// A record, written field by field as `docs/storage-format.md` describes it.
fn layout(commit: &Commit) -> String {
    let text = |text: &str| serde_json::to_string(text).unwrap();
    let events: Vec<_> = commit
        .entries
        .iter()
        .map(|Entry { event, by, request_key }| {
            let status = |status: &PetStatus| format!(r#","status":"{}""#, status.as_str());
            let event = match event {
                PetEvent::Added(Pet { id, details: NewPet { name, category_id, status: given } }) => format!(
                    r#""pet_added","v":1,"pet":{{"id":{},"name":{},"categoryId":{}{}}}"#,
                    id.get(),
                    text(name.as_str()),
                    category_id.0,
                    given.as_ref().map_or_else(String::new, status)
                ),
            };
            let key = request_key
                .as_ref()
                .map_or_else(String::new, |key| format!(r#","requestKey":{}"#, text(key.as_str())));
            format!(r#"{{"type":{event},"by":{}{key}}}"#, text(&by.0))
        })
        .collect();
    let body = format!(
        r#"{{"v":1,"position":{},"id":"{}","previous":"{}","node":"{:016x}","time":"{}","events":[{}]"#,
        commit.position,
        commit.id.0,
        commit.previous,
        commit.node.0,
        commit.time.format("%Y-%m-%dT%H:%M:%S%.6fZ"),
        events.join(",")
    );
    format!(r#"{body},"crc32c":"{:08x}"}}"#, crc32c::crc32c(body.as_bytes()))
}

/// Parts of records, and what a careless reader takes for them.
fn any_token() -> impl Strategy<Value = String> {
    let short = [
        "", " ", "0", "-", "-0", "01", "1.0", "1e3", "+1", "\"", "\\", "\\u0041", "\u{7f}", "\n", ",", "]",
        "}", "{", "[", "null", "\u{a0}", "é",
    ];
    let long = [
        "9223372036854775808",
        "\"status\":\"sold\",",
        ",\"status\":null",
        "\"by\":\"k\",",
        ",\"requestKey\":\"\"",
    ];
    let tokens = [&short[..], &long].concat();
    prop_oneof![prop::sample::select(tokens).prop_map(str::to_owned), "\\PC{0,2}", "[0-9a-z]{1,3}"]
}

proptest! {
    #[test]
    fn every_commit_is_read_back_as_it_was_written(commit in any_commit()) {
        prop_assert_eq!(decode(&encode(&commit).bytes), Ok(commit));
    }

    #[test]
    fn every_record_has_the_documented_layout(commit in any_commit()) {
        let bytes = encode(&commit).bytes;
        prop_assert_eq!(str::from_utf8(&bytes), Ok(&*layout(&commit)));
    }

    #[test]
    fn an_entry_is_never_larger_than_its_bound(commit in any_commit()) {
        let bound = ENVELOPE_SIZE_BOUND + commit.entries.iter().map(entry_size_bound).sum::<usize>();
        prop_assert!(encode(&commit).bytes.len() <= bound);
    }

    #[test]
    fn a_flipped_bit_is_never_read(commit in any_commit(), place in any::<prop::sample::Index>(), bit in 0..8u8) {
        let mut bytes = encode(&commit).bytes.to_vec();
        let index = place.index(bytes.len());
        bytes[index] ^= 1 << bit;
        prop_assert_eq!(fault(&bytes), Some(Fault::Damaged));
    }

    #[test]
    fn a_cut_record_is_never_read(commit in any_commit(), place in any::<prop::sample::Index>()) {
        let bytes = encode(&commit).bytes;
        prop_assert!(decode(&bytes[..place.index(bytes.len())]).is_err());
    }

    #[test]
    fn every_record_is_read_as_serde_parses_it(commit in any_commit()) {
        let bytes = encode(&commit).bytes;
        let is_plain = !bytes.contains(&b'\\');
        let read = fast_decoder::read(&bytes[..bytes.len() - CHECKSUM_LEN]);
        prop_assert_eq!(read.is_some(), is_plain, "only escapes need serde");
        prop_assert_eq!(read.map_or_else(|| parse(&bytes), Ok), Ok(commit.clone()));
        prop_assert_eq!(parse(&bytes), Ok(commit));
    }

    #[test]
    fn what_is_almost_a_record_is_read_as_serde_parses_it_or_left_to_serde(
        commit in any_commit(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0..3_usize, any_token()), 1..4),
    ) {
        let bytes = encode(&commit).bytes;
        let mut body: Vec<_> = bytes[..bytes.len() - CHECKSUM_LEN].to_vec();
        for (place, removed, token) in edits {
            let place = place.index(body.len());
            let end = body.len().min(place + removed);
            body.splice(place..end, token.bytes());
        }
        let record = [&body[..], b",\"crc32c\":\"00000000\"}"].concat();
        if let Some(read) = fast_decoder::read(&body) {
            prop_assert_eq!(parse(&record), Ok(read));
        }
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(decode(&bytes).is_err());
    }
}
