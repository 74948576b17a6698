//! What an operation under `/v1` gets besides the request, and the position of the log as clients name it.

use std::{cell::RefCell, net::IpAddr, sync::Arc};

use application::{Bookmark, PetStore, ports::Position};
use axum::http::{HeaderMap, HeaderName, HeaderValue, request::Parts};
use data_encoding::HEXLOWER;

use super::{
    error::Problem,
    header_value::{Last, ValueWriter, remembered},
    number,
    prefer::Handling,
};
use crate::access::Principal;

/// In a response, the last commit it shows; in a request, the commit that the response must show at least.
pub(super) const LOG_POSITION: HeaderName = HeaderName::from_static("log-position");

/// What belongs to a request of a known caller to an open store.
pub(super) struct Call {
    pub(super) store: Arc<PetStore>,
    pub(super) principal: Arc<Principal>,
    pub(super) handling: Handling,
}

/// The reader of a response that lasts.
pub(super) struct Reader {
    pub(super) principal: Arc<Principal>,
    pub(super) client: IpAddr,
}

impl Call {
    /// Checks the names in the query string, if the caller wants that.
    pub(super) fn check_parameters(&self, request: &Parts, known: &[&str]) -> Result<(), Problem> {
        let query = request.uri.query().unwrap_or_default();
        let names = form_urlencoded::parse(query.as_bytes()).map(|(name, _)| name);
        self.handling.check("query parameter", names, known).map_err(Problem::invalid)
    }
}

/// Whether a path belongs to the interface, existing or not.
pub(super) fn is_in_interface(path: &str) -> bool {
    path.strip_prefix("/v1").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The value of the header: the position, and the first digits of the head hash there.
pub(super) fn log_position(bookmark: Bookmark) -> HeaderValue {
    thread_local! {
        static LAST: Last<Bookmark> = const { RefCell::new(None) };
    }
    remembered(&LAST, bookmark, |bookmark| {
        let mut value = ValueWriter::new();
        value.decimal(bookmark.position.0);
        if let Some(hash) = bookmark.hash {
            value.text("-").hex(&hash);
        }
        value.value()
    })
}

pub(super) fn requested_position(headers: &HeaderMap) -> Result<Option<Bookmark>, Problem> {
    let mut given = headers.get_all(LOG_POSITION).iter();
    let Some(value) = given.next() else { return Ok(None) };
    let bookmark = value.to_str().ok().and_then(bookmark).filter(|_| given.next().is_none());
    let rule = "Log-Position must be given once, as it was received: a position, a dash and 16 hex digits";
    bookmark.map(Some).ok_or(Problem::invalid(rule))
}

/// The position alone will do, too.
fn bookmark(text: &str) -> Option<Bookmark> {
    let Some((position, hash)) = text.split_once('-') else {
        return number::plain(text).map(Position).map(Into::into);
    };
    let hash = HEXLOWER.decode(hash.as_bytes()).ok()?.try_into().ok()?;
    Some(Bookmark { position: Position(number::plain(position)?), hash: Some(hash) })
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn a_position_is_a_plain_number_and_may_name_its_history() {
        let read = |values: &[&'static str]| {
            let headers =
                values.iter().map(|value| (LOG_POSITION, HeaderValue::from_static(value))).collect();
            requested_position(&headers)
        };
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&["0"]), Ok(Some(Position(0).into())));
        assert_eq!(read(&["18446744073709551615"]), Ok(Some(Position(u64::MAX).into())));
        let named = Bookmark { position: Position(12), hash: Some([0, 1, 2, 3, 4, 5, 254, 255]) };
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
