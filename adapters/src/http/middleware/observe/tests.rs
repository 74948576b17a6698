//! The steps of every request, on a service whose store is not open yet.

use std::collections::BTreeSet;

use axum::{
    Router,
    body::Body,
    http::{
        HeaderName, StatusCode, Version,
        header::{ALLOW, AUTHORIZATION, CONTENT_TYPE, HOST, RETRY_AFTER},
    },
};
use axum::{middleware::from_fn_with_state, routing::get};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tower::Service as _;

use super::*;
use crate::{
    access::{Scope, api_keys::ApiKeys},
    http::{HttpSettings, authentication::scope_of, document, public, server::tests::in_flight},
};

fn state() -> Arc<AppState> {
    let keys = ApiKeys::of([("reads", Scope::Read.into())]);
    Arc::new(AppState::new(keys, HttpSettings::default(), None, || 0))
}

fn router() -> Router {
    public(&state())
}

fn request(method: &str, path: &str) -> Request {
    let builder =
        Request::builder().method(method).uri(path).header(HOST, "localhost").extension(in_flight());
    builder.body(Body::empty()).unwrap()
}

fn with(mut request: Request, name: HeaderName, value: &'static str) -> Request {
    request.headers_mut().append(name, HeaderValue::from_static(value));
    request
}

fn with_key(request: Request) -> Request {
    with(request, AUTHORIZATION, "Bearer reads")
}

async fn respond(request: Request) -> Response {
    respond_by(&router(), request).await
}

async fn respond_by(router: &Router, request: Request) -> Response {
    let Ok(response) = router.clone().call(request).await;
    response
}

async fn body(response: Response) -> Value {
    assert_eq!(response.headers()[CONTENT_TYPE], "application/json");
    serde_json::from_slice(&response.into_body().collect().await.unwrap().to_bytes()).unwrap()
}

#[tokio::test]
async fn with_a_key_the_scope_and_the_store_are_checked_before_the_path() {
    let forbidden = respond(with_key(request("POST", "/v1/nothing"))).await;
    assert_eq!(body(forbidden).await["code"], "forbidden");
    let starting = respond(with_key(request("GET", "/v1/nothing"))).await;
    assert_eq!(starting.headers()[RETRY_AFTER], "1");
    assert_eq!(body(starting).await["code"], "unavailable");
}

#[tokio::test]
async fn a_request_must_name_exactly_one_valid_host() {
    let one_host = request("GET", "/livez");
    assert_eq!(respond(one_host).await.status(), 200);
    let two_hosts = with(request("GET", "/livez"), HOST, "localhost");
    assert_eq!(body(respond(two_hosts).await).await["code"], "invalid_request");
    for host in ["a b", "user@host", "a/b"] {
        let mut strange = request("GET", "/livez");
        strange.headers_mut().insert(HOST, HeaderValue::from_static(host));
        assert_eq!(respond(strange).await.status(), 400, "{host}");
    }
    for (version, status) in [(Version::HTTP_10, 200), (Version::HTTP_11, 400), (Version::HTTP_2, 200)] {
        let mut no_host = request("GET", "/livez");
        no_host.headers_mut().remove(HOST);
        *no_host.version_mut() = version;
        assert_eq!(respond(no_host).await.status(), status, "{version:?}");
    }
}

#[tokio::test]
async fn a_panic_becomes_a_500_and_the_next_request_is_served() {
    let observed = from_fn_with_state((state(), Arc::default(), RouteGroup::Open), observe);
    let breaks = get(async || -> StatusCode { panic!("it breaks") });
    let router =
        Router::new().route("/broken", breaks).route("/livez", get(async || "sound")).layer(observed);
    let broken = respond_by(&router, request("GET", "/broken")).await;
    let error = body(broken).await;
    assert_eq!((error["status"].as_u64(), &error["code"]), (Some(500), &json!("internal")));
    assert!(!error["message"].as_str().unwrap().contains("breaks"), "causes are not shown");
    assert_eq!(respond_by(&router, request("GET", "/livez")).await.status(), 200);
}

/// A `Router` cannot list its routes, so every method is sent to every path that the document describes.
#[tokio::test]
async fn every_described_path_has_the_described_methods_and_no_others() {
    let description: Value = serde_json::from_str(&document(&HttpSettings::default())).unwrap();
    let mut used = BTreeSet::new();
    for (path, operations) in description["paths"].as_object().unwrap() {
        let path = format!("/v1{}", path.replace("{petId}", "1"));
        for method in ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "TRACE", "OPTIONS"] {
            let described = operations.get(method.replace("HEAD", "GET").to_lowercase());
            let response = respond(request(method, &path)).await;
            assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
            assert_eq!(response.headers().contains_key(ALLOW), described.is_none(), "{method} {path}");
            let deprecated = described.is_some_and(|operation| operation["deprecated"] == true);
            assert_eq!(response.headers().contains_key("deprecation"), deprecated, "{method} {path}");
            used.extend(described.map(|_| method));
        }
    }
    assert_eq!(used, METHODS.iter().map(Method::as_str).collect());
    assert!(
        METHODS.iter().all(|method| scope_of(method).is_some()),
        "a method without a scope would need none"
    );
}
