//! The `Idempotency-Key` header: bare, or quoted as the draft standard requires.

use std::borrow::Cow;

use application::RequestKey;
use axum::http::{HeaderMap, HeaderName, HeaderValue};

use super::read_once;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Marks a repeated response.
pub(crate) const REPLAYED: (HeaderName, HeaderValue) =
    (HeaderName::from_static("idempotency-replayed"), HeaderValue::from_static("true"));

pub(crate) fn request_key(headers: &HeaderMap, errors: &mut Vec<String>) -> Option<RequestKey> {
    read_once("Idempotency-Key", headers.get_all(IDEMPOTENCY_KEY), errors, |value| {
        let key = value.to_str().ok().and_then(unquoted).unwrap_or_default();
        RequestKey::new(&*key).map_err(|rule| format!("{rule}, in matching quotes or none"))
    })
}

/// The text between the quotes, or all of it without quotes; `None` if the quotes do not match.
fn unquoted(text: &str) -> Option<Cow<'_, str>> {
    let Some(quoted) = text.strip_prefix('"') else { return Some(text.into()) };
    let mut key = String::with_capacity(quoted.len());
    let mut characters = quoted.chars();
    loop {
        match characters.next()? {
            '"' => break,
            '\\' => key.push(characters.next().filter(|escaped| matches!(escaped, '"' | '\\'))?),
            character => key.push(character),
        }
    }
    characters.next().is_none().then_some(key.into())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::http::{HttpSettings, document};

    fn read(values: &[&str]) -> Result<Option<String>, String> {
        let headers =
            values.iter().map(|value| (IDEMPOTENCY_KEY, HeaderValue::try_from(*value).unwrap())).collect();
        let mut errors = Vec::new();
        let key = request_key(&headers, &mut errors).map(|key| key.as_str().to_owned());
        errors.pop().map_or(Ok(key), Err)
    }

    #[test]
    fn a_key_is_the_same_bare_and_quoted() {
        let longest = "k".repeat(255);
        for (value, key) in [
            ("8e03978e-40d5", "8e03978e-40d5"),
            ("\"8e03978e-40d5\"", "8e03978e-40d5"),
            (r#""a\"b\\c""#, r#"a"b\c"#),
            (r#"a"b"#, r#"a"b"#),
            (longest.as_str(), longest.as_str()),
        ] {
            assert_eq!(read(&[value]), Ok(Some(key.into())), "{value}");
        }
        assert_eq!(read(&[]), Ok(None));
    }

    #[test]
    fn the_pattern_matches_exactly_the_keys() {
        let document: Value = serde_json::from_str(&document(&HttpSettings::default())).unwrap();
        let parameter = &document["paths"]["/pets"]["post"]["parameters"][0];
        let pattern = regex::Regex::new(parameter["schema"]["pattern"].as_str().unwrap()).unwrap();
        let ascii = (' '..='~').flat_map(|one| (' '..='~').map(move |two| [one, two]));
        let quoted = ascii.clone().map(|[one, two]| format!("\"{one}{two}\""));
        let lengths = [0, 1, 254, 255, 256, 257].map(|length| "k".repeat(length));
        let longest = lengths.iter().map(|key| format!("\"{key}\""));
        let escaped = [255, 256].map(|length| format!("\"{}\"", r#"\""#.repeat(length)));
        for value in ascii
            .clone()
            .map(String::from_iter)
            .chain(quoted)
            .chain(longest)
            .chain(lengths.clone())
            .chain(escaped)
        {
            // Blanks around a value are not part of it.
            if value == value.trim() {
                assert_eq!(pattern.is_match(&value), read(&[&value]).is_ok(), "{value:?}");
            }
        }
    }
}
