//! The body of a create request: JSON in, a valid pet out, or one message that names every error.

use std::fmt;

use domain::{CategoryId, NewPet, PetName, PetStatus, UnknownPetStatus};
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};
use serde_json::{error::Category, value::RawValue};

use super::number;

/// How deep values may be nested, also in fields nobody reads.
const NESTING_MAX: usize = 64;

/// Reads a pet. The error is fit for the client.
pub(super) fn parse(body: &[u8]) -> Result<NewPet, String> {
    let text = std::str::from_utf8(body).map_err(|_| "the body must be UTF-8")?;
    if text.trim().is_empty() {
        return Err("a body is required: send a JSON object".into());
    }
    if nesting(text) > NESTING_MAX {
        return Err(format!("the body must be nested at most {NESTING_MAX} levels deep"));
    }
    let fields: Fields = serde_json::from_str(text).map_err(|error| malformed(&error))?;
    let name = name(&fields.name).map_err(|rule| format!("name {rule}"));
    let category_id = category_id(&fields.category_id).map_err(|rule| format!("categoryId {rule}"));
    let status = status(&fields.status).map_err(|rule| format!("status {rule}"));
    match (name, category_id, status) {
        (Ok(name), Ok(category_id), Ok(status)) => Ok(NewPet { name, category_id, status }),
        (name, category_id, status) => {
            let faults = [name.err(), category_id.err(), status.err()];
            Err(faults.into_iter().flatten().collect::<Vec<_>>().join("; "))
        }
    }
}

/// What a body says about each field we know, unread.
#[derive(Default)]
struct Fields<'a> {
    name: Field<'a>,
    category_id: Field<'a>,
    status: Field<'a>,
}

#[derive(Default)]
enum Field<'a> {
    #[default]
    Absent,
    Given(&'a RawValue),
    Repeated,
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "camelCase")]
enum Key {
    Name,
    CategoryId,
    Status,
    #[serde(other)]
    Unknown,
}

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(FieldsVisitor)
    }
}

/// Accepts an object and nothing else: a derived struct would take an array too, and stop at the first fault.
struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Fields<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut object: M) -> Result<Fields<'de>, M::Error> {
        let mut fields = Fields::default();
        while let Some(key) = object.next_key()? {
            match key {
                Key::Name => fields.name.give(object.next_value()?),
                Key::CategoryId => fields.category_id.give(object.next_value()?),
                Key::Status => fields.status.give(object.next_value()?),
                Key::Unknown => {
                    object.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(fields)
    }
}

impl<'a> Field<'a> {
    fn give(&mut self, value: &'a RawValue) {
        *self = match self {
            Self::Absent => Self::Given(value),
            Self::Given(_) | Self::Repeated => Self::Repeated,
        };
    }

    /// The JSON of an optional field. `null` is a value like any other: optional is not nullable.
    fn optional(&self) -> Result<Option<&'a str>, String> {
        match self {
            Self::Absent => Ok(None),
            Self::Given(value) => Ok(Some(value.get())),
            Self::Repeated => Err("must be given only once".into()),
        }
    }

    /// The JSON of a field that must be there.
    fn required(&self) -> Result<&'a str, String> {
        self.optional()?.ok_or_else(|| "is required".into())
    }
}

fn name(field: &Field) -> Result<PetName, String> {
    let json = field.required()?;
    if !json.starts_with('"') {
        return Err("must be a string".into());
    }
    let name: String =
        serde_json::from_str(json).map_err(|_| "must not contain unpaired surrogates".to_owned())?;
    PetName::new(name).map_err(|rule| rule.to_string())
}

fn category_id(field: &Field) -> Result<CategoryId, String> {
    let category = number::int64(field.required()?).map(CategoryId);
    category.ok_or_else(|| format!("must be an integer between {} and {}", i64::MIN, i64::MAX))
}

fn status(field: &Field) -> Result<Option<PetStatus>, String> {
    let Some(json) = field.optional()? else { return Ok(None) };
    let word: Option<String> = serde_json::from_str(json).ok();
    let status = word.unwrap_or_default().parse();
    status.map(Some).map_err(|rule: UnknownPetStatus| rule.to_string())
}

/// How deep brackets go, strings aside. Only meant for JSON; for anything else the parser finds the words.
fn nesting(text: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    let (mut in_string, mut escaped) = (false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

fn malformed(error: &serde_json::Error) -> String {
    match error.classify() {
        Category::Data => "the body must be a JSON object".into(),
        Category::Syntax | Category::Eof | Category::Io => {
            format!("the body must be valid JSON: see line {}, column {}", error.line(), error.column())
        }
    }
}

#[cfg(test)]
mod tests;
