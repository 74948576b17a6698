//! Every error response: the only file that chooses the status and the code of an error.

use std::borrow::Cow;

use application::{WriteError, ports::Fault};
use axum::{
    http::{
        HeaderName, HeaderValue, StatusCode,
        header::{CONNECTION, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE},
    },
    response::{IntoResponse, Response},
};
use serde_json::json;
use thiserror::Error;

use super::settings::BODY_MAX;
use crate::access::{RejectedKey, Scope};

/// The media type of the API.
pub(super) const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// `Retry-After` of a 503 that ends without an operator, and of one that an operator has to correct, in seconds.
const RETRY_SOON: u64 = 1;
const RETRY_LATER: u64 = 5;

const CHALLENGE: HeaderValue = HeaderValue::from_static(r#"Bearer realm="petstore""#);
const CHALLENGE_INVALID_KEY: HeaderValue =
    HeaderValue::from_static(r#"Bearer realm="petstore", error="invalid_token""#);

/// An error response. Its text is the message for the client.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum ApiError {
    #[error("{0}")]
    InvalidRequest(Cow<'static, str>),
    #[error("an API key is required: send it as Authorization: Bearer <API_KEY>")]
    MissingKey,
    #[error("the API key is not valid")]
    MalformedKey,
    /// Clients do not see the reason; the request log does.
    #[error("the API key is not valid")]
    RejectedKey(RejectedKey),
    #[error("the API key lacks the {0} scope")]
    Forbidden(Scope),
    #[error("{0}")]
    NotFound(&'static str),
    #[error("method not allowed; the header Allow lists those of this path")]
    MethodNotAllowed,
    #[error("the body took too long to arrive")]
    RequestTimeout,
    #[error("If-Match does not match the current ETag")]
    PreconditionFailed,
    #[error("the body must be at most {} KiB", BODY_MAX / 1024)]
    PayloadTooLarge,
    #[error("{0}")]
    UnsupportedMediaType(&'static str),
    #[error("this Idempotency-Key was already used for a different pet: choose a new one")]
    IdempotencyKeyReused,
    #[error("internal error: report the X-Request-Id to the operator")]
    Internal,
    #[error("store orders are reserved and not implemented yet")]
    NotImplemented,
    /// The rate limit of the key is exhausted; holds the seconds to wait.
    #[error("too many requests with this API key; retry after the time in Retry-After")]
    RateLimited(u64),
    /// Holds the seconds to wait.
    #[error("too many invalid API keys from this address; retry after the time in Retry-After")]
    TooManyFailedKeys(u64, RejectedKey),
    #[error("{0}")]
    Busy(&'static str),
    #[error("the service is starting")]
    Starting,
    #[error("{0}")]
    LogUnavailable(Fault),
    /// Unavailable until an operator acts, so without `Retry-After`.
    #[error("{0}")]
    PetLimitReached(String),
    #[error("this node has not reached the requested Log-Position yet, or its log has another history")]
    NotCaughtUp,
}

impl ApiError {
    pub(super) const NO_SUCH_PET: Self = Self::NotFound("no pet has this id");

    pub(super) fn invalid(rule: impl Into<Cow<'static, str>>) -> Self {
        Self::InvalidRequest(rule.into())
    }

    pub(super) fn status(&self) -> StatusCode {
        self.kind().0
    }

    /// The status and the code.
    pub(super) fn kind(&self) -> (StatusCode, &'static str) {
        match self {
            Self::InvalidRequest(_) => (StatusCode::BAD_REQUEST, "invalid_request"),
            Self::MissingKey | Self::MalformedKey | Self::RejectedKey(_) => {
                (StatusCode::UNAUTHORIZED, "unauthorized")
            }
            Self::Forbidden(_) => (StatusCode::FORBIDDEN, "forbidden"),
            Self::NotFound(_) => (StatusCode::NOT_FOUND, "not_found"),
            Self::MethodNotAllowed => (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed"),
            Self::RequestTimeout => (StatusCode::REQUEST_TIMEOUT, "request_timeout"),
            Self::PreconditionFailed => (StatusCode::PRECONDITION_FAILED, "precondition_failed"),
            Self::PayloadTooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large"),
            Self::UnsupportedMediaType(_) => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type"),
            // As the IETF draft: clients retry after a 409.
            Self::IdempotencyKeyReused => (StatusCode::UNPROCESSABLE_ENTITY, "idempotency_key_reused"),
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
            Self::NotImplemented => (StatusCode::NOT_IMPLEMENTED, "not_implemented"),
            Self::RateLimited(_) | Self::TooManyFailedKeys(..) => {
                (StatusCode::TOO_MANY_REQUESTS, "rate_limited")
            }
            Self::Busy(_) => (StatusCode::SERVICE_UNAVAILABLE, "busy"),
            Self::Starting | Self::LogUnavailable(_) | Self::PetLimitReached(_) => {
                (StatusCode::SERVICE_UNAVAILABLE, "unavailable")
            }
            Self::NotCaughtUp => (StatusCode::SERVICE_UNAVAILABLE, "not_caught_up"),
        }
    }

    /// Whether the service failed. A client chooses the position that a node has not reached. The response of a probe that
    /// is "not ready" has no `ApiError`.
    pub(super) fn is_failure(&self) -> bool {
        self.status().is_server_error() && *self != Self::NotCaughtUp
    }

    /// The header that belongs to the error, if any.
    fn header(&self) -> Option<(HeaderName, HeaderValue)> {
        Some(match self {
            Self::MissingKey => (WWW_AUTHENTICATE, CHALLENGE),
            Self::MalformedKey | Self::RejectedKey(_) => (WWW_AUTHENTICATE, CHALLENGE_INVALID_KEY),
            // The rest of the body would be parsed as the next request. hyper drops the header on HTTP/2.
            Self::RequestTimeout => (CONNECTION, HeaderValue::from_static("close")),
            Self::RateLimited(seconds) | Self::TooManyFailedKeys(seconds, _) => {
                (RETRY_AFTER, (*seconds).into())
            }
            Self::LogUnavailable(fault) => (RETRY_AFTER, retry_after(Some(*fault))),
            Self::Busy(_) | Self::Starting | Self::NotCaughtUp => (RETRY_AFTER, RETRY_SOON.into()),
            _ => return None,
        })
    }

    /// The reason of a failed authentication, for metrics and the request log.
    pub(super) fn auth_failure(&self) -> Option<&'static str> {
        match self {
            Self::MissingKey => Some("missing"),
            Self::MalformedKey => Some("malformed"),
            error => error.rejected_key().map(RejectedKey::reason),
        }
    }

    /// The rejected key, if authentication failed because of it.
    pub(super) fn rejected_key(&self) -> Option<&RejectedKey> {
        match self {
            Self::RejectedKey(rejected) | Self::TooManyFailedKeys(_, rejected) => Some(rejected),
            _ => None,
        }
    }

    pub(super) fn body(&self) -> Vec<u8> {
        let (status, code) = self.kind();
        json!({ "code": code, "message": self.to_string(), "status": status.as_u16() }).to_string().into()
    }
}

/// When to retry a request that failed because of the log, if it did.
fn retry_after(fault: Option<Fault>) -> HeaderValue {
    let needs_operator = matches!(fault, Some(Fault::Full | Fault::Damaged | Fault::FilesMissing));
    HeaderValue::from(if needs_operator { RETRY_LATER } else { RETRY_SOON })
}

/// The response of a probe that reports a node as not ready because of this fault, if there is one, with its own body.
pub(super) fn not_ready(report: Vec<u8>, fault: Option<Fault>) -> Response {
    let headers = [(CONTENT_TYPE, JSON), (RETRY_AFTER, retry_after(fault))];
    (StatusCode::SERVICE_UNAVAILABLE, headers, report).into_response()
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status(), [(CONTENT_TYPE, JSON)], self.body()).into_response();
        response.headers_mut().extend(self.header());
        // For the request log.
        response.extensions_mut().insert(self);
        response
    }
}

impl From<Fault> for ApiError {
    fn from(fault: Fault) -> Self {
        Self::LogUnavailable(fault)
    }
}

impl From<WriteError> for ApiError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Busy => Self::Busy("too many requests are waiting"),
            WriteError::Unavailable(fault) => fault.into(),
            WriteError::PetLimitReached => Self::PetLimitReached(error.to_string()),
            WriteError::RequestKeyReused => Self::IdempotencyKeyReused,
            WriteError::IdsExhausted(error) => {
                tracing::error!(target: "petstore::http", %error, "cannot add a pet");
                Self::Internal
            }
        }
    }
}
