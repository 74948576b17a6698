//! The request of a create: `Idempotency-Key` and body.

use application::RequestKey;
use axum::extract::{FromRequest, Request};
use domain::NewPet;

use super::{field, idempotency, json_body::JsonBody, new_pet, prefer::Handling};
use crate::http::error::ApiError;

/// A pet to add. Media type and size are checked first; then one rejection names every fault of the query string, the
/// headers and the body.
pub(crate) struct CreateRequest {
    pub(crate) pet: NewPet,
    pub(crate) request_key: Option<RequestKey>,
}

impl<S: Send + Sync> FromRequest<S> for CreateRequest {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let handling = Handling::of(request.headers());
        let query = handling.check_query(request.uri().query().unwrap_or_default(), &[]);
        let request_key = idempotency::request_key(request.headers());
        let JsonBody(body) = JsonBody::from_request(request, state).await?;
        match (query, request_key, new_pet::parse(&body, handling)) {
            (Ok(()), Ok(request_key), Ok(pet)) => Ok(Self { pet, request_key }),
            (query, request_key, pet) => {
                Err(ApiError::invalid(field::faults([query.err(), request_key.err(), pet.err()])))
            }
        }
    }
}
