//! The `Log-Position` header: in a response, the last commit that it shows; in a request, the commit that the response
//! must show at least, so that clients read their writes on every node.

use std::time::Duration;

use application::{LogPosition, ports::Position};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use data_encoding::HEXLOWER;

use super::number;
use crate::http::{error::ApiError, header_value};

pub(crate) const LOG_POSITION: HeaderName = HeaderName::from_static("log-position");

/// How long a request waits for the commit that it asks for.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(1);

/// The value of the header: the position, and the first digits of the record's hash.
pub(crate) fn log_position(LogPosition { position, hash }: LogPosition) -> HeaderValue {
    let (mut digits, hex) = (itoa::Buffer::new(), &mut [0; 16]);
    let position = digits.format(position.0);
    header_value(match hash {
        Some(hash) => [position, "-", HEXLOWER.encode_mut_str(&hash, hex)].concat(),
        None => position.to_owned(),
    })
}

/// The commit that a request asks for, if any.
pub(crate) fn requested(headers: &HeaderMap) -> Result<Option<LogPosition>, ApiError> {
    let mut given = headers.get_all(LOG_POSITION).iter();
    let Some(value) = given.next() else { return Ok(None) };
    let position = value.to_str().ok().and_then(parse).filter(|_| given.next().is_none());
    let rule = "Log-Position must be given once and be the value of an earlier response: a position, a dash and 16 hex digits";
    position.map(Some).ok_or(ApiError::invalid(rule))
}

/// The hash may be left out.
fn parse(text: &str) -> Option<LogPosition> {
    let Some((position, hash)) = text.split_once('-') else {
        return number::plain(text).map(Position).map(Into::into);
    };
    let hash = HEXLOWER.decode(hash.as_bytes()).ok()?.try_into().ok()?;
    Some(LogPosition { position: Position(number::plain(position)?), hash: Some(hash) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_a_plain_number_and_may_name_its_history() {
        let read = |values: &[&'static str]| {
            let headers =
                values.iter().map(|value| (LOG_POSITION, HeaderValue::from_static(value))).collect();
            requested(&headers)
        };
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&["0"]), Ok(Some(Position(0).into())));
        assert_eq!(read(&["18446744073709551615"]), Ok(Some(Position(u64::MAX).into())));
        let named = LogPosition { position: Position(12), hash: Some([0, 1, 2, 3, 4, 5, 254, 255]) };
        assert_eq!(read(&["12-000102030405feff"]), Ok(Some(named)));
        assert_eq!(log_position(named), "12-000102030405feff");
        for values in [
            &[""][..],
            &["x"],
            &["-1"],
            &["01"],
            &["1.0"],
            &["18446744073709551616"],
            &["1", "1"],
            &["1-"],
            &["-000102030405feff"],
            &["1-000102030405fef"],
            &["1-000102030405feff0"],
            &["1-000102030405FEFF"],
            &["1-000102030405feff-"],
        ] {
            assert!(read(values).is_err(), "{values:?}");
        }
    }
}
