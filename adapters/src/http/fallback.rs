//! The handlers for unknown paths, and for methods that a path lacks; axum adds `Allow`. Under `/v1`, 401
//! precedes both.

use axum::http::Uri;

use super::{authentication::Client, error::ApiError};

pub(super) async fn api_not_found(_: Client, uri: Uri) -> ApiError {
    // axum removes /v1 from the path.
    let hint =
        if uri.path().len() > 1 && uri.path().ends_with('/') { "no path ends with a slash; " } else { "" };
    ApiError::NotFound(format!("no such endpoint; {hint}see /docs").into())
}

pub(super) async fn not_found() -> ApiError {
    ApiError::NotFound("no such endpoint; the paths of the API begin with /v1; see /docs".into())
}

pub(super) async fn admin_not_found() -> ApiError {
    ApiError::NotFound("no such endpoint; see /".into())
}

pub(super) async fn api_method_not_allowed(_: Client) -> ApiError {
    ApiError::MethodNotAllowed
}

pub(super) async fn method_not_allowed() -> ApiError {
    ApiError::MethodNotAllowed
}
