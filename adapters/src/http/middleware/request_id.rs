//! The request id, and the trace id of the client: they connect a response with log lines.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use uuid::Uuid;

use crate::http::header_value;

/// Names a request in its response and in the log.
pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest id taken from a client.
const CLIENT_ID_MAX: usize = 64;

pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// The client's own id if it is well-formed, otherwise a new one.
pub(crate) fn request_id(headers: &HeaderMap) -> HeaderValue {
    let mut given = headers.get_all(X_REQUEST_ID).iter();
    match (given.next(), given.next()) {
        (Some(id), None) if is_well_formed(id.as_bytes()) => id.clone(),
        _ => header_value(Uuid::now_v7().simple().to_string()),
    }
}

/// The trace id of a W3C `traceparent`, if it is valid.
pub(crate) fn trace_id(traceparent: &HeaderValue) -> Option<&str> {
    let parts: Vec<_> = traceparent.to_str().ok()?.split('-').collect();
    let [version, trace, parent, flags, ..] = parts[..] else { return None };
    let is_sound = is_hex(version, 2) && is_hex(trace, 32) && is_hex(parent, 16) && is_hex(flags, 2);
    (is_sound && version != "ff" && trace.bytes().any(|byte| byte != b'0')).then_some(trace)
}

fn is_well_formed(id: &[u8]) -> bool {
    (1..=CLIENT_ID_MAX).contains(&id.len())
        && id.iter().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(byte))
}

fn is_hex(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &HeaderName, values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (name.clone(), HeaderValue::try_from(*value).unwrap())).collect()
    }

    #[test]
    fn a_well_formed_id_from_the_client_is_kept() {
        let longest = "x".repeat(CLIENT_ID_MAX);
        for id in ["a", "0aZ._-9", &longest] {
            assert_eq!(request_id(&headers(&X_REQUEST_ID, &[id])), id);
        }
    }

    #[test]
    fn any_other_request_gets_a_generated_id() {
        let too_long = "x".repeat(CLIENT_ID_MAX + 1);
        let bad = [&[][..], &[""], &["a b"], &["a\"b"], &["ä"], &["{}"], &[&too_long], &["a", "a"]];
        let ids = bad.map(|values| request_id(&headers(&X_REQUEST_ID, values)));
        for (index, id) in ids.iter().enumerate() {
            assert!(is_well_formed(id.as_bytes()) && !ids[..index].contains(id), "{:?}", bad[index]);
        }
    }

    #[test]
    fn the_trace_id_is_taken_only_from_a_valid_traceparent() {
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        let sound = format!("00-{trace}-00f067aa0ba902b7-01");
        assert_eq!(trace_id(&HeaderValue::try_from(sound).unwrap()), Some(trace));
        for value in [
            "",
            "00",
            trace,
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
        ] {
            assert_eq!(trace_id(&HeaderValue::from_static(value)), None, "{value}");
        }
    }
}
