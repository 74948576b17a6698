//! A named value in a query string, a header or a body. A repeated name is an error.

/// Parses the value given for a name, if there is one. An error names it and the rule.
pub(super) fn read<T, R>(
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
