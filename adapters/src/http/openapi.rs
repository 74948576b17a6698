//! The interface as an OpenAPI 3.1 document, collected from the routes themselves: a route and its description
//! are given together, so neither can be there without the other.
//!
//! `operations` describes what can be asked, `answers` what comes back, `headers` and `schemas` the parts of both.

mod answers;
mod headers;
mod operations;
mod schemas;

use axum::{handler::Handler, routing::MethodRouter};
use utoipa::openapi::{
    Components, HttpMethod, Info, License, OpenApi, OpenApiBuilder, Paths, SecurityRequirement, Server,
    path::Operation,
    security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
    tag::TagBuilder,
};
use utoipa_axum::{PathItemExt as _, router::UtoipaMethodRouter};

pub(super) use self::operations::{create_pet, get_pet, list_orders, list_pets};
use super::site::Site;

/// The version of the interface, not of the program.
const VERSION: &str = "1.0.0";

/// Where the interface stands on this service. It is part of the servers' addresses, not of the paths.
const PREFIX: &str = "/v1";

/// The one way to say who calls.
const BEARER: &str = "bearer";

/// The tag of every operation.
const ANIMALS: &str = "animals";

/// One address: its operations, each with its description.
pub(super) struct Address<S> {
    path: &'static str,
    paths: Paths,
    methods: MethodRouter<S>,
}

impl<S: Clone + Send + Sync + 'static> Address<S> {
    pub(super) fn at(path: &'static str) -> Self {
        Self { path, paths: Paths::new(), methods: MethodRouter::new() }
    }

    /// What `GET` does here, and `HEAD` with it.
    pub(super) fn get<T: 'static>(self, handler: impl Handler<T, S>, operation: Operation) -> Self {
        self.on(HttpMethod::Get, handler, operation)
    }

    /// What `POST` does here.
    pub(super) fn post<T: 'static>(self, handler: impl Handler<T, S>, operation: Operation) -> Self {
        self.on(HttpMethod::Post, handler, operation)
    }

    fn on<T: 'static>(
        mut self,
        method: HttpMethod,
        handler: impl Handler<T, S>,
        operation: Operation,
    ) -> Self {
        self.methods = self.methods.on(method.to_method_filter(), handler);
        self.paths.add_path_operation(self.path, vec![method], operation);
        self
    }
}

impl<S> From<Address<S>> for UtoipaMethodRouter<S> {
    fn from(address: Address<S>) -> Self {
        (Vec::new(), address.paths, address.methods)
    }
}

/// The document before any route was added.
pub(super) fn frame() -> OpenApi {
    let mut components = Components::new();
    components.schemas = schemas::all();
    components.headers = headers::all();
    components.add_security_scheme(BEARER, bearer());
    let mut info = Info::new("Pet store", VERSION);
    info.description = Some(include_str!("openapi/description.md").into());
    info.license = Some(License::new("MIT OR Apache-2.0"));
    OpenApiBuilder::new()
        .info(info)
        .components(Some(components))
        .security(Some([security()]))
        .tags(Some([TagBuilder::new().name(ANIMALS).description(Some("The pets of the store.")).build()]))
        .build()
}

/// The finished document as text: the same bytes for the same interface, whoever asks.
pub(super) fn render(mut document: OpenApi, site: &Site) -> String {
    document.servers = Some(servers(site));
    let paths = std::mem::take(&mut document.paths.paths).into_iter();
    let relative = |path: String| path.strip_prefix(PREFIX).map(str::to_owned).unwrap_or(path);
    document.paths.paths = paths.map(|(path, item)| (relative(path), item)).collect();
    // utoipa keeps extensions in an order of its own each time; a JSON value sorts them.
    let document = serde_json::to_value(document).expect("an OpenAPI document is JSON");
    format!("{document:#}\n")
}

fn servers(site: &Site) -> Vec<Server> {
    let mut servers = vec![server(PREFIX, "This service")];
    servers.extend(site.base_url.as_ref().map(|url| server(url.as_str(), "Production")));
    servers.extend(site.staging_url.as_ref().map(|url| server(url.as_str(), "Staging")));
    servers
}

fn server(url: &str, description: &str) -> Server {
    let mut server = Server::new(url);
    server.description = Some(description.into());
    server
}

fn bearer() -> SecurityScheme {
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format("API key");
    SecurityScheme::Http(bearer.description(Some("An API key issued with `petstore keys issue`.")).build())
}

fn security() -> SecurityRequirement {
    SecurityRequirement::new(BEARER, [] as [&str; 0])
}
