//! The record format: every version stays readable, and damaged records are rejected.

use chrono::NaiveDate;
use proptest::prelude::*;

use super::*;
use crate::Digest;

/// The record that version 1 wrote for [`the_golden_commit`], byte for byte.
const GOLDEN_V1: &[u8] = include_bytes!("../../golden/commit-v1.json");
/// The same for version 2.
const GOLDEN_V2: &[u8] = include_bytes!("../../golden/commit-v2.json");

/// What version 2 adds to the golden commit.
fn golden_v2() -> Format {
    let previous = Digest::of(GOLDEN_V1.trim_ascii_end());
    Format::V2 { previous, node: NodeId(0x0123_4567_89ab_cdef) }
}

fn pet(id: i64, name: &str, category: i64, status: Option<PetStatus>) -> PetEvent {
    let details = NewPet { name: PetName::new(name).unwrap(), category_id: CategoryId(category), status };
    PetEvent::Added(Pet { id: PetId::new(id).unwrap(), details })
}

fn the_golden_commit(format: Format) -> Commit {
    let by = |id: &str| KeyId(id.into());
    Commit {
        format,
        position: Position(42),
        id: CommitId("0192f0c1-2b3c-7def-8123-456789abcdef".parse().unwrap()),
        time: "2026-01-02T03:04:05.678901Z".parse().unwrap(),
        entries: vec![
            Entry { event: pet(7, "Rex", 3, Some(PetStatus::Available)), by: by("k1"), request_key: None },
            Entry {
                event: pet(8, "Zoë \"the\\cat\" 🐈", i64::MIN, None),
                by: by("k2"),
                request_key: Some(RequestKey::new("order-17\"").unwrap()),
            },
        ],
    }
}

/// A record with this body and a checksum that matches it.
fn sealed(body: &str) -> Vec<u8> {
    let open = body.strip_suffix('}').unwrap();
    format!("{open},\"crc32c\":\"{:08x}\"}}", crc32c::crc32c(open.as_bytes())).into_bytes()
}

#[test]
fn every_version_is_written_byte_for_byte_as_ever() {
    for (format, golden) in [(Format::V1, GOLDEN_V1), (golden_v2(), GOLDEN_V2)] {
        let bytes = encode(&the_golden_commit(format)).bytes;
        assert_eq!(str::from_utf8(&bytes), str::from_utf8(golden.trim_ascii_end()));
    }
}

#[test]
fn commits_are_written_by_hand_unless_a_text_is_escaped() {
    let mut commit = the_golden_commit(golden_v2());
    assert_eq!(plain::write(&mut Vec::new(), &commit), None);
    commit.entries.truncate(1);
    assert_eq!(plain::write(&mut Vec::new(), &commit), Some(()));
}

#[test]
fn times_without_a_usual_form_are_left_to_serde() {
    let time = |year, micros| {
        let day = NaiveDate::from_ymd_opt(year, 12, 31).unwrap();
        day.and_hms_micro_opt(23, 59, 59, micros).unwrap().and_utc()
    };
    let leap_second = time(2016, 1_000_000);
    for (time, by_hand) in [
        (time(0, 0), true),
        (time(9_999, 999_999), true),
        (time(-1, 0), false),
        (time(10_000, 0), false),
        (leap_second, false),
    ] {
        let commit = Commit { time, entries: Vec::new(), ..the_golden_commit(golden_v2()) };
        assert_eq!(plain::write(&mut Vec::new(), &commit).is_some(), by_hand, "{time}");
    }
}

