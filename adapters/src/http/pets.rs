//! The three operations on pets.

use std::sync::Arc;

use application::{CreatePet, Principal};
use axum::{
    body::Body,
    extract::{RawPathParams, Request, State, rejection::RawPathParamsRejection},
    http::{
        HeaderMap, HeaderName, HeaderValue, StatusCode,
        header::{CACHE_CONTROL, CONTENT_TYPE, LINK, LOCATION},
    },
    response::{IntoResponse, Response},
};
use domain::PetId;

use super::{
    error::{JSON, Problem},
    etag::EntityTag,
    idempotency, new_pet, number, paging, pet_json, request_body,
    service::Service,
};

/// The last commit an answer shows; in a request, the commit it must show at least.
pub(super) const LOG_POSITION: HeaderName = HeaderName::from_static("log-position");

/// Keep it, but ask every time whether it still holds: the tag makes that cheap.
const REVALIDATE: HeaderValue = HeaderValue::from_static("private, no-cache");

const NO_SUCH_PET: Problem = Problem::NotFound("no pet has this id");

/// `GET /v1/pets`.
pub(super) async fn list(State(service): State<Arc<Service>>, request: Request) -> Result<Response, Problem> {
    let query = paging::parse(request.uri().query()).map_err(Problem::invalid)?;
    let page = service.store()?.list(&query)?;
    let tag = EntityTag::of_version(&page.version);
    let mut response = if tag.is_held(request.headers()) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        json(StatusCode::OK, pet_json::pets(&page.pets))
    };
    let headers = response.headers_mut();
    tag.insert(headers);
    headers.insert(CACHE_CONTROL, REVALIDATE);
    headers.insert(LOG_POSITION, page.version.position.0.into());
    if let Some(after) = page.next {
        headers.insert(LINK, paging::next(&query, after));
    }
    Ok(response)
}

/// `POST /v1/pets`.
pub(super) async fn create(
    State(service): State<Arc<Service>>,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let principal: &Arc<Principal> = parts.extensions.get().ok_or(Problem::MissingKey)?;
    let request_key = idempotency::request_key(&parts.headers)?;
    let body = request_body::read_json(&parts.headers, body).await?;
    let pet = new_pet::parse(&body).map_err(Problem::invalid)?;
    let created = service.store()?.create(CreatePet { pet, by: principal.id.clone(), request_key }).await?;
    let mut response = json(StatusCode::CREATED, pet_json::pet(&created.pet));
    let location = format!("/v1/pets/{}", created.pet.id.get());
    let location = HeaderValue::try_from(location).expect("an address of digits is fit for a header");
    response.headers_mut().insert(LOCATION, location);
    if created.replayed {
        response.headers_mut().extend([idempotency::REPLAYED]);
    }
    Ok(response)
}

/// `GET /v1/pets/{petId}`. Deprecated; `front` says so.
pub(super) async fn get(
    State(service): State<Arc<Service>>,
    path: Result<RawPathParams, RawPathParamsRejection>,
    request: Request,
) -> Result<Response, Problem> {
    let store = service.store()?;
    // Taken first: a pet that is not found was not there at this position.
    let position = store.version().position;
    let id = path.ok().and_then(|path| path.iter().next().and_then(|(_, text)| pet_id(text)));
    let mut response = match id.map(|id| store.get(id)).transpose()?.flatten() {
        Some(pet) => tagged(pet_json::pet(&pet), request.headers()),
        None => NO_SUCH_PET.into_response(),
    };
    response.headers_mut().insert(LOG_POSITION, position.0.into());
    Ok(response)
}

/// A pet, unless the client holds it already.
fn tagged(body: Vec<u8>, asked: &HeaderMap) -> Response {
    let tag = EntityTag::of_content(&body);
    let mut response = if tag.is_held(asked) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        json(StatusCode::OK, body)
    };
    tag.insert(response.headers_mut());
    response.headers_mut().insert(CACHE_CONTROL, REVALIDATE);
    response
}

/// What is no id can name no pet.
fn pet_id(text: &str) -> Option<PetId> {
    let id = i64::try_from(number::plain(text)?).ok()?;
    PetId::new(id).ok()
}

fn json(status: StatusCode, body: Vec<u8>) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}
