//! The handlers for everything else: unknown paths, methods that a path lacks, and `OPTIONS`. Under `/v1` they
//! authenticate first, so that only clients with a key learn which paths exist.

use axum::{
    extract::MatchedPath,
    http::{HeaderValue, Method, StatusCode, Uri, header::ALLOW},
    response::{IntoResponse as _, Response},
};

use crate::access::Scopes;

use super::{
    error::ApiError,
    middleware::client::Client,
    operations::{self, OPERATIONS, Operation, scope_of},
};

/// The longest path that a message repeats.
const HINT_MAX: usize = 60;

pub(super) async fn api_not_found(_: Client, uri: Uri) -> ApiError {
    not_found(&uri)
}

/// Unknown paths outside `/v1`. `OPTIONS *` asks about the service as a whole.
pub(super) async fn unknown(method: Method, uri: Uri) -> Response {
    if method == Method::OPTIONS && uri.path() == "*" {
        return StatusCode::NO_CONTENT.into_response();
    }
    not_found(&uri).into_response()
}

fn not_found(uri: &Uri) -> ApiError {
    let path = uri.path().trim_end_matches('/');
    let candidates = [path.to_owned(), format!("/v1{path}"), path.replace("/v1/v1", "/v1")];
    let is_public = |path: &str| !["/metrics", "/log"].contains(&path) && !path.starts_with("/admin/");
    let public = || OPERATIONS.iter().filter(|row| is_public(row.path));
    let exists = |path: &&String| public().any(|row| matches_template(path, row.path));
    let meant = candidates.iter().filter(|path| path.len() <= HINT_MAX).find(exists).map(String::as_str);
    let hint = meant.map(|meant| format!("did you mean {meant}? "));
    ApiError::NotFound(format!("no such endpoint; {}see /docs", hint.unwrap_or_default()).into())
}

/// Paths under `/v1` need a key on the admin listener too.
pub(super) async fn admin_api_not_found(_: Client) -> ApiError {
    admin_not_found().await
}

pub(super) async fn admin_not_found() -> ApiError {
    ApiError::NotFound("no such endpoint; see /".into())
}

pub(super) async fn api_method_not_allowed(client: Client, path: MatchedPath, method: Method) -> Response {
    allowed(&path, &method, Some(client.principal.scopes))
}

pub(super) async fn method_not_allowed(path: MatchedPath, method: Method) -> Response {
    allowed(&path, &method, None)
}

/// 204 for `OPTIONS`, otherwise 405. Both name the methods that the client's key may use, so that a user interface can
/// find out what to offer.
fn allowed(path: &MatchedPath, method: &Method, scopes: Option<Scopes>) -> Response {
    let permitted = |method: &&Method| {
        scopes.is_none_or(|scopes| scope_of(method).is_none_or(|scope| scopes.allow(scope)))
    };
    let methods = operations::at(path.as_str()).flat_map(Operation::methods);
    let methods: Vec<_> = methods.filter(permitted).chain([&Method::OPTIONS]).map(Method::as_str).collect();
    let methods = methods.join(", ");
    let allow = [(ALLOW, HeaderValue::try_from(&methods).expect("method names are plain ASCII"))];
    if method == Method::OPTIONS {
        (StatusCode::NO_CONTENT, allow).into_response()
    } else {
        (allow, ApiError::MethodNotAllowed(methods)).into_response()
    }
}

fn matches_template(path: &str, template: &str) -> bool {
    let matches = |(part, name): (&str, &str)| part == name || name.starts_with('{') && !part.is_empty();
    path.split('/').count() == template.split('/').count()
        && path.split('/').zip(template.split('/')).all(matches)
}
