//! Conditional requests: an entity tag on every page and pet, and 304 for clients that already have that
//! version.
//!
//! `If-None-Match` is parsed here: the parser of the `headers` crate (0.4.2) panics in debug builds when a
//! tag contains a space, so a client could make it panic.

use std::fmt::Write as _;

use application::Version;
use axum::http::{
    HeaderMap, HeaderValue,
    header::{ETAG, IF_NONE_MATCH},
};
use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

/// How this program writes pets. A change of the JSON changes the number, or old tags would match new bytes.
const REPRESENTATION: u8 = 1;

/// How many bytes of a pet's hash make its tag: enough that no two pets share one.
const HASH_BYTES: usize = 16;

/// A strong entity tag: the same tag at the same address means the same bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EntityTag(String);

impl EntityTag {
    /// The tag of a page taken at this version. The commit id tells a restored or emptied store from the one before.
    pub(super) fn of_version(version: &Version) -> Self {
        let mut tag = format!("\"{REPRESENTATION}-{}", version.position);
        if let Some(commit) = version.commit {
            write!(tag, "-{}", commit.0.simple()).expect("a string takes everything");
        }
        tag.push('"');
        Self(tag)
    }

    /// The tag of one pet, made from its JSON: a pet never changes, but another store has other pets.
    pub(super) fn of_content(json: &[u8]) -> Self {
        let mut tag = format!("\"{REPRESENTATION}-");
        HEXLOWER.encode_append(&Sha256::digest(json)[..HASH_BYTES], &mut tag);
        tag.push('"');
        Self(tag)
    }

    /// Whether the client holds what this tag stands for, by its `If-None-Match` headers.
    pub(super) fn is_held(&self, headers: &HeaderMap) -> bool {
        headers.get_all(IF_NONE_MATCH).iter().any(|value| self.is_listed(value.as_bytes()))
    }

    /// Adds the tag to a response.
    pub(super) fn insert(self, headers: &mut HeaderMap) {
        let value = HeaderValue::try_from(self.0).expect("digits, dashes and quotes are fit for a header");
        headers.insert(ETAG, value);
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
    use application::ports::{CommitId, Position};
    use proptest::prelude::*;

    use super::*;

    fn headers(values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (IF_NONE_MATCH, HeaderValue::try_from(*value).unwrap())).collect()
    }

    fn tag() -> EntityTag {
        EntityTag("\"1-7\"".into())
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
        fn a_tag_matches_its_own_content_and_no_other(content in ".{0,20}", other in ".{0,20}") {
            let mut answer = HeaderMap::new();
            EntityTag::of_content(content.as_bytes()).insert(&mut answer);
            let held: HeaderMap = [(IF_NONE_MATCH, answer[ETAG].clone())].into_iter().collect();
            prop_assert!(EntityTag::of_content(content.as_bytes()).is_held(&held));
            prop_assert_eq!(EntityTag::of_content(other.as_bytes()).is_held(&held), content == other);
        }

        #[test]
        fn no_list_makes_it_panic(list in "[\"W/*, a17\\-]{0,30}") {
            let _ = tag().is_held(&headers(&[&list]));
        }
    }
}
