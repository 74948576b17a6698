//! The HTTP port: the pet store as a JSON interface under `/v1`, its description, and probes beside it.
//!
//! Reading order: [`router`] (what there is), `front` (what happens to every request), `pets` (the operations),
//! `new_pet` and `paging` (what clients may send), `error` (every refusal), `openapi` (the same for programs to
//! read), then [`serve`] and `connection` (how requests get here, and what slow or silent peers are allowed to do).

mod activity;
mod asset;
mod auth;
mod connection;
mod cors;
mod deprecation;
mod docs;
mod error;
mod etag;
mod front;
mod health;
mod idempotency;
mod inventory;
mod metrics;
mod new_pet;
mod number;
mod openapi;
mod operation;
mod orders;
mod paging;
mod pet_json;
mod pets;
mod request_body;
mod request_id;
mod server;
mod service;
mod site;

use std::sync::Arc;

use axum::{Router, routing::get};
use utoipa_axum::router::OpenApiRouter;

pub use cors::{InvalidOrigin, Origin, Origins};
pub use server::{Settings, serve, serve_operators};
pub use service::Service;
pub use site::{InvalidServerUrl, ServerUrl, Site};

use openapi::Address;

/// The interface as an OpenAPI document.
pub fn document(site: &Site) -> String {
    openapi::render(interface().into_openapi(), site)
}

/// The operations, each with the description that the OpenAPI document gives of it.
fn interface() -> OpenApiRouter<Arc<Service>> {
    let pets = Address::at("/v1/pets")
        .get(pets::list, openapi::list_pets())
        .post(pets::create, openapi::create_pet());
    let pet = Address::at("/v1/pets/{petId}").get(pets::get, openapi::get_pet());
    let orders = Address::at("/v1/store/orders").get(orders::list, openapi::list_orders());
    OpenApiRouter::with_openapi(openapi::frame()).routes(pets.into()).routes(pet.into()).routes(orders.into())
}

/// Every address there is. What is asked of a request before it gets here is the business of `front`.
fn router(service: Arc<Service>) -> Router {
    let (interface, document) = interface().split_for_parts();
    let document = openapi::render(document, &service.site);
    closed(
        interface
            .merge(docs::router(document, &service.site))
            .merge(inventory::router(&service.site))
            .merge(probes()),
        service,
    )
}

/// What operators see on a listener of their own.
fn operators_router(service: Arc<Service>) -> Router {
    closed(probes().route("/metrics", get(metrics::show)), service)
}

fn probes() -> Router<Arc<Service>> {
    Router::new().route("/livez", get(health::live)).route("/readyz", get(health::ready))
}

/// Answers everything else in the Error shape.
fn closed(router: Router<Arc<Service>>, service: Arc<Service>) -> Router {
    router.method_not_allowed_fallback(front::other_method).fallback(front::no_such_path).with_state(service)
}
