//! Every way in which a request can be refused: the one file that knows status numbers and codes.

use std::borrow::Cow;

use application::{CreateError, Scope, ports::Fault};
use axum::{
    http::{
        HeaderValue, StatusCode,
        header::{CONNECTION, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE},
    },
    response::{IntoResponse, Response},
};
use serde::Serialize;

/// The media type of every body this service sends.
pub(super) const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// When to try again what was refused for now. What keeps a node from answering is over in a moment or not soon.
const RETRY_AFTER_SECONDS: HeaderValue = HeaderValue::from_static("1");

const CHALLENGE: HeaderValue = HeaderValue::from_static(r#"Bearer realm="petstore""#);
const CHALLENGE_INVALID_KEY: HeaderValue =
    HeaderValue::from_static(r#"Bearer realm="petstore", error="invalid_token""#);

/// Why a request gets no other answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Problem {
    InvalidRequest(Cow<'static, str>),
    MissingKey,
    InvalidKey,
    Forbidden(Scope),
    NotFound(&'static str),
    MethodNotAllowed,
    RequestTimeout,
    IdempotencyKeyReused,
    PayloadTooLarge,
    UnsupportedMediaType(&'static str),
    Internal,
    NotImplemented(&'static str),
    Busy(&'static str),
    Unavailable(Cow<'static, str>),
    NotCaughtUp,
}

/// The body of every refusal.
#[derive(Serialize)]
struct Error<'a> {
    code: &'static str,
    message: &'a str,
    status: u16,
}

impl Problem {
    pub(super) fn invalid(rule: impl Into<Cow<'static, str>>) -> Self {
        Self::InvalidRequest(rule.into())
    }

    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::InvalidRequest(_) => StatusCode::BAD_REQUEST,
            Self::MissingKey | Self::InvalidKey => StatusCode::UNAUTHORIZED,
            Self::Forbidden(_) => StatusCode::FORBIDDEN,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::RequestTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::IdempotencyKeyReused => StatusCode::CONFLICT,
            Self::PayloadTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UnsupportedMediaType(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::NotImplemented(_) => StatusCode::NOT_IMPLEMENTED,
            Self::Busy(_) | Self::Unavailable(_) | Self::NotCaughtUp => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::InvalidRequest(_) => "invalid_request",
            Self::MissingKey | Self::InvalidKey => "unauthorized",
            Self::Forbidden(_) => "forbidden",
            Self::NotFound(_) => "not_found",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::RequestTimeout => "request_timeout",
            Self::IdempotencyKeyReused => "idempotency_key_reused",
            Self::PayloadTooLarge => "payload_too_large",
            Self::UnsupportedMediaType(_) => "unsupported_media_type",
            Self::Internal => "internal",
            Self::NotImplemented(_) => "not_implemented",
            Self::Busy(_) => "busy",
            Self::Unavailable(_) => "unavailable",
            Self::NotCaughtUp => "not_caught_up",
        }
    }

    fn message(&self) -> Cow<'_, str> {
        match self {
            Self::InvalidRequest(message) | Self::Unavailable(message) => Cow::Borrowed(message),
            Self::MissingKey => "an API key is required: send it as Authorization: Bearer <API_KEY>".into(),
            Self::InvalidKey => "the API key is not valid".into(),
            Self::Forbidden(scope) => format!("the API key lacks the {scope} scope").into(),
            Self::NotFound(message)
            | Self::UnsupportedMediaType(message)
            | Self::NotImplemented(message)
            | Self::Busy(message) => (*message).into(),
            Self::MethodNotAllowed => "the method is not one of those in the Allow header".into(),
            Self::RequestTimeout => "the body took too long to arrive".into(),
            Self::IdempotencyKeyReused => {
                "this Idempotency-Key was already used for a different pet: choose a new one".into()
            }
            Self::PayloadTooLarge => {
                let kib = super::request_body::BODY_MAX / 1024;
                format!("the body must be at most {kib} KiB").into()
            }
            Self::Internal => "the service failed unexpectedly".into(),
            Self::NotCaughtUp => "this node has not reached the requested Log-Position yet".into(),
        }
    }

    /// The Error body.
    pub(super) fn body(&self) -> Vec<u8> {
        let message = &*self.message();
        let error = Error { code: self.code(), message, status: self.status().as_u16() };
        serde_json::to_vec(&error).expect("text and a number are always JSON")
    }
}

/// The answer of a probe that says no. Its body is its own: it tells more than a refusal.
pub(super) fn not_ready(report: Vec<u8>) -> Response {
    let headers = [(CONTENT_TYPE, JSON), (RETRY_AFTER, RETRY_AFTER_SECONDS)];
    (StatusCode::SERVICE_UNAVAILABLE, headers, report).into_response()
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.status();
        let mut response = (status, [(CONTENT_TYPE, JSON)], self.body()).into_response();
        let headers = response.headers_mut();
        match self {
            Self::MissingKey => {
                headers.insert(WWW_AUTHENTICATE, CHALLENGE);
            }
            Self::InvalidKey => {
                headers.insert(WWW_AUTHENTICATE, CHALLENGE_INVALID_KEY);
            }
            Self::Busy(_) | Self::Unavailable(_) | Self::NotCaughtUp => {
                headers.insert(RETRY_AFTER, RETRY_AFTER_SECONDS);
            }
            // What is still to come of the body would be taken for the next request. HTTP/2 knows no such header.
            Self::RequestTimeout => {
                headers.insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Self::InvalidRequest(_)
            | Self::Forbidden(_)
            | Self::NotFound(_)
            | Self::MethodNotAllowed
            | Self::IdempotencyKeyReused
            | Self::PayloadTooLarge
            | Self::UnsupportedMediaType(_)
            | Self::Internal
            | Self::NotImplemented(_) => {}
        }
        response
    }
}

impl From<Fault> for Problem {
    fn from(fault: Fault) -> Self {
        Self::Unavailable(fault.to_string().into())
    }
}

impl From<CreateError> for Problem {
    fn from(error: CreateError) -> Self {
        match error {
            CreateError::Busy => Self::Busy("too many requests are waiting"),
            CreateError::Unavailable(fault) => fault.into(),
            CreateError::RequestKeyReused => Self::IdempotencyKeyReused,
            CreateError::IdsExhausted(error) => {
                tracing::error!("cannot add a pet: {error}");
                Self::Internal
            }
        }
    }
}
