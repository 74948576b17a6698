//! The interface as an OpenAPI 3.1 document: `docs/openapi.json`, which is kept by hand. What the program decides is
//! written over it: servers, routes, names, deprecation and limits. A test compares the result with the file, so the
//! two cannot disagree.

use application::Limit;
use domain::{PetId, PetName, PetStatus};
use serde_json::{Value, json};

use super::{
    route::{Lifecycle, Route},
    site::Site,
};

const FILE: &str = include_str!("../../../docs/openapi.json");

/// Where the interface stands on this service. It is part of the servers' addresses, not of the paths.
const PREFIX: &str = "/v1";

/// The document as text: the same bytes for the same routes.
pub(super) fn document(routes: &[Route], site: &Site) -> String {
    let mut document: Value = serde_json::from_str(FILE).expect("the file is JSON");
    document["info"]["description"] = include_str!("openapi/description.md").into();
    document["servers"] = servers(site);
    if let Some(contact) = &site.contact {
        document["info"]["contact"] = match contact.as_str().strip_prefix("mailto:") {
            Some(address) => json!({ "email": address }),
            None => json!({ "url": contact.as_str() }),
        };
    }
    for (pointer, limit) in limits() {
        *document.pointer_mut(pointer).expect("the file describes what has a limit") = limit;
    }
    document["paths"] = paths(&document["paths"], routes);
    format!("{document:#}\n")
}

/// The routes as described in the file, with paths relative to the servers. A route that the file does not describe
/// has nothing but its name.
fn paths(described: &Value, routes: &[Route]) -> Value {
    let mut paths = json!({});
    for route in routes {
        let path = route.path.strip_prefix(PREFIX).unwrap_or(route.path);
        let method = route.method.as_str().to_ascii_lowercase();
        let operation = &mut paths[path][&method];
        *operation = described[path][&method].clone();
        operation["operationId"] = route.name.into();
        operation["deprecated"] = (route.lifecycle == Lifecycle::Deprecated).into();
    }
    paths
}

/// Where the document names a limit, and the limit that is enforced.
fn limits() -> [(&'static str, Value); 7] {
    [
        ("/paths/~1pets/get/parameters/0/schema/minimum", Limit::MIN.into()),
        ("/paths/~1pets/get/parameters/0/schema/maximum", Limit::MAX.into()),
        ("/paths/~1pets/get/parameters/0/schema/default", Limit::DEFAULT.get().into()),
        ("/paths/~1pets/get/responses/200/content/application~1json/schema/maxItems", Limit::MAX.into()),
        ("/components/schemas/NewPet/properties/name/maxLength", PetName::MAX_CHARS.into()),
        ("/components/schemas/Pet/allOf/1/properties/id/minimum", PetId::FIRST.get().into()),
        ("/components/schemas/PetStatus/enum", PetStatus::ALL.map(PetStatus::as_str).as_slice().into()),
    ]
}

fn servers(site: &Site) -> Value {
    let named = [(&site.base_url, "Production"), (&site.staging_url, "Staging")];
    let named = named.iter().filter_map(|(url, name)| Some((url.as_ref()?.as_str(), *name)));
    let servers = [(PREFIX, "This service")].into_iter().chain(named);
    servers.map(|(url, description)| json!({ "url": url, "description": description })).collect()
}

#[cfg(test)]
mod tests {
    use application::{RefusedKey, Scope};
    use axum::http::HeaderMap;
    use regex::Regex;

    use super::*;
    use crate::http::{
        call::{LOG_POSITION, requested_position},
        deprecation,
        error::Problem,
        new_pet, paging, pets,
        prefer::Handling,
    };

    fn file() -> Value {
        serde_json::from_str(FILE).unwrap()
    }

    /// Every problem by the name of its example, as the program itself reports it.
    fn problems(scope: Scope) -> [(&'static str, Problem); 18] {
        let position = HeaderMap::from_iter([(LOG_POSITION, "x".parse().unwrap())]);
        [
            ("bad_limit", Problem::invalid(paging::parse(Some("limit=0")).unwrap_err())),
            ("bad_position", requested_position(&position).unwrap_err()),
            ("missing_fields", Problem::invalid(new_pet::parse(b"{}", Handling::Lenient).unwrap_err())),
            ("missing_key", Problem::MissingKey),
            ("invalid_key", Problem::InvalidKey),
            ("missing_scope", Problem::Forbidden(scope)),
            ("no_such_pet", Problem::NO_SUCH_PET),
            ("too_slow", Problem::RequestTimeout),
            ("key_reused", Problem::IdempotencyKeyReused),
            ("too_large", Problem::PayloadTooLarge),
            ("not_json", Problem::UnsupportedMediaType("Content-Type must be application/json in UTF-8")),
            ("internal", Problem::Internal),
            ("reserved", pets::NO_ORDERS),
            ("rate_limited", Problem::RateLimited(1)),
            ("wrong_keys", Problem::TooManyWrongKeys(1, RefusedKey::Unknown)),
            ("busy", Problem::Busy("too many requests are waiting")),
            ("unavailable", Problem::Unavailable("a write to storage failed".into())),
            ("not_caught_up", Problem::NotCaughtUp),
        ]
    }

    #[test]
    fn every_error_has_the_examples_that_the_program_would_send() {
        let file = file();
        let operations =
            file["paths"].as_object().unwrap().values().flat_map(|path| path.as_object().unwrap());
        for (method, operation) in operations {
            let problems = problems(if method == "get" { Scope::Read } else { Scope::Write });
            let responses = operation["responses"].as_object().unwrap();
            for (status, response) in responses.iter().filter(|(status, _)| status.as_str() >= "400") {
                let examples = response["content"]["application/json"]["examples"].as_object().unwrap();
                assert!(!examples.is_empty(), "{} {status}", operation["operationId"]);
                for (name, example) in examples {
                    let (_, problem) = problems.iter().find(|(known, _)| known == name).expect(name);
                    let sent: Value = serde_json::from_slice(&problem.body()).unwrap();
                    assert_eq!(example["value"], sent, "{}", operation["operationId"]);
                    assert_eq!(problem.status().as_str(), status, "{name}");
                }
            }
        }
    }

    #[test]
    fn the_headers_of_a_deprecated_operation_are_those_it_sends() {
        let file = file();
        let mut sent = HeaderMap::new();
        deprecation::announce(&mut sent);
        for (header, name) in [("Deprecation", "deprecation"), ("Sunset", "sunset"), ("Successor", "link")] {
            assert_eq!(file["components"]["headers"][header]["example"], sent[name].to_str().unwrap());
        }
        let until = chrono::DateTime::parse_from_rfc2822(sent["sunset"].to_str().unwrap()).unwrap();
        let date = &file["paths"]["/pets/{petId}"]["get"]["x-deprecated-sunset"];
        assert_eq!(date, &until.format("%Y-%m-%d").to_string());
    }

    #[test]
    fn the_pattern_of_a_name_says_what_the_name_itself_says() {
        let file = file();
        let pattern = &file["components"]["schemas"]["NewPet"]["properties"]["name"]["pattern"];
        let pattern = Regex::new(pattern.as_str().unwrap()).unwrap();
        for character in char::MIN..=char::MAX {
            for name in [format!("{character}"), format!("a{character}"), format!("{character} ")] {
                assert_eq!(pattern.is_match(&name), PetName::new(&*name).is_ok(), "{name:?}");
            }
        }
        assert!(!pattern.is_match(""));
    }
}
