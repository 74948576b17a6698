//! JSON request bodies: media type, size and timeout.

use std::{
    error::Error,
    iter,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    body::{Body, Bytes},
    http::{
        HeaderMap, HeaderValue,
        header::{CONTENT_ENCODING, CONTENT_TYPE},
    },
};
use bytes::BytesMut;
use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use thiserror::Error;
use tokio::time::{self, Sleep};

use super::{error::Problem, limits::BODY_MAX};

/// Reads a JSON body whole.
pub(super) fn read_json(
    headers: &HeaderMap,
    body: Body,
) -> Result<impl Future<Output = Result<Bytes, Problem>> + use<>, Problem> {
    check_media_type(headers)?;
    if body.size_hint().lower() > BODY_MAX as u64 {
        return Err(Problem::PayloadTooLarge);
    }
    Ok(read(body))
}

/// The whole body, which usually comes in one piece. Its length tells where it ends: waiting until hyper reports the end
/// takes another turn of the connection, a tenth of the time of a create.
async fn read(mut body: Body) -> Result<Bytes, Problem> {
    let mut whole = BytesMut::new();
    while !body.is_end_stream()
        && let Some(frame) = body.frame().await
    {
        // Trailers say nothing about a pet.
        let Ok(piece) = frame.map_err(|error| broken(&error))?.into_data() else { continue };
        if whole.len() + piece.len() > BODY_MAX {
            return Err(Problem::PayloadTooLarge);
        }
        if whole.is_empty() && body.is_end_stream() {
            return Ok(piece);
        }
        whole.extend_from_slice(&piece);
    }
    Ok(whole.freeze())
}

/// Limits the time until the whole body has arrived.
pub(super) fn with_deadline(body: Body, timeout: Duration) -> Body {
    if body.is_end_stream() { body } else { Body::new(Deadline { body, timeout, timer: None }) }
}

struct Deadline {
    body: Body,
    timeout: Duration,
    timer: Option<Pin<Box<Sleep>>>,
}

#[derive(Debug, Error)]
#[error("the body took too long to arrive")]
struct TooSlow;

impl HttpBody for Deadline {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) {
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let timer = this.timer.get_or_insert_with(|| Box::pin(time::sleep(this.timeout)));
        ready!(timer.as_mut().poll(context));
        Poll::Ready(Some(Err(TooSlow.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn broken(error: &axum::Error) -> Problem {
    let causes = || iter::successors(Some(error as &dyn Error), |&cause| cause.source());
    if causes().any(<dyn Error>::is::<TooSlow>) {
        Problem::RequestTimeout
    } else {
        Problem::invalid("the body must be complete and correctly framed")
    }
}

fn check_media_type(headers: &HeaderMap) -> Result<(), Problem> {
    let identity = |coding: &HeaderValue| coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity");
    if !headers.get_all(CONTENT_ENCODING).iter().all(identity) {
        return Err(Problem::UnsupportedMediaType(
            "the body must not be compressed: remove Content-Encoding",
        ));
    }
    let mut given = headers.get_all(CONTENT_TYPE).iter();
    match (given.next().and_then(|value| value.to_str().ok()), given.next()) {
        (Some(value), None) if is_json(value) => Ok(()),
        (Some(_) | None, _) => {
            Err(Problem::UnsupportedMediaType("Content-Type must be application/json in UTF-8"))
        }
    }
}

/// `application/json`, in UTF-8 if a charset is named. Other parameters are ignored.
fn is_json(media_type: &str) -> bool {
    let mut parts = media_type.split(';').map(str::trim);
    let is_json = parts.next().is_some_and(|essence| essence.eq_ignore_ascii_case("application/json"));
    is_json
        && parts.filter_map(|parameter| parameter.split_once('=')).all(|(name, value)| {
            let charset = value.trim_matches('"');
            !name.eq_ignore_ascii_case("charset") || charset.eq_ignore_ascii_case("utf-8")
        })
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    fn check(headers: &[(HeaderName, &'static str)]) -> bool {
        let headers =
            headers.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect();
        check_media_type(&headers).is_ok()
    }

    #[test]
    fn json_in_utf_8_is_accepted() {
        for value in [
            "application/json",
            "Application/JSON",
            "application/json; charset=utf-8",
            "application/json;charset=UTF-8",
            "application/json ; Charset=\"utf-8\"",
            "application/json;",
            "application/json; profile=x",
        ] {
            assert!(check(&[(CONTENT_TYPE, value)]), "{value}");
        }
        assert!(check(&[(CONTENT_TYPE, "application/json"), (CONTENT_ENCODING, "Identity")]));
    }

    #[test]
    fn other_media_types_charsets_and_codings_are_rejected() {
        for value in [
            "",
            "text/plain",
            "text/json",
            "application/jsonp",
            "application/json+x",
            "application/vnd.api+json",
            "application/x-www-form-urlencoded",
            "application/json; charset=latin1",
            "application/json; charset=utf-16",
            "application/json; charset=",
            "application/json, text/plain",
        ] {
            assert!(!check(&[(CONTENT_TYPE, value)]), "{value}");
        }
        assert!(!check(&[]), "no media type at all");
        assert!(!check(&[(CONTENT_TYPE, "application/json"), (CONTENT_TYPE, "application/json")]));
        for coding in ["gzip", "br", "identity, gzip", "", "deflate"] {
            assert!(!check(&[(CONTENT_TYPE, "application/json"), (CONTENT_ENCODING, coding)]), "{coding}");
        }
    }

    #[tokio::test]
    async fn a_body_of_up_to_its_limit_is_read_whole() {
        let headers = [(CONTENT_TYPE, HeaderValue::from_static("application/json"))].into_iter().collect();
        for (size, fits) in [(0, true), (1, true), (BODY_MAX, true), (BODY_MAX + 1, false)] {
            let read = match read_json(&headers, Body::from(vec![b' '; size])) {
                Ok(read) => read.await,
                Err(problem) => Err(problem),
            };
            assert_eq!(read.ok().map(|body| body.len()), fits.then_some(size), "{size} bytes");
        }
    }
}
