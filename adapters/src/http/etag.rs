//! Conditional requests: an entity tag on every page and pet, and 304 for clients that already have that
//! version.
//!
//! `If-None-Match` is parsed here: the parser of the `headers` crate (0.4.2) panics in debug builds when a
//! tag contains a space, so a client could make it panic.

use std::cell::RefCell;

use application::{Version, ports::CommitId};
use axum::http::{
    HeaderMap, HeaderValue,
    header::{ETAG, IF_NONE_MATCH},
};
use sha2::{Digest as _, Sha256};
use siphasher::sip128::SipHasher24;

use super::header_value::{Last, ValueWriter, remembered};

/// How this program writes pets. A change of the JSON changes the number, or old tags would match new bytes.
const REPRESENTATION: u8 = 1;

/// How many bytes of a hash make a tag: enough that nothing else ever has the same.
const HASH_BYTES: usize = 16;

/// A strong entity tag: the same tag at the same address means the same bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EntityTag(HeaderValue);

impl EntityTag {
    /// The tag of a page taken at this version. The commit id tells a restored or emptied store from the one before.
    pub(super) fn of_version(version: &Version) -> Self {
        thread_local! {
            static LAST: Last<Version> = const { RefCell::new(None) };
        }
        Self(remembered(&LAST, *version, |version| {
            let mut tag = ValueWriter::new();
            tag.text("\"").decimal(REPRESENTATION).text("-").decimal(version.position.0);
            if let Some(commit) = version.commit {
                tag.text("-").hex(commit.0.as_bytes());
            }
            tag.text("\"").value()
        }))
    }

    /// The tag of one pet: a hash of its JSON, with the first commit of the log as the key. It stays the same while the
    /// pet does, on every node and after every restart, and another log has another one for the same pet. SHA-256 of the
    /// JSON cost a third of all instructions of a get.
    pub(super) fn of_pet(log: CommitId, json: &[u8]) -> Self {
        let hash = SipHasher24::new_with_key(log.0.as_bytes()).hash(json).as_u128();
        Self::of_hash(hash.to_be_bytes())
    }

    /// The tag of a file of the program.
    pub(super) fn of_file(bytes: &[u8]) -> Self {
        let hash: [u8; 32] = Sha256::digest(bytes).into();
        Self::of_hash(*hash.first_chunk().expect("a SHA-256 is longer"))
    }

    fn of_hash(hash: [u8; HASH_BYTES]) -> Self {
        let mut tag = ValueWriter::new();
        Self(tag.text("\"").decimal(REPRESENTATION).text("-").hex(&hash).text("\"").value())
    }

    /// Whether the client holds what this tag stands for, by its `If-None-Match` headers.
    pub(super) fn is_held(&self, headers: &HeaderMap) -> bool {
        headers.get_all(IF_NONE_MATCH).iter().any(|value| self.is_listed(value.as_bytes()))
    }

    /// Adds the tag to a response.
    pub(super) fn insert(self, headers: &mut HeaderMap) {
        headers.insert(ETAG, self.0);
    }

    /// Compares weakly, as RFC 9110 asks for `If-None-Match`. The rest of a malformed list is ignored.
    fn is_listed(&self, mut list: &[u8]) -> bool {
        if list.trim_ascii() == b"*" {
            return true;
        }
        loop {
            list = list.trim_ascii_start();
            if let Some(rest) = list.strip_prefix(b",") {
                list = rest;
                continue;
            }
            let opaque = list.strip_prefix(b"W/").unwrap_or(list);
            // A comma within quotes does not end a tag.
            let inside = opaque.strip_prefix(b"\"").unwrap_or_default();
            let Some(length) = inside.iter().position(|byte| *byte == b'"') else { return false };
            let (tag, rest) = opaque.split_at(length + 2);
            if tag == self.0.as_bytes() {
                return true;
            }
            list = rest;
        }
    }
}

#[cfg(test)]
mod tests {
    use application::ports::Position;
    use proptest::prelude::*;

    use super::*;

    fn headers(values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (IF_NONE_MATCH, HeaderValue::try_from(*value).unwrap())).collect()
    }

    fn tag() -> EntityTag {
        EntityTag(HeaderValue::from_static("\"1-7\""))
    }

    #[test]
    fn a_tag_matches_when_any_list_names_it() {
        for values in [
            &["\"1-7\""][..],
            &["W/\"1-7\""],
            &["*"],
            &[" * "],
            &["\"a\", \"1-7\""],
            &["\"a,b\",W/\"1-7\""],
            &[", ,\"1-7\""],
            &["\"a\"", "\"1-7\""],
            &["\"a\"\"1-7\""],
        ] {
            assert!(tag().is_held(&headers(values)), "{values:?}");
        }
    }

    #[test]
    fn other_tags_and_malformed_lists_do_not_match() {
        for values in [
            &[][..],
            &[""],
            &["1-7"],
            &["\"1-7"],
            &["\"1-8\""],
            &["w/\"1-7\""],
            &["\"a\", *"],
            &["'1-7'"],
            &["W/"],
        ] {
            assert!(!tag().is_held(&headers(values)), "{values:?}");
        }
    }

    #[test]
    fn pages_of_different_versions_have_different_tags() {
        let (one, other) = ("00000000000000000000000000000001", "00000000000000000000000000000002");
        let tags = [(0, None), (1, Some(one)), (1, Some(other)), (2, Some(one))].map(|(position, commit)| {
            let commit = commit.map(|id| CommitId(id.parse().unwrap()));
            EntityTag::of_version(&Version { position: Position(position), commit })
        });
        for (index, tag) in tags.iter().enumerate() {
            assert!(!tags[..index].contains(tag), "{tag:?}");
        }
        assert_eq!(tags[1].0, "\"1-1-00000000000000000000000000000001\"");
    }

    proptest! {
        #[test]
        fn a_tag_matches_its_own_pet_in_its_own_log_and_no_other(
            content in ".{0,20}", other in ".{0,20}", log: u128, other_log: u128,
        ) {
            let log_of = |id| CommitId(uuid::Uuid::from_u128(id));
            let tag = |log, content: &str| EntityTag::of_pet(log_of(log), content.as_bytes());
            let mut answer = HeaderMap::new();
            tag(log, &content).insert(&mut answer);
            let held: HeaderMap = [(IF_NONE_MATCH, answer[ETAG].clone())].into_iter().collect();
            prop_assert!(tag(log, &content).is_held(&held));
            prop_assert_eq!(tag(log, &other).is_held(&held), content == other);
            prop_assert_eq!(tag(other_log, &content).is_held(&held), log == other_log);
        }

        #[test]
        fn no_list_makes_it_panic(list in "[\"W/*, a17\\-]{0,30}") {
            let _ = tag().is_held(&headers(&[&list]));
        }
    }
}
