//! Conditional requests: an entity tag on every page and pet, 304 for clients that already have that version, and 412
//! for clients that ask for a different one.

use std::convert::Infallible;

use application::ports::CommitId;
use axum::{
    extract::FromRequestParts,
    http::{
        HeaderMap, HeaderValue,
        header::{IF_MATCH, IF_NONE_MATCH},
        request::Parts,
    },
};
use data_encoding::HEXLOWER;
use siphasher::sip128::SipHasher24;

use crate::http::{error::ApiError, header_value};

/// The version of the JSON encoding. A change of the encoding changes the number, or old tags would match new bytes.
const REPRESENTATION: &str = "1";

/// The `If-Match` and `If-None-Match` headers of a request.
pub(crate) struct Preconditions {
    if_match: Vec<HeaderValue>,
    if_none_match: Vec<HeaderValue>,
}

impl<S: Sync> FromRequestParts<S> for Preconditions {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::of(&parts.headers))
    }
}

impl Preconditions {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let values = |name| headers.get_all(name).iter().cloned().collect();
        Self { if_match: values(IF_MATCH), if_none_match: values(IF_NONE_MATCH) }
    }

    /// Rejects a request whose `If-Match` does not name this tag. RFC 9110 asks for a strong comparison, and for this
    /// check before that of `If-None-Match`.
    pub(crate) fn require_match(&self, tag: &HeaderValue) -> Result<(), ApiError> {
        if self.if_match.is_empty() || any_tag(&self.if_match, |listed| listed == tag.as_bytes()) {
            return Ok(());
        }
        Err(ApiError::PreconditionFailed)
    }

    /// Whether the client has any version.
    pub(crate) fn has_if_none_match(&self) -> bool {
        !self.if_none_match.is_empty()
    }

    /// Whether `If-None-Match` names this tag. RFC 9110 asks for a weak comparison.
    pub(crate) fn is_not_modified(&self, tag: &HeaderValue) -> bool {
        any_tag(&self.if_none_match, |listed| listed.strip_prefix(b"W/").unwrap_or(listed) == tag.as_bytes())
    }
}

/// Whether one of the lists is `*` or has a tag that `is_match` accepts. The tags of this service contain no comma, so a
/// list may be split within the quotes of other tags.
fn any_tag(lists: &[HeaderValue], is_match: impl Fn(&[u8]) -> bool) -> bool {
    let mut lists = lists.iter().map(HeaderValue::as_bytes);
    lists.any(|list| {
        list.trim_ascii() == b"*" || list.split(|byte| *byte == b',').any(|tag| is_match(tag.trim_ascii()))
    })
}

/// The strong tag of a page, made of its `Log-Position`. The hash in it distinguishes the log from a restored or emptied
/// one.
pub(crate) fn list_tag(position: &HeaderValue) -> HeaderValue {
    let position = position.to_str().expect("a position is plain ASCII");
    header_value(["\"", REPRESENTATION, "-", position, "\""].concat())
}

/// The strong tag of one pet: a hash of its JSON, keyed with the first commit of the log. It is the same on every node
/// and after every restart, and differs between logs. SHA-256 would be a third of all instructions of a get.
pub(crate) fn pet_tag(CommitId(log): CommitId, json: &[u8]) -> HeaderValue {
    hash_tag(log.as_bytes(), json)
}

/// The strong tag of a file that is part of the binary.
pub(crate) fn file_tag(bytes: &[u8]) -> HeaderValue {
    hash_tag(&[0; 16], bytes)
}

fn hash_tag(key: &[u8; 16], bytes: &[u8]) -> HeaderValue {
    let hash = SipHasher24::new_with_key(key).hash(bytes).as_u128();
    let hex = &mut [0; 32];
    let hex = HEXLOWER.encode_mut_str(&hash.to_be_bytes(), hex);
    header_value(["\"", REPRESENTATION, "-", hex, "\""].concat())
}

#[cfg(test)]
mod tests {
    use application::{LogPosition, ports::Position};
    use axum::http::HeaderName;
    use proptest::prelude::*;

    use super::*;
    use crate::http::api::log_position::log_position;

    fn headers(name: &HeaderName, values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (name.clone(), HeaderValue::try_from(*value).unwrap())).collect()
    }

    fn tag() -> HeaderValue {
        HeaderValue::from_static("\"1-7\"")
    }

    fn is_not_modified(values: &[&str]) -> bool {
        Preconditions::of(&headers(&IF_NONE_MATCH, values)).is_not_modified(&tag())
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
        ] {
            assert!(is_not_modified(values), "{values:?}");
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
            assert!(!is_not_modified(values), "{values:?}");
        }
    }

    #[test]
    fn a_weak_tag_fulfils_no_if_match() {
        let required = |values: &[&str]| Preconditions::of(&headers(&IF_MATCH, values)).require_match(&tag());
        for values in [&[][..], &["*"], &["\"1-7\""], &["W/\"1-7\", \"1-7\""], &["\"a\"", "\"1-7\""]] {
            assert_eq!(required(values), Ok(()), "{values:?}");
        }
        for values in [&[""][..], &["W/\"1-7\""], &["\"1-8\""], &["1-7"]] {
            assert_eq!(required(values), Err(ApiError::PreconditionFailed), "{values:?}");
        }
    }

    #[test]
    fn pages_of_different_versions_have_different_tags() {
        let tags = [(0, 0), (1, 1), (1, 2), (2, 1)].map(|(position, hash)| {
            let hash = Some([0, 0, 0, 0, 0, 0, 0, hash]);
            list_tag(&log_position(LogPosition { position: Position(position), hash }))
        });
        for (index, tag) in tags.iter().enumerate() {
            assert!(!tags[..index].contains(tag), "{tag:?}");
        }
        assert_eq!(tags[1], "\"1-1-0000000000000001\"");
    }

    proptest! {
        #[test]
        fn a_tag_matches_its_own_pet_in_its_own_log_and_no_other(
            content in ".{0,20}", other in ".{0,20}", log: u128, other_log: u128,
        ) {
            let log_of = |id| CommitId(uuid::Uuid::from_u128(id));
            let tag = |log, content: &str| pet_tag(log_of(log), content.as_bytes());
            let held = HeaderMap::from_iter([(IF_NONE_MATCH, tag(log, &content))]);
            let held = Preconditions::of(&held);
            prop_assert!(held.is_not_modified(&tag(log, &content)));
            prop_assert_eq!(held.is_not_modified(&tag(log, &other)), content == other);
            prop_assert_eq!(held.is_not_modified(&tag(other_log, &content)), log == other_log);
        }
    }
}
