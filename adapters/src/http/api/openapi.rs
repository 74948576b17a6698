//! The API as an OpenAPI 3.1 document: `docs/openapi.json`, which is maintained by hand, with the introduction, the
//! version, the servers and the contact filled in. Tests compare its operations, limits and errors with the code.

use serde_json::{Value, json};

use crate::http::settings::HttpSettings;

/// The version of the API.
pub const API_VERSION: &str = "1.0.0";

const FILE: &str = include_str!("../../../../docs/openapi.json");

/// The document as text: the same bytes for the same settings.
pub fn document(settings: &HttpSettings) -> String {
    let mut document: Value = serde_json::from_str(FILE).expect("the file is JSON");
    document["info"]["description"] = include_str!("openapi/description.md").into();
    document["info"]["version"] = API_VERSION.into();
    document["servers"] = servers(settings);
    if let Some(contact) = &settings.contact {
        document["info"]["contact"] = match contact.0.strip_prefix("mailto:") {
            Some(address) => json!({ "email": address }),
            None => json!({ "url": contact.0 }),
        };
    }
    format!("{document:#}\n")
}

fn servers(settings: &HttpSettings) -> Value {
    let named = [(&settings.base_url, "Production"), (&settings.staging_url, "Staging")];
    let named = named.iter().filter_map(|(url, name)| Some((&*url.as_ref()?.0, *name)));
    let servers = [("/v1", "This service")].into_iter().chain(named);
    servers.map(|(url, description)| json!({ "url": url, "description": description })).collect()
}

#[cfg(test)]
mod tests {
    use crate::access::{RejectedKey, Scope};
    use application::{Limit, ports::Fault};
    use axum::http::HeaderMap;
    use domain::{PetId, PetName, PetStatus};
    use regex::Regex;

    use super::super::{
        list_query,
        log_position::{LOG_POSITION, requested},
        new_pet,
        pets::DEPRECATED,
    };
    use super::*;
    use crate::http::error::ApiError;

    fn file() -> Value {
        serde_json::from_str(FILE).unwrap()
    }

    /// Every error that has an example in the file.
    fn errors() -> [ApiError; 20] {
        let position = HeaderMap::from_iter([(LOG_POSITION, "x".parse().unwrap())]);
        [
            ApiError::invalid(list_query::parse("limit=0").unwrap_err()),
            requested(&position).unwrap_err(),
            ApiError::invalid(new_pet::parse(b"{}").unwrap_err()),
            ApiError::MissingKey,
            ApiError::MalformedKey,
            ApiError::Forbidden(Scope::Read),
            ApiError::Forbidden(Scope::Write),
            ApiError::NO_SUCH_PET,
            ApiError::RequestTimeout,
            ApiError::PreconditionFailed,
            ApiError::PayloadTooLarge,
            ApiError::UnsupportedMediaType(
                "Content-Type must be application/json, with charset=utf-8 if a charset is given",
            ),
            ApiError::IdempotencyKeyReused,
            ApiError::Internal,
            ApiError::NotImplemented,
            ApiError::RateLimited(1),
            ApiError::TooManyFailedKeys(1, RejectedKey::Unknown),
            ApiError::Busy("too many requests are waiting"),
            Fault::WriteFailed.into(),
            ApiError::NotCaughtUp,
        ]
    }

    /// The examples of every error response, each with the status of the response.
    fn error_examples(file: &Value) -> Vec<(String, Value)> {
        let operations =
            file["paths"].as_object().unwrap().values().flat_map(|path| path.as_object().unwrap());
        let responses = operations.flat_map(|(_, operation)| operation["responses"].as_object().unwrap());
        let errors = responses.filter(|(status, _)| status.as_str() >= "400");
        let examples = errors.flat_map(|(status, response)| {
            let shared = response["$ref"].as_str().and_then(|path| file.pointer(path.strip_prefix('#')?));
            let content = &shared.unwrap_or(response)["content"]["application/json"];
            let named = content["examples"].as_object().into_iter().flatten();
            let examples: Vec<_> = content
                .get("example")
                .into_iter()
                .chain(named.map(|(_, example)| &example["value"]))
                .collect();
            assert!(!examples.is_empty(), "{status} {response}");
            examples.into_iter().map(|example| (status.clone(), example.clone()))
        });
        examples.collect()
    }

    #[test]
    fn every_error_has_the_examples_that_the_service_sends() {
        let examples = error_examples(&file());
        let sent = errors().map(|error| {
            let body: Value = serde_json::from_slice(&error.body()).unwrap();
            (error.status().as_str().to_owned(), body)
        });
        for example in &examples {
            assert!(sent.contains(example), "the service does not send {example:?}");
        }
        for error in &sent {
            assert!(examples.contains(error), "{error:?} has no example");
        }
    }

    #[test]
    fn the_limits_are_those_that_the_service_enforces() {
        let file = file();
        let list = &file["paths"]["/pets"]["get"];
        let mut parameters = list["parameters"].as_array().unwrap().iter();
        let limit = &parameters.find(|parameter| parameter["name"] == "limit").unwrap()["schema"];
        assert_eq!(limit["minimum"], Limit::MIN);
        assert_eq!(limit["maximum"], Limit::MAX);
        assert_eq!(limit["default"], Limit::default().get());
        let page = &list["responses"]["200"]["content"]["application/json"]["schema"];
        assert_eq!(page["maxItems"], Limit::MAX);
        let schemas = &file["components"]["schemas"];
        assert_eq!(schemas["NewPet"]["properties"]["name"]["maxLength"], PetName::MAX_CHARS);
        assert_eq!(schemas["Pet"]["allOf"][1]["properties"]["id"]["minimum"], PetId::FIRST.get());
        assert_eq!(schemas["PetStatus"]["enum"], json!(PetStatus::ALL.map(PetStatus::as_str)));
    }

    #[test]
    fn the_headers_of_a_deprecated_operation_are_those_it_sends() {
        let file = file();
        let sent = HeaderMap::from_iter(DEPRECATED);
        let headers = &file["components"]["headers"];
        let link = &file["paths"]["/pets/{petId}"]["get"]["responses"]["200"]["headers"]["Link"];
        for (header, name) in
            [(&headers["Deprecation"], "deprecation"), (&headers["Sunset"], "sunset"), (link, "link")]
        {
            assert_eq!(header["example"], sent[name].to_str().unwrap());
        }
        let until = chrono::DateTime::parse_from_rfc2822(sent["sunset"].to_str().unwrap()).unwrap();
        let date = &file["paths"]["/pets/{petId}"]["get"]["x-deprecated-sunset"];
        assert_eq!(date, &until.format("%Y-%m-%d").to_string());
    }

    #[test]
    fn the_pattern_accepts_the_same_names_as_the_service() {
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
