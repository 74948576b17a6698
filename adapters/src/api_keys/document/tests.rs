//! Which texts are key files.

use application::{Scope, Scopes};
use chrono::TimeDelta;
use proptest::prelude::*;

use super::*;
use crate::api_keys::{key::ApiKey, record::KeyName};

/// The example of the documentation: files like this must be read for ever.
const EXAMPLE: &str = r#"
version = 1

[[key]]
id = "9f86d081884c"
name = "web shop"
hash = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
scopes = ["read", "write"]
created = 2026-01-02T03:04:05Z
expires = 2027-01-02T04:04:05+01:00
revoked = 2026-06-01T00:00:00Z
"#;

fn any_time() -> impl Strategy<Value = DateTime<Utc>> {
    (0..200_000_000_000_i64).prop_map(|seconds| DateTime::UNIX_EPOCH + TimeDelta::seconds(seconds))
}

fn any_record() -> impl Strategy<Value = KeyRecord> {
    let name = "\\PC{1,100}".prop_filter_map("a name", |text| text.parse::<KeyName>().ok());
    let scopes = prop_oneof![Just(Scope::Read.into()), Just(Scope::Write.into()), Just(Scopes::READ_WRITE)];
    let times = (any_time(), prop::option::of(any_time()), prop::option::of(any_time()));
    (name, scopes, times).prop_map(|(name, scopes, (created, expires, revoked))| {
        let hash = ApiKey::generate().expect("the system has randomness").hash();
        KeyRecord { hash, name, scopes, created, expires, revoked }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_set_of_keys_is_read_back_from_its_text(records in prop::collection::vec(any_record(), 0..5)) {
        prop_assert_eq!(parse(write(&records).as_bytes()), Ok(records));
    }

    #[test]
    fn no_bytes_make_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(parse(&bytes).is_err());
    }
}

#[test]
fn the_documented_example_is_read() {
    let [key] = &parse(EXAMPLE.as_bytes()).unwrap()[..] else { panic!("one key") };
    assert_eq!(key.name.as_str(), "web shop");
    assert_eq!(key.scopes, Scopes::READ_WRITE);
    assert_eq!(key.expires.unwrap().to_rfc3339(), "2027-01-02T03:04:05+00:00");
}

#[test]
fn a_file_without_keys_is_fine() {
    assert_eq!(parse(b"version = 1"), Ok(Vec::new()));
}

#[test]
fn whatever_is_not_understood_completely_is_refused_with_its_reason() {
    let twice = format!("{EXAMPLE}{}", EXAMPLE.replace("version = 1", ""));
    for (from, to, reason) in [
        (EXAMPLE, "", "line 1: missing field `version`"),
        (EXAMPLE, "version = 0", "version 0 never existed"),
        (EXAMPLE, "version = 2\nnews = true", "it has version 2, which only a newer petstore understands"),
        (EXAMPLE, "version = 1\nkeys = []", "line 2: unknown field `keys`, expected `version` or `key`"),
        (EXAMPLE, &twice, "key 2: the id 9f86d081884c occurs twice"),
        ("[[key]]", "[[key]", "line 4: "),
        ("revoked", "revokd", "line 11: unknown field `revokd`"),
        ("\"web shop\"", "\"\"", "key 1: a name must contain at least one character"),
        ("[\"read\", \"write\"]", "[]", "key 1: scopes must not be empty"),
        ("\"write\"", "\"delete\"", "line 8: unknown variant `delete`"),
        ("9f86d081884c\"", "9f86d081884d\"", "key 1: id must be 9f86d081884c, the start of its hash"),
        ("b0f00a08", "b0f00a0", "key 1: hash must be 64 lower-case hexadecimal digits"),
        ("2026-01-02T03:04:05Z", "2026-01-02", "key 1: 2026-01-02 is not a time with date and zone"),
        (
            "2026-01-02T03:04:05Z",
            "2026-01-02T03:04:05",
            "key 1: 2026-01-02T03:04:05 is not a time with date and zone",
        ),
        ("2026-01-02T03:04:05Z", "9999-12-31T23:59:59-23:00", "key 1: 9999-12-31T23:59:59-23:00 is not"),
        ("2026-01-02T03:04:05Z", "\"yesterday\"", "line 9: "),
    ] {
        let text = EXAMPLE.replace(from, to);
        let error = parse(text.as_bytes()).expect_err(&text);
        assert!(error.starts_with(reason), "{error:?} should start with {reason:?}");
        assert!(!error.contains('\n'), "{error:?} is one line");
    }
}
