//! `GET /v1/store/orders`: reserved. Its payload is not specified.

use crate::http::{authentication::Client, error::ApiError};

pub(crate) const RESERVED: ApiError =
    ApiError::NotImplemented("store orders are reserved and not implemented yet");

pub(crate) async fn list(_: Client) -> ApiError {
    RESERVED
}
