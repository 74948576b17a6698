//! The body of a request that writes: its media type, size limit and timeout.

use std::time::Duration;

use axum::{
    body::{Body, HttpBody as _},
    extract::Request,
    http::{
        HeaderMap, HeaderValue,
        header::{CONTENT_ENCODING, CONTENT_TYPE},
    },
};
use http_body_util::BodyExt as _;
use tokio::time;

use crate::http::{error::ApiError, settings::BODY_MAX};

/// Timeout for a complete request body.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// Reads a complete body that is declared as JSON. It is not parsed yet.
pub(super) async fn read(request: Request) -> Result<Vec<u8>, ApiError> {
    check_media_type(request.headers())?;
    // Rejected before the client is asked to send the body.
    if request.body().size_hint().lower() > BODY_MAX as u64 {
        return Err(ApiError::PayloadTooLarge);
    }
    let body = time::timeout(BODY_TIMEOUT, collect(request.into_body())).await;
    body.map_err(|_elapsed| ApiError::RequestTimeout)?
}

/// Copies a body into one buffer. axum's `Bytes` extractor keeps the parts until the end, and a part keeps the buffer of the
/// connection that it arrived in: one byte could hold 16 KiB.
async fn collect(mut body: Body) -> Result<Vec<u8>, ApiError> {
    let mut collected = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|_| ApiError::invalid("the body is incomplete, or its chunks are malformed"))?;
        let Ok(data) = frame.into_data() else { continue };
        if collected.len() + data.len() > BODY_MAX {
            return Err(ApiError::PayloadTooLarge);
        }
        // A `Vec` would double its capacity, and so take up to twice the memory that is counted.
        if collected.capacity() - collected.len() < data.len() {
            collected.reserve_exact(data.len().max(collected.len() / 4));
        }
        collected.extend_from_slice(&data);
    }
    Ok(collected)
}

fn check_media_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let identity = |coding: &HeaderValue| coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity");
    if !headers.get_all(CONTENT_ENCODING).iter().all(identity) {
        return Err(ApiError::UnsupportedMediaType(
            "the body must not be compressed: remove Content-Encoding",
        ));
    }
    let mut given = headers.get_all(CONTENT_TYPE).iter();
    match (given.next().and_then(|value| value.to_str().ok()), given.next()) {
        (Some(value), None) if is_json(value) => Ok(()),
        (Some(_) | None, _) => Err(ApiError::UnsupportedMediaType(
            "Content-Type must be application/json, with charset=utf-8 if a charset is given",
        )),
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
    use std::pin::pin;

    use axum::{
        body::Bytes,
        http::{HeaderName, StatusCode},
    };
    use futures_util::{FutureExt as _, Stream, StreamExt as _, TryStreamExt as _, stream};
    use http_body_util::StreamBody;
    use hyper::body::Frame;

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
            "application/xml",
            "*/*",
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

    async fn read_parts(
        parts: impl Stream<Item = Result<Bytes, ApiError>> + Send + 'static,
    ) -> Result<Vec<u8>, ApiError> {
        let request = Request::builder().header(CONTENT_TYPE, "application/json");
        let request = request.body(Body::new(StreamBody::new(parts.map_ok(Frame::data)))).unwrap();
        read(request).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_is_read_up_to_its_limits() {
        let of_parts = |count| stream::iter(vec![Ok(Bytes::from_static(&[b' '; 1024])); count]);
        assert_eq!(read_parts(of_parts(64)).await, Ok(vec![b' '; BODY_MAX]));
        assert_eq!(read_parts(of_parts(65)).await, Err(ApiError::PayloadTooLarge));
        assert_eq!(read_parts(of_parts(1).chain(stream::pending())).await, Err(ApiError::RequestTimeout));
        let broken = read_parts(of_parts(1).chain(stream::iter([Err(ApiError::Internal)]))).await;
        assert_eq!(broken.map_err(|error| error.status()), Err(StatusCode::BAD_REQUEST));
    }

    #[tokio::test]
    async fn an_unfinished_body_does_not_keep_the_buffers_of_its_parts() {
        let buffer = Bytes::from(vec![b' '; 16 * 1024]);
        let part = stream::iter([Ok(buffer.slice(..1))]);
        let mut reading = pin!(read_parts(part.chain(stream::pending())));
        assert!(reading.as_mut().now_or_never().is_none());
        assert!(buffer.is_unique());
    }
}
