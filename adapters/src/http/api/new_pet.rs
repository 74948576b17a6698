//! The request of a create: a valid pet and its `Idempotency-Key`, or one message that names every error.

use std::{fmt, iter};

use application::RequestKey;
use axum::extract::{FromRequest, Request};
use domain::{CategoryId, NewPet, PetName, PetStatus};
use serde::de::{Deserializer as _, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::{idempotency, json_body, number, read_once};
use crate::http::error::ApiError;

/// A pet to add. Media type and size are checked first; then one rejection names every error of the headers and the body.
pub(crate) struct CreateRequest {
    pub(crate) pet: NewPet,
    pub(crate) request_key: Option<RequestKey>,
}

impl<S: Send + Sync> FromRequest<S> for CreateRequest {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let mut errors = Vec::new();
        let request_key = idempotency::request_key(request.headers(), &mut errors);
        let body = json_body::read(request).await?;
        let pet = parse(&body).map_err(|error| errors.push(error));
        match pet {
            Ok(pet) if errors.is_empty() => Ok(Self { pet, request_key }),
            Ok(_) | Err(()) => Err(ApiError::invalid(errors.join("; "))),
        }
    }
}

pub(super) fn parse(body: &[u8]) -> Result<NewPet, String> {
    let (fields, mut errors) = (fields(body)?, Vec::new());
    let given = |name| fields.iter().filter(move |(given, _)| given == name).map(|(_, json)| json.get());
    let require = |name, errors: &mut Vec<_>| {
        if given(name).next().is_none() {
            errors.push(format!("{name} is required"));
        }
    };
    require("name", &mut errors);
    let name = read_once("name", given("name"), &mut errors, name);
    require("categoryId", &mut errors);
    let category_id = read_once("categoryId", given("categoryId"), &mut errors, category_id);
    let status = read_once("status", given("status"), &mut errors, status);
    match (name, category_id) {
        (Some(name), Some(category_id)) if errors.is_empty() => Ok(NewPet { name, category_id, status }),
        (Some(_) | None, _) => Err(errors.join("; ")),
    }
}

/// The fields of a body, not parsed yet. `serde_json` skips a raw value without recursion, so nesting has no limit.
fn fields(body: &[u8]) -> Result<Vec<(String, &RawValue)>, String> {
    let text = std::str::from_utf8(body).map_err(|_| "the body must be UTF-8")?;
    if text.trim().is_empty() {
        return Err("a body is required: send a JSON object".into());
    }
    let mut json = serde_json::Deserializer::from_str(text);
    let fields = json.deserialize_map(Object).and_then(|fields| json.end().map(|()| fields));
    fields.map_err(|error| malformed(&error, text))
}

/// Accepts an object and nothing else: a derived `Deserialize` would accept an array too, and stop at the first error.
struct Object;

impl<'de> Visitor<'de> for Object {
    type Value = Vec<(String, &'de RawValue)>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut object: M) -> Result<Self::Value, M::Error> {
        iter::from_fn(|| object.next_entry().transpose()).collect()
    }
}

fn name(json: &str) -> Result<PetName, String> {
    if !json.starts_with('"') {
        return Err("must be a string".into());
    }
    let name: String =
        serde_json::from_str(json).map_err(|_| "must not contain unpaired surrogates".to_owned())?;
    PetName::new(name).map_err(str::to_owned)
}

fn category_id(json: &str) -> Result<CategoryId, String> {
    let category = number::int64(json).map(CategoryId);
    category.ok_or_else(|| format!("must be an integer between {} and {}", i64::MIN, i64::MAX))
}

/// `null` is a value like any other: optional is not nullable.
fn status(json: &str) -> Result<PetStatus, String> {
    let word: Option<String> = serde_json::from_str(json).ok();
    word.unwrap_or_default().parse().map_err(str::to_owned)
}

fn malformed(error: &serde_json::Error, text: &str) -> String {
    if error.is_data() {
        return "the body must be a JSON object".into();
    }
    let (line, column) = (error.line(), error.column());
    let reason = error.to_string();
    // The parser appends the place, which our message puts last.
    let reason = reason.split(" at line ").next().unwrap_or_default();
    let rest =
        text.split('\n').nth(line.saturating_sub(1)).and_then(|line| line.get(column.checked_sub(1)?..));
    let found = rest.and_then(|rest| rest.chars().next()).filter(|_| error.is_syntax());
    let found = found.map(|found| format!(", found {found:?}")).unwrap_or_default();
    format!("the body must be valid JSON: {reason}{found} at line {line}, column {column}")
}

#[cfg(test)]
mod tests;
