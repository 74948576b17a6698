//! The operations table: a row for each method of each path. It feeds the metrics, `Deprecation`, `Allow` and CORS; a
//! test compares it with the routers and with the OpenAPI document.

use axum::http::Method;

use crate::access::Scope;

/// The prefix of the API, which is part of the servers' addresses in the OpenAPI document.
pub(super) const PREFIX: &str = "/v1";

/// One method of one path.
#[derive(Debug)]
pub(super) struct Operation {
    /// `GET` implies `HEAD`.
    pub(super) method: Method,
    pub(super) path: &'static str,
    /// The name in the metrics, and in the OpenAPI document.
    pub(super) name: &'static str,
    pub(super) deprecated: bool,
}

/// The name of probes and metrics, which respond even when there is no memory for other requests.
const PROBE: &str = "observe";

pub(super) static OPERATIONS: &[Operation] = &[
    Operation { method: Method::GET, path: "/v1/pets", name: "listPets", deprecated: false },
    Operation { method: Method::POST, path: "/v1/pets", name: "createPet", deprecated: false },
    Operation { method: Method::GET, path: "/v1/pets/{petId}", name: "getPet", deprecated: true },
    Operation { method: Method::GET, path: "/v1/store/orders", name: "listOrders", deprecated: false },
    get("/livez", PROBE),
    get("/readyz", PROBE),
    get("/readyz/reads", PROBE),
    get("/readyz/writes", PROBE),
    get("/metrics", PROBE),
    get("/log", "log"),
    get("/", "describe"),
    get("/openapi.json", "describe"),
    get("/docs", "describe"),
    get("/docs/", "describe"),
    get("/docs/page.js", "describe"),
    get("/docs/page.css", "describe"),
    get("/docs/icon.svg", "describe"),
    get("/docs/swagger-ui-5.34.1.js", "describe"),
    get("/docs/swagger-ui-5.34.1.css", "describe"),
    get("/docs/swagger-ui-bundle.js.LICENSE.txt", "describe"),
    get("/inventory/page.css", "describe"),
    get("/inventory/page.js", "describe"),
    get("/admin/page.css", "describe"),
    get("/admin/page.js", "describe"),
    get("/admin/icon.svg", "describe"),
];

/// Stands for every request that has no row: unknown paths, and methods that a path lacks.
static OTHER: Operation = get("", "other");

const fn get(path: &'static str, name: &'static str) -> Operation {
    Operation { method: Method::GET, path, name, deprecated: false }
}

impl Operation {
    /// The row of a request whose path matched the route `path`.
    pub(super) fn of(method: &Method, path: Option<&str>) -> &'static Self {
        let method = if method == Method::HEAD { &Method::GET } else { method };
        let row = path.and_then(|path| at(path).find(|row| row.method == method));
        row.unwrap_or(&OTHER)
    }

    pub(super) fn is_in_api(&self) -> bool {
        self.path.starts_with(PREFIX)
    }

    pub(super) fn is_probe(&self) -> bool {
        self.name == PROBE
    }

    pub(super) fn methods(&self) -> impl Iterator<Item = &Method> {
        let head = (self.method == Method::GET).then_some(&Method::HEAD);
        [&self.method].into_iter().chain(head)
    }
}

/// The scope that a method needs. Methods that no operation has need none: they get 405.
pub(super) fn scope_of(method: &Method) -> Option<Scope> {
    match *method {
        Method::GET | Method::HEAD => Some(Scope::Read),
        Method::POST => Some(Scope::Write),
        _ => None,
    }
}

/// The names in the metrics; some occur more than once.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    OPERATIONS.iter().chain([&OTHER]).map(|row| row.name)
}

/// The rows of one path.
pub(super) fn at(path: &str) -> impl Iterator<Item = &'static Operation> {
    OPERATIONS.iter().filter(move |row| row.path == path)
}

/// Whether a route has a row, or is one of those under `/v1` that match everything else.
pub(super) fn is_known(path: &str) -> bool {
    at(path).next().is_some() || ["/v1", "/v1/", "/v1/{*rest}"].contains(&path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_of_the_api_needs_a_scope() {
        for row in OPERATIONS.iter().filter(|row| row.is_in_api()) {
            assert!(row.methods().all(|method| scope_of(method).is_some()), "{row:?}");
        }
    }
}
