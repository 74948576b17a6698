//! Conditional requests: an entity tag on every page and pet, and 304 for clients that already have that version.
//!
//! `If-None-Match` is parsed here: the parser of the `headers` crate (0.4.2) panics in debug builds when a tag contains
//! a space, so a client could make it panic.

use std::convert::Infallible;

use application::{Version, ports::CommitId};
use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, HeaderValue, header::IF_NONE_MATCH, request::Parts},
};
use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};
use siphasher::sip128::SipHasher24;
use uuid::Uuid;

use crate::http::header_value;

/// The version of the JSON encoding. A change of the encoding changes the number, or old tags would match new bytes.
const REPRESENTATION: &str = "1";

/// A strong entity tag: the same tag at the same path means the same bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EntityTag(HeaderValue);

/// The `If-None-Match` headers of a request.
pub(crate) struct IfNoneMatch(Vec<HeaderValue>);

impl<S: Sync> FromRequestParts<S> for IfNoneMatch {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::of(&parts.headers))
    }
}

impl IfNoneMatch {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        Self(headers.get_all(IF_NONE_MATCH).iter().cloned().collect())
    }

    /// Whether the client has what this tag stands for.
    pub(crate) fn matches(&self, tag: &EntityTag) -> bool {
        self.0.iter().any(|list| tag.is_listed(list.as_bytes()))
    }
}

impl From<EntityTag> for HeaderValue {
    fn from(EntityTag(value): EntityTag) -> Self {
        value
    }
}

impl EntityTag {
    /// The tag of a page at this version. The commit id distinguishes the log from a restored or emptied one.
    pub(crate) fn of_version(Version { position, commit }: &Version) -> Self {
        let (mut digits, mut hex) = (itoa::Buffer::new(), Uuid::encode_buffer());
        let position = digits.format(position.0);
        let (dash, commit) = match commit {
            Some(CommitId(id)) => ("-", &*id.simple().encode_lower(&mut hex)),
            None => ("", ""),
        };
        Self(header_value(["\"", REPRESENTATION, "-", position, dash, commit, "\""].concat()))
    }

    /// The tag of one pet: a hash of its JSON, keyed with the first commit of the log. It is the same on every node and
    /// after every restart, and differs between logs. SHA-256 would be a third of all instructions of a get.
    pub(crate) fn of_pet(CommitId(log): CommitId, json: &[u8]) -> Self {
        Self::of_hash(SipHasher24::new_with_key(log.as_bytes()).hash(json).as_u128().to_be_bytes())
    }

    /// The tag of a file that is part of the binary.
    pub(crate) fn of_file(bytes: &[u8]) -> Self {
        let hash: [u8; 32] = Sha256::digest(bytes).into();
        Self::of_hash(*hash.first_chunk().expect("a SHA-256 is longer"))
    }

    fn of_hash(hash: [u8; 16]) -> Self {
        Self(header_value(["\"", REPRESENTATION, "-", &HEXLOWER.encode(&hash), "\""].concat()))
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
            assert!(IfNoneMatch::of(&headers(values)).matches(&tag()), "{values:?}");
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
            assert!(!IfNoneMatch::of(&headers(values)).matches(&tag()), "{values:?}");
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
            let held = IfNoneMatch(vec![tag(log, &content).into()]);
            prop_assert!(held.matches(&tag(log, &content)));
            prop_assert_eq!(held.matches(&tag(log, &other)), content == other);
            prop_assert_eq!(held.matches(&tag(other_log, &content)), log == other_log);
        }

        #[test]
        fn no_list_makes_it_panic(list in "[\"W/*, a17\\-]{0,30}") {
            let _ = IfNoneMatch::of(&headers(&[&list])).matches(&tag());
        }
    }
}