#[test]
fn numbers_in_any_other_spelling_than_ours_are_left_to_serde() {
    let entry = Entry { event: pet(1, "Rex", 0, None), by: KeyId("k".into()), request_key: None };
    let bytes = encode(&Commit { entries: vec![entry], ..the_golden_commit(golden_v2()) }).bytes;
    let body = str::from_utf8(&bytes[..bytes.len() - CHECKSUM_LEN]).unwrap();
    let read = |number| {
        let changed = body.replace(r#""categoryId":0"#, &format!(r#""categoryId":{number}"#));
        canonical::read(changed.as_bytes()).is_some()
    };
    for number in ["0", "7", "10", "-7", "9223372036854775807", "-9223372036854775808"] {
        assert!(read(number), "{number}");
    }
    for number in ["", "-", "00", "07", "-0", "-07", "+7", "7.0", "9223372036854775808"] {
        assert!(!read(number), "{number}");
    }
}

#[test]
fn every_version_is_read_for_ever() {
    for (format, golden) in [(Format::V1, GOLDEN_V1), (golden_v2(), GOLDEN_V2)] {
        assert_eq!(decode(golden.trim_ascii_end()), Ok(the_golden_commit(format)));
    }
}

#[test]
fn a_record_of_version_2_without_a_valid_previous_hash_and_node_is_damage() {
    let golden = str::from_utf8(GOLDEN_V2).unwrap();
    let body = golden.split(",\"crc32c\"").next().unwrap();
    for (sound, broken) in [
        ("\"previous\":\"", "\"previous\":\"x"),
        ("\"previous\":", "\"forgotten\":"),
        ("\"node\":\"01", "\"node\":\"1"),
        ("\"node\":\"0", "\"node\":\"+"),
        ("\"node\":", "\"forgotten\":"),
    ] {
        assert!(body.contains(sound), "{sound}");
        let record = sealed(&(body.replacen(sound, broken, 1) + "}"));
        assert!(matches!(decode(&record), Err(DecodeError::Damaged(_))), "{broken}");
    }
}

#[test]
fn a_newer_envelope_is_named_and_never_skipped() {
    let newer = DecodeError::Newer { what: "an envelope".into(), version: 3 };
    assert_eq!(decode(&sealed(r#"{"v":3,"anything":[]}"#)), Err(newer));
}

#[test]
fn a_version_that_never_existed_and_a_strange_spelling_of_ours_are_damage() {
    let golden = str::from_utf8(GOLDEN_V2).unwrap();
    let body = golden.split(",\"crc32c\"").next().unwrap();
    for version in ["\"v\":0,", "\"v\": 2,", "\"v\":2 ,"] {
        let record = sealed(&(body.replacen("\"v\":2,", version, 1) + "}"));
        assert!(matches!(decode(&record), Err(DecodeError::Damaged(_))), "{version}");
    }
}

#[test]
fn a_stored_record_is_the_commit_of_its_position() {
    let stored = |position| StoredRecord { position, bytes: Bytes::from_static(GOLDEN_V2.trim_ascii_end()) };
    assert_eq!(decode_stored(&stored(Position(42))), Ok(the_golden_commit(golden_v2())));
    assert_eq!(decode_stored(&stored(Position(43))).unwrap_err().fault, Fault::Damaged);
}

#[test]
fn the_longest_name_fits_into_the_bound_of_its_entry() {
    let by = KeyId("k".repeat(12).into());
    let event = pet(i64::MAX, &"\"".repeat(200), i64::MIN, Some(PetStatus::Available));
    for key in [None, Some("\\".repeat(255)), Some("k".into())] {
        let request_key = key.map(|key| RequestKey::new(&*key).unwrap());
        let entry = Entry { event: event.clone(), by: by.clone(), request_key };
        let bound = ENVELOPE_SIZE_BOUND + entry_size_bound(&entry);
        let commit = Commit { entries: vec![entry], ..the_golden_commit(golden_v2()) };
        assert!(encode(&commit).bytes.len() <= bound);
    }
}

#[test]
fn a_newer_event_is_named_and_never_skipped() {
    let envelope = |event: &str| {
        format!(
            r#"{{"v":1,"position":1,"id":"0192f0c1-2b3c-7def-8123-456789abcdef","time":"2026-01-02T03:04:05Z","events":[{event}]}}"#
        )
    };
    for (event, what, version) in [
        (r#"{"type":"pet_sold","v":1,"petId":4}"#, "an event \"pet_sold\"", 1),
        (
            r#"{"type":"pet_added","v":2,"pet":{"id":1,"name":"a","categoryId":1},"by":"k"}"#,
            "an event \"pet_added\"",
            2,
        ),
    ] {
        let newer = DecodeError::Newer { what: what.into(), version };
        assert_eq!(decode(&sealed(&envelope(event))), Err(newer), "{event}");
    }
}

#[test]
fn content_that_breaks_a_rule_of_the_domain_is_damage() {
    let golden = str::from_utf8(GOLDEN_V1).unwrap();
    let body = golden.split(",\"crc32c\"").next().unwrap();
    for (sound, broken) in
        [("\"id\":7", "\"id\":0"), ("\"Rex\"", "\" \""), ("available", "gone"), ("2026-01-02T", "yesterday")]
    {
        let record = sealed(&(body.replacen(sound, broken, 1) + "}"));
        assert!(matches!(decode(&record), Err(DecodeError::Damaged(_))), "{broken}");
    }
}

fn any_commit() -> impl Strategy<Value = Commit> {
    let status = prop::option::of(prop::sample::select(PetStatus::ALL.to_vec()));
    let event = (1..i64::MAX, "\\PC{0,40}[a-z]", any::<i64>(), status)
        .prop_map(|(id, name, category, status)| pet(id, &name, category, status));
    let key = prop::option::of("[!-~]{1,40}").prop_map(|key| key.map(|key| RequestKey::new(&*key).unwrap()));
    let entry = (event, "[0-9a-f]{12}", key).prop_map(|(event, by, request_key)| Entry {
        event,
        by: KeyId(by.into()),
        request_key,
    });
    let format = prop::option::of((any::<[u8; 32]>(), any::<u64>())).prop_map(|version_2| match version_2 {
        None => Format::V1,
        Some((previous, node)) => Format::V2 { previous: Digest(previous), node: NodeId(node) },
    });
    let entries = prop::collection::vec(entry, 0..6);
    (format, 1..u64::MAX, any::<u128>(), 0..4_000_000_000_000_000_i64, entries).prop_map(
        |(format, position, id, micros, entries)| Commit {
            format,
            position: Position(position),
            id: CommitId(Uuid::from_u128(id)),
            time: DateTime::from_timestamp_micros(micros).unwrap(),
            entries,
        },
    )
}

/// Parts of records, and what a careless reader takes for them.
fn any_token() -> impl Strategy<Value = String> {
    let tokens = [
        "",
        " ",
        "0",
        "-",
        "-0",
        "01",
        "1.0",
        "1e3",
        "9223372036854775808",
        "+1",
        "\"",
        "\\",
        "\\u0041",
        "\u{7f}",
        "\n",
        ",",
        "]",
        "}",
        "{",
        "[",
        "\"status\":\"sold\",",
        ",\"status\":null",
        "null",
        "\u{a0}",
        "é",
        "\"by\":\"k\",",
        ",\"requestKey\":\"\"",
    ];
    prop_oneof![prop::sample::select(tokens.to_vec()).prop_map(str::to_owned), "\\PC{0,2}", "[0-9a-z]{1,3}"]
}

proptest! {
    #[test]
    fn every_commit_is_read_back_as_it_was_written(commit in any_commit()) {
        prop_assert_eq!(decode(&encode(&commit).bytes), Ok(commit));
    }

    #[test]
    fn what_is_written_by_hand_is_what_serde_writes(commit in any_commit()) {
        let mut by_hand = Vec::new();
        if plain::write(&mut by_hand, &commit).is_some() {
            by_hand.push(b'}');
            let by_serde = serde_json::to_string(&Envelope::from(&commit)).unwrap();
            prop_assert_eq!(str::from_utf8(&by_hand), Ok(&*by_serde));
        }
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
        prop_assert!(matches!(decode(&bytes), Err(DecodeError::Damaged(_))));
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
        let record = StoredRecord { position: commit.position, bytes };
        let read = read_stored(&record).unwrap();
        prop_assert_eq!(&*read.view(), &commit.view());
        prop_assert_eq!(matches!(read, Decoded::Read(_)), is_plain, "only escapes need serde");
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
        if let Some(read) = canonical::read(&body) {
            let parsed = parse(&record);
            prop_assert_eq!(parsed.as_ref().map(Commit::view), Ok(read));
        }
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(decode(&bytes).is_err());
    }
}
