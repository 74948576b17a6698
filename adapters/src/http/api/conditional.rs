//! Conditional requests: an entity tag on every page and pet, 304 for clients that already have that version, and 412
//! for clients that ask for a different one.

use application::ports::CommitId;
use axum::http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{IF_MATCH, IF_NONE_MATCH},
};
use data_encoding::HEXLOWER;
use siphasher::sip128::SipHasher24;

use crate::http::{error::ApiError, header_value};

/// The version of the JSON encoding. A change of the encoding changes the number, or old tags would match new bytes.
const REPRESENTATION: &str = "1";

/// Rejects a request whose `If-Match` does not name this tag. RFC 9110 asks for a strong comparison, and for this check
/// before that of `If-None-Match`.
pub(crate) fn require_match(request: &HeaderMap, tag: &HeaderValue) -> Result<(), ApiError> {
    if !request.contains_key(IF_MATCH) || any_tag(request, &IF_MATCH, |listed| listed == tag.as_bytes()) {
        return Ok(());
    }
    Err(ApiError::PreconditionFailed)
}

/// Whether `If-None-Match` names this tag. RFC 9110 asks for a weak comparison.
pub(crate) fn is_not_modified(request: &HeaderMap, tag: &HeaderValue) -> bool {
    let is_match = |listed: &[u8]| listed.strip_prefix(b"W/").unwrap_or(listed) == tag.as_bytes();
    any_tag(request, &IF_NONE_MATCH, is_match)
}

/// Whether one of the lists is `*` or has a tag that `is_match` accepts. The tags of this service contain no comma, so a
/// list may be split within the quotes of other tags.
fn any_tag(request: &HeaderMap, name: &HeaderName, is_match: impl Fn(&[u8]) -> bool) -> bool {
    let mut lists = request.get_all(name).iter().map(HeaderValue::as_bytes);
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
    use proptest::prelude::*;

    use super::*;
    use crate::http::api::log_position::log_position;

    fn headers(name: &HeaderName, values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (name.clone(), HeaderValue::try_from(*value).unwrap())).collect()
    }

    fn tag() -> HeaderValue {
        HeaderValue::from_static("\"1-7\"")
    }

    fn is_held(values: &[&str]) -> bool {
        is_not_modified(&headers(&IF_NONE_MATCH, values), &tag())
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
            assert!(is_held(values), "{values:?}");
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
            assert!(!is_held(values), "{values:?}");
        }
    }

    #[test]
    fn a_weak_tag_fulfils_no_if_match() {
        let required = |values: &[&str]| require_match(&headers(&IF_MATCH, values), &tag());
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
            prop_assert!(is_not_modified(&held, &tag(log, &content)));
            prop_assert_eq!(is_not_modified(&held, &tag(log, &other)), content == other);
            prop_assert_eq!(is_not_modified(&held, &tag(other_log, &content)), log == other_log);
        }
    }
}
