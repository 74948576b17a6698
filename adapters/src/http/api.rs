//! The API under `/v1`: handlers, their extractors, and the encoding of pets.

pub(crate) mod conditional;
mod idempotency;
mod json_body;
mod list_query;
pub(crate) mod log_position;
mod new_pet;
pub(crate) mod number;
pub(crate) mod openapi;
mod pet_json;
pub(crate) mod pets;

/// Parses the value given for a name in a query, a header or a body, if there is one. An error names it and the rule.
fn read_once<T, R>(
    name: &str,
    given: impl IntoIterator<Item = T>,
    errors: &mut Vec<String>,
    parse: impl FnOnce(T) -> Result<R, String>,
) -> Option<R> {
    let mut given = given.into_iter();
    let value = given.next()?;
    let parsed = if given.next().is_none() { parse(value) } else { Err("must be given only once".into()) };
    parsed.map_err(|rule| errors.push(format!("{name} {rule}"))).ok()
}
