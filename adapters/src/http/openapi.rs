//! The interface as an OpenAPI 3.1 document. The route table gives path, method, name and deprecation of each
//! operation; `operations` adds the parameters, `answers` the responses, `headers` and `schemas` the parts of both.

mod answers;
mod headers;
mod operations;
mod schemas;

use utoipa::openapi::{
    Components, Deprecated, Info, License, OpenApi, OpenApiBuilder, Paths, RefOr, SecurityRequirement,
    Server,
    extensions::Extensions,
    path::Operation,
    security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
    tag::TagBuilder,
};

pub(super) use self::operations::{create_pet, get_pet, list_orders, list_pets};
use super::{
    deprecation,
    route::{Lifecycle, Route},
    site::Site,
};

/// The version of the interface, not of the program.
const VERSION: &str = "1.0.0";

/// Where the interface stands on this service. It is part of the servers' addresses, not of the paths.
const PREFIX: &str = "/v1";

/// The one way to say who calls.
const BEARER: &str = "bearer";

/// The tag of every operation.
const ANIMALS: &str = "animals";

/// The document as text: the same bytes for the same routes.
pub(super) fn document(routes: &[Route], site: &Site) -> String {
    let mut document = frame();
    document.servers = Some(servers(site));
    document.paths = paths(routes);
    // utoipa keeps extensions in an order of its own each time; a JSON value sorts them.
    let document = serde_json::to_value(document).expect("an OpenAPI document is JSON");
    format!("{document:#}\n")
}

/// The described routes, with paths relative to the servers.
fn paths(routes: &[Route]) -> Paths {
    let mut paths = Paths::new();
    for route in routes {
        if let Some(description) = route.description {
            let path = route.path.strip_prefix(PREFIX).unwrap_or(route.path);
            let operation = description().operation_id(Some(route.name)).tag(ANIMALS).security(security());
            let mut operation = operation.build();
            match route.lifecycle {
                Lifecycle::Supported => {}
                Lifecycle::Deprecated => deprecate(&mut operation),
            }
            paths.add_path_operation(path, vec![route.method.clone()], operation);
        }
    }
    paths
}

/// Says that an operation will be removed, and that each of its responses says so.
fn deprecate(operation: &mut Operation) {
    operation.deprecated = Some(Deprecated::True);
    let sunset = Extensions::from_iter([("x-deprecated-sunset", deprecation::SUNSET_DATE)]);
    operation.extensions = Some(sunset);
    for response in operation.responses.responses.values_mut() {
        if let RefOr::T(response) = response {
            response.headers.extend(headers::DEPRECATED.map(headers::Named::reference));
        }
    }
}

/// Everything in the document but servers and paths.
fn frame() -> OpenApi {
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
