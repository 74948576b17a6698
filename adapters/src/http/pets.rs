//! The operations on pets, and the one on store orders, which is reserved.

use std::cell::RefCell;

use application::{Bookmark, CreatePet, ListPets, PetStore, Version, ports::Fault};
use axum::{
    body::{Body, Bytes},
    http::{
        HeaderMap, HeaderValue, StatusCode,
        header::{CACHE_CONTROL, CONTENT_TYPE, LINK, LOCATION},
        request::Parts,
    },
    response::{IntoResponse, Response},
};
use domain::PetId;
use percent_encoding::percent_decode_str;

use super::{
    call::{Call, LOG_POSITION, log_position},
    error::{JSON, Problem},
    etag::EntityTag,
    field,
    header_value::ValueWriter,
    idempotency, new_pet, number, paging, pet_json, plain_pet, request_body,
    route::Pending,
};

/// Clients may keep a page, but must revalidate it each time; the tag makes that cheap.
const REVALIDATE: HeaderValue = HeaderValue::from_static("private, no-cache");

/// How many headers a response has, roughly: enough that their table seldom grows.
const HEADERS: usize = 12;

/// The longest page that each thread may keep, in bytes.
const PAGE_KEPT_MAX: usize = 64 * 1024;

pub(super) const NO_ORDERS: Problem =
    Problem::NotImplemented("store orders are reserved and not implemented yet");

/// `GET /v1/pets`.
pub(super) fn list(call: &Call, request: &Parts) -> Result<Response, Problem> {
    let query = paging::parse(request.uri.query()).map_err(Problem::invalid)?;
    let (page, bookmark) = page(&call.store, query)?;
    let tag = EntityTag::of_version(&page.version);
    let mut response = revalidated(tag, &request.headers, || page.json);
    let headers = response.headers_mut();
    headers.insert(LOG_POSITION, log_position(bookmark));
    if let Some(next) = page.next {
        headers.insert(LINK, next);
    }
    Ok(response)
}

/// A page as it is sent, and what it was made of.
#[derive(Clone)]
struct Page {
    query: ListPets,
    version: Version,
    json: Bytes,
    next: Option<HeaderValue>,
}

/// The page, and how far the log has come. Many clients look at the same page: the one that was made last on this thread is
/// sent again until something is committed.
fn page(store: &PetStore, query: ListPets) -> Result<(Page, Bookmark), Fault> {
    thread_local! {
        static LAST: RefCell<Option<Page>> = const { RefCell::new(None) };
    }
    let (version, bookmark) = store.shown()?;
    let is_current = |page: &&Page| page.query == query && page.version == version;
    if let Some(page) = LAST.with_borrow(|last| last.as_ref().filter(is_current).cloned()) {
        return Ok((page, bookmark));
    }
    let mut json = pet_json::Page::with_room_for(query.limit);
    let (end, bookmark) = store.list(&query, &mut |pet| json.add(pet))?;
    let next = end.next.map(|after| paging::next(&query, after));
    let page = Page { query, version: end.version, json: json.into_json().into(), next };
    LAST.set((page.json.len() <= PAGE_KEPT_MAX).then(|| page.clone()));
    Ok((page, bookmark))
}

/// `POST /v1/pets`.
pub(super) fn create(call: Call, request: &Parts, body: Body) -> Result<Pending, Problem> {
    let request_key = idempotency::request_key(&request.headers);
    let body = request_body::read_json(&request.headers, body)?;
    Ok(Box::pin(async move {
        let body = body.await?;
        let pet = plain_pet::parse(&body).map_or_else(|| new_pet::parse(&body, call.handling), Ok);
        let (request_key, pet) = match (request_key, pet) {
            (Ok(request_key), Ok(pet)) => (request_key, pet),
            (request_key, pet) => {
                return Err(Problem::invalid(field::faults([request_key.err(), pet.err()])));
            }
        };
        let by = call.principal.owner.clone();
        let created = call.store.create(CreatePet { pet, by, request_key }).await?;
        let mut response = json(StatusCode::CREATED, pet_json::pet((&created.pet).into()).into());
        let location = ValueWriter::new().text("/v1/pets/").decimal(created.pet.id.get()).value();
        response.headers_mut().insert(LOCATION, location);
        if created.replayed {
            response.headers_mut().extend([idempotency::REPLAYED]);
        }
        Ok(response)
    }))
}

/// `GET /v1/pets/{petId}`. Deprecated.
pub(super) fn get(call: &Call, request: &Parts) -> Result<Response, Problem> {
    let Some(id) = pet_id(request.uri.path()) else { return Err(Problem::NO_SUCH_PET) };
    let mut found = None;
    let (_, bookmark) = call.store.get(id, &mut |pet| found = Some(pet_json::pet(pet)))?;
    let mut response = match found {
        Some(body) => {
            let log = call.store.log_id().expect("a pet came with a commit, so there is a first one");
            revalidated(EntityTag::of_pet(log, &body), &request.headers, || body.into())
        }
        None => Problem::NO_SUCH_PET.into_response(),
    };
    response.headers_mut().insert(LOG_POSITION, log_position(bookmark));
    Ok(response)
}

/// `GET /v1/store/orders`: reserved. Its payload is not specified, and we invent none.
pub(super) fn orders(_: &Call, _: &Parts) -> Result<Response, Problem> {
    Err(NO_ORDERS)
}

/// A body with its tag, or 304 for clients that hold it already.
fn revalidated(tag: EntityTag, asked: &HeaderMap, body: impl FnOnce() -> Bytes) -> Response {
    let mut response = if tag.is_held(asked) {
        respond(StatusCode::NOT_MODIFIED, Body::empty())
    } else {
        json(StatusCode::OK, body())
    };
    tag.insert(response.headers_mut());
    response.headers_mut().insert(CACHE_CONTROL, REVALIDATE);
    response
}

/// The id at the end of a path. Text that is no id names no pet.
fn pet_id(path: &str) -> Option<PetId> {
    let text = percent_decode_str(path.rsplit('/').next()?).decode_utf8().ok()?;
    let id = i64::try_from(number::plain(&text)?).ok()?;
    PetId::new(id).ok()
}

fn json(status: StatusCode, body: Bytes) -> Response {
    let mut response = respond(status, Body::from(body));
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}

fn respond(status: StatusCode, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = HeaderMap::with_capacity(HEADERS);
    response
}
