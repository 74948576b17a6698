//! The operations on pets.

use std::sync::atomic::Ordering::Relaxed;

use application::{CreatePet, Page};
use axum::{
    extract::{Path, RawQuery, Request, rejection::PathRejection},
    http::{
        HeaderName, HeaderValue, StatusCode,
        header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH, LINK, LOCATION},
    },
    response::{IntoResponse, Response},
};
use domain::PetId;

use super::{
    conditional::{is_not_modified, list_tag, pet_tag, require_match},
    idempotency,
    list_query::{self, next_page},
    log_position::{LOG_POSITION, log_position},
    new_pet::CreateRequest,
    number, pet_json,
};
use crate::http::{
    authentication::Client,
    error::{ApiError, JSON},
    header_value,
};

/// Clients may store a response, but must revalidate it each time; the entity tag makes that cheap.
const REVALIDATE: HeaderValue = HeaderValue::from_static("private, no-cache");

/// The number of pets that match the filter of a list, on all its pages.
const TOTAL_COUNT: HeaderName = HeaderName::from_static("total-count");
/// `getPet` is deprecated: since when in Unix seconds (RFC 9745; five years before the removal), when it will be removed
/// (RFC 8594), and what to use instead: the list with its filter.
pub(super) const DEPRECATED: [(HeaderName, HeaderValue); 3] = [
    (HeaderName::from_static("deprecation"), HeaderValue::from_static("@1764892800")),
    (HeaderName::from_static("sunset"), HeaderValue::from_static("Thu, 05 Dec 2030 00:00:00 GMT")),
    (LINK, HeaderValue::from_static(r#"</v1/pets>; rel="successor-version""#)),
];

/// `GET /v1/pets`. A 304 is decided before the page is rendered.
pub(crate) async fn list(
    client: Client,
    RawQuery(query): RawQuery,
    request: Request,
) -> Result<Response, ApiError> {
    let query = list_query::parse(query.as_deref().unwrap_or_default()).map_err(ApiError::invalid)?;
    let store = client.store().await?;
    if request.headers().contains_key(IF_NONE_MATCH) {
        let shown = log_position(store.shown()?);
        let tag = list_tag(&shown);
        if is_not_modified(request.headers(), &tag) {
            require_match(request.headers(), &tag)?;
            return Ok((StatusCode::NOT_MODIFIED, validators(tag, shown)).into_response());
        }
    }
    let Page { pets, next, total, position } = store.list(&query)?;
    // The page may show a later commit than the one above.
    let shown = log_position(position);
    let tag = list_tag(&shown);
    require_match(request.headers(), &tag)?;
    let total = [(TOTAL_COUNT, HeaderValue::from(total))];
    let link = next.map(|after| [(LINK, next_page(&query, after))]);
    Ok((validators(tag, shown), total, link, json(pet_json::page(&pets))).into_response())
}

/// `POST /v1/pets`. The response is sent after the pet is durable and readable. `If-Match` and `If-None-Match` are
/// ignored.
pub(crate) async fn create(
    client: Client,
    CreateRequest { pet, request_key }: CreateRequest,
) -> Result<Response, ApiError> {
    let store = client.store().await?;
    client.check_key()?;
    let by = client.principal.owner.clone();
    let created = store.create(CreatePet { pet, by, request_key }).await?;
    let location = header_value(["/v1/pets/", itoa::Buffer::new().format(created.pet.id.get())].concat());
    let replayed = created.replayed.then_some([idempotency::REPLAYED]);
    let pet = json(pet_json::pet(&created.pet));
    Ok((StatusCode::CREATED, [(LOCATION, location)], replayed, pet).into_response())
}

/// `GET /v1/pets/{petId}`, deprecated. Every response says so, and calls are counted by key, so that operators see which
/// clients still use it.
pub(crate) async fn get(
    client: Result<Client, ApiError>,
    path: Result<Path<String>, PathRejection>,
    request: Request,
) -> impl IntoResponse {
    if let Ok(client) = &client {
        client.principal.usage.deprecated.fetch_add(1, Relaxed);
    }
    (DEPRECATED, find(client, path, request).await)
}

/// Text that is not an id gets 404.
async fn find(
    client: Result<Client, ApiError>,
    path: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Response, ApiError> {
    let client = client?;
    let store = client.store().await?;
    let id = path.ok().and_then(|Path(text)| pet_id(&text)).ok_or(ApiError::NO_SUCH_PET)?;
    let (found, position) = store.get(id)?;
    let shown = log_position(position);
    let Some(pet) = found.as_ref().map(pet_json::pet) else {
        return Ok(([(LOG_POSITION, shown)], ApiError::NO_SUCH_PET).into_response());
    };
    let log = store.log_id().expect("a pet came with a commit, so there is a first one");
    let tag = pet_tag(log, &pet);
    require_match(request.headers(), &tag)?;
    if is_not_modified(request.headers(), &tag) {
        return Ok((StatusCode::NOT_MODIFIED, validators(tag, shown)).into_response());
    }
    Ok((validators(tag, shown), json(pet)).into_response())
}

fn json(body: Vec<u8>) -> impl IntoResponse {
    ([(CONTENT_TYPE, JSON)], body)
}

/// The headers of a response that clients may store, and the commit that it shows.
fn validators(tag: HeaderValue, shown: HeaderValue) -> [(HeaderName, HeaderValue); 3] {
    [(ETAG, tag), (CACHE_CONTROL, REVALIDATE), (LOG_POSITION, shown)]
}

fn pet_id(text: &str) -> Option<PetId> {
    let id = i64::try_from(number::plain(text)?).ok()?;
    PetId::new(id).ok()
}
