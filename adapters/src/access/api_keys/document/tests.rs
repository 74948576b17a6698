//! Which texts are valid key files.

use application::OwnerId;
use chrono::TimeDelta;
use proptest::prelude::*;

use super::*;
use crate::access::api_keys::key::{ApiKey, KeyName};
use crate::access::{RateLimit, Scope, Scopes};

fn parse(content: &[u8]) -> Result<Vec<KeyRecord>, String> {
    super::parse(content, Path::new("keys.toml"))
}

const EXAMPLE: &str = r#"
version = 1

[[key]]
id = "9f86d081884c"
owner = "571aa35373f7"
name = "web shop"
hash = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
scopes = ["read", "write", "log", "metrics"]
rate-limit = "10/s"
created = 2026-01-02T03:04:05Z
expires = 2027-01-02T04:04:05+01:00
overlap-until = 2026-05-01T00:00:00Z
revoked = 2026-06-01T00:00:00Z
"#;

fn any_time() -> impl Strategy<Value = DateTime<Utc>> {
    (0..200_000_000_000_i64).prop_map(|seconds| DateTime::UNIX_EPOCH + TimeDelta::seconds(seconds))
}

fn any_record() -> impl Strategy<Value = KeyRecord> {
    let name = "\\PC{1,100}".prop_filter_map("a name", |text| text.parse::<KeyName>().ok());
    let scopes = prop::sample::subsequence(Scope::ALL.to_vec(), 1..=Scope::ALL.len());
    let owner = prop::option::of("[0-9a-f]{12}");
    let limit = prop::option::of((1..=RateLimit::REQUESTS_MAX, "[smh]"));
    let maybe = || prop::option::of(any_time());
    (name, scopes, owner, limit, any_time(), (maybe(), maybe(), maybe())).prop_map(
        |(name, scopes, owner, limit, created, (expires, overlap_until, revoked))| {
            let hash = ApiKey::generate().expect("the system has randomness").hash();
            KeyRecord {
                hash,
                owner: owner.map_or_else(|| hash.id().as_owner(), |owner| OwnerId(owner.into())),
                name,
                scopes: Scopes::new(scopes).expect("one scope at least"),
                rate_limit: limit
                    .map(|(count, period)| format!("{count}/{period}").parse().expect("a limit")),
                created,
                expires,
                overlap_until,
                revoked,
            }
        },
    )
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
fn an_entry_has_an_owner_scopes_a_limit_and_times() {
    let [key] = &parse(EXAMPLE.as_bytes()).unwrap()[..] else { panic!("one key") };
    assert_eq!(&*key.owner.0, "571aa35373f7");
    assert_eq!(key.scopes.to_string(), "read,write,log,metrics");
    assert_eq!(key.rate_limit, Some("10/s".parse().unwrap()));
    assert_eq!(key.expires.unwrap().to_rfc3339(), "2027-01-02T03:04:05+00:00");
    assert_eq!(key.overlap_until.unwrap().to_rfc3339(), "2026-05-01T00:00:00+00:00");
    let text = write(std::slice::from_ref(key));
    assert!(text.contains("version = 1\n"), "{text}");
}

#[test]
fn an_entry_without_an_owner_is_its_own_owner() {
    let text = EXAMPLE.replace("owner = \"571aa35373f7\"\n", "");
    let [key] = &parse(text.as_bytes()).unwrap()[..] else { panic!("one key") };
    assert_eq!(key.owner, key.id().as_owner());
    assert!(!write(std::slice::from_ref(key)).contains("owner"));
}

#[test]
fn a_file_without_keys_is_fine() {
    assert_eq!(parse(b"version = 1"), Ok(Vec::new()));
}

#[test]
fn anything_that_is_not_fully_understood_is_rejected_with_a_reason() {
    let twice = format!("{EXAMPLE}{}", EXAMPLE.replace("version = 1", ""));
    for (from, to, reason) in [
        (EXAMPLE, "", "line 1: missing field `version`"),
        (EXAMPLE, "version = 1\nkeys = []", "line 2: unknown field `keys`, expected `version` or `key`"),
        (EXAMPLE, &twice, "key 2: the id 9f86d081884c occurs twice"),
        ("[[key]]", "[[key]", "line 4: "),
        ("revoked", "revokd", "line 14: unknown field `revokd`"),
        ("\"web shop\"", "\"\"", "key 1: a name must contain at least one character"),
        ("[\"read\", \"write\", \"log\", \"metrics\"]", "[]", "key 1: scopes must not be empty"),
        ("\"write\"", "\"delete\"", "line 9: unknown value `delete`"),
        ("9f86d081884c\"", "9f86d081884d\"", "key 1: id must be 9f86d081884c, the start of its hash"),
        ("b0f00a08", "b0f00a0", "key 1: hash must be 64 lower-case hexadecimal digits"),
        ("2026-01-02T03:04:05Z", "2026-01-02", "key 1: 2026-01-02 is not a time with date and zone"),
        (
            "2026-01-02T03:04:05Z",
            "2026-01-02T03:04:05",
            "key 1: 2026-01-02T03:04:05 is not a time with date and zone",
        ),
        ("2026-01-02T03:04:05Z", "9999-12-31T23:59:59-23:00", "key 1: 9999-12-31T23:59:59-23:00 is not"),
        ("2026-01-02T03:04:05Z", "\"yesterday\"", "line 11: "),
        ("\"571aa35373f7\"", "\"571aa35373F7\"", "key 1: owner must be the id of a key"),
        ("\"571aa35373f7\"", "\"web shop\"", "key 1: owner must be the id of a key"),
        ("\"10/s\"", "\"10\"", "key 1: a rate limit is a number from 1 to 1000000 and /s, /m or /h"),
        ("overlap-until", "overlap", "line 13: unknown field `overlap`"),
    ] {
        let text = EXAMPLE.replace(from, to);
        let Err(error) = parse(text.as_bytes()) else { panic!("{text} is invalid") };
        let reason = format!("the key file keys.toml cannot be used: {reason}");
        assert!(error.starts_with(&reason), "{error:?} should start with {reason:?}");
        assert!(!error.contains('\n'), "{error:?} is one line");
    }
}
