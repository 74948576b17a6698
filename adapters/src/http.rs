//! The HTTP port: the pet store as a JSON interface under `/v1`, and two probes beside it.
//!
//! Reading order: [`router`] (what there is), `front` (what happens to every request), `pets` (the operations),
//! `new_pet` and `paging` (what clients may send), `error` (every refusal), then [`serve`] and `connection`
//! (how requests get here, and what slow or silent peers are allowed to do).

mod activity;
mod auth;
mod connection;
mod deprecation;
mod error;
mod etag;
mod front;
mod health;
mod idempotency;
mod new_pet;
mod number;
mod orders;
mod paging;
mod pet_json;
mod pets;
mod request_body;
mod request_id;
mod server;
mod service;

use std::sync::Arc;

use axum::{Router, routing::get};

pub use server::{Settings, serve};
pub use service::Service;

/// Every address there is. What is asked of a request before it gets here is the business of `front`.
fn router(service: Arc<Service>) -> Router {
    Router::new()
        .route("/v1/pets", get(pets::list).post(pets::create))
        .route("/v1/pets/{petId}", get(pets::get))
        .route("/v1/store/orders", get(orders::list))
        .route("/livez", get(health::live))
        .route("/readyz", get(health::ready))
        .method_not_allowed_fallback(front::other_method)
        .fallback(front::no_such_path)
        .with_state(service)
}
