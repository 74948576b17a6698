//! Valid and invalid bodies.

use domain::test_values::any_pet;
use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::http::api::pet_json;

fn rejected(body: impl AsRef<[u8]>) -> String {
    let body = body.as_ref();
    parse(body).expect_err(&format!("{:?} should be rejected", String::from_utf8_lossy(body)))
}

#[test]
fn a_pet_is_read_with_and_without_status() {
    let pet = parse(br#" { "name" : "Rex \"\u0041\ud83d\udc08 ", "categoryId" : 7 } "#).unwrap();
    assert_eq!(pet.name.as_str(), "Rex \"A🐈 ");
    assert_eq!((pet.category_id, pet.status), (CategoryId(7), None));
    for status in PetStatus::ALL {
        let body = format!(r#"{{"status":"{}","categoryId":-1.0,"name":"a"}}"#, status.as_str());
        let pet = parse(body.as_bytes()).unwrap();
        assert_eq!((pet.category_id, pet.status), (CategoryId(-1), Some(status)));
    }
}

#[test]
fn one_message_names_every_error() {
    assert_eq!(rejected("{}"), "name is required; categoryId is required");
    let message = rejected(r#"{"name":"","categoryId":1.5,"status":"lost"}"#);
    let (min, max) = (i64::MIN, i64::MAX);
    assert_eq!(
        message,
        format!(
            "name must contain at least one character that is not white space; \
             categoryId must be an integer between {min} and {max}; \
             status must be one of available, pending, sold"
        )
    );
}

#[test]
fn a_syntax_error_says_what_was_found_and_where() {
    for (body, found) in [
        (r#"{"name":"a","categoryId":1,}"#, "trailing comma, found '}' at line 1, column 28"),
        (r#"{"name":"a","categoryId":1}x"#, "trailing characters, found 'x' at line 1, column 28"),
        ("{\n \"name\": Rex }", "expected value, found 'R' at line 2, column 10"),
        (r#"{"name":"a" "categoryId":1}"#, "expected `,` or `}`, found '\"' at line 1, column 13"),
        ("{'name':'a'}", "key must be a string, found '\\'' at line 1, column 2"),
        (r#"{"name":"a","categoryId":1"#, "EOF while parsing an object at line 1, column 26"),
        ("{\"name\":\"Ä\" ö}", "expected `,` or `}`, found 'ö' at line 1, column 14"),
    ] {
        assert_eq!(rejected(body), format!("the body must be valid JSON: {found}"), "{body}");
    }
}

#[test]
fn every_broken_rule_has_its_message() {
    const NO_BODY: &str = "a body is required: send a JSON object";
    const NO_OBJECT: &str = "the body must be a JSON object";
    const NO_JSON: &str = "the body must be valid JSON: ";
    const NO_TEXT: &str = "the body must be UTF-8";
    const NO_INTEGER: &str =
        "categoryId must be an integer between -9223372036854775808 and 9223372036854775807";
    const STATUS: &str = "status must be one of available, pending, sold";
    let cases: &[(&[u8], &str)] = &[
        (b"", NO_BODY),
        (b"\r\n\t", NO_BODY),
        (b"null", NO_OBJECT),
        (b"[]", NO_OBJECT),
        (br#"["a",1,null]"#, NO_OBJECT),
        (br#"[{"name":"a","categoryId":1}]"#, NO_OBJECT),
        (b"{", NO_JSON),
        (br#"{"name":"a","categoryId":1"#, NO_JSON),
        (br#"{"name":"a","categoryId":1}{}"#, NO_JSON),
        (br#"{"name":"a","categoryId":1,}"#, NO_JSON),
        (b"{'name':'a','categoryId':1}", NO_JSON),
        (b"{\"name\":\"a\nb\",\"categoryId\":1}", NO_JSON),
        (b"\xef\xbb\xbf{\"name\":\"a\",\"categoryId\":1}", NO_JSON),
        (br#"{"name":"a","categoryId":01}"#, NO_JSON),
        (br#"{"name":"a","categoryId":NaN}"#, NO_JSON),
        (b"{\"name\":\"\xff\",\"categoryId\":1}", NO_TEXT),
        (b"{\"name\":\"a\",\"categoryId\":1,\"x\":\"\xc3\"}", NO_TEXT),
        (br#"{"categoryId":1}"#, "name is required"),
        (br#"{"name":null,"categoryId":1}"#, "name must be a string"),
        (br#"{"name":"","categoryId":1}"#, "name must contain at least one character"),
        (br#"{"name":" \u00a0 ","categoryId":1}"#, "name must contain at least one character"),
        (br#"{"name":"a\u0000","categoryId":1}"#, "name must not contain control characters"),
        (br#"{"name":"a\u009f","categoryId":1}"#, "name must not contain control characters"),
        (br#"{"name":"\ud800","categoryId":1}"#, "name must not contain unpaired surrogates"),
        (br#"{"name":"a","name":"a","categoryId":1}"#, "name must be given only once"),
        (br#"{"name":"a","\u006eame":"a","categoryId":1}"#, "name must be given only once"),
        (br#"{"name":"a"}"#, "categoryId is required"),
        (br#"{"name":"a","categoryId":null}"#, NO_INTEGER),
        (br#"{"name":"a","categoryId":"1"}"#, NO_INTEGER),
        (br#"{"name":"a","categoryId":1.5}"#, NO_INTEGER),
        (br#"{"name":"a","categoryId":1e999999999999}"#, NO_INTEGER),
        (br#"{"name":"a","categoryId":9223372036854775808}"#, NO_INTEGER),
        (br#"{"name":"a","categoryId":-9223372036854775809}"#, NO_INTEGER),
        (br#"{"name":"a","categoryId":1,"categoryId":1}"#, "categoryId must be given only once"),
        (br#"{"name":"a","categoryId":1,"status":null}"#, STATUS),
        (br#"{"name":"a","categoryId":1,"status":"Sold"}"#, STATUS),
        (br#"{"name":"a","categoryId":1,"status":"sold","status":"sold"}"#, "status must be given only once"),
    ];
    let too_long = format!(r#"{{"name":"{}","categoryId":1}}"#, "x".repeat(201));
    for (body, rule) in cases.iter().chain(&[(too_long.as_bytes(), "name must have at most 200 characters")])
    {
        let message = rejected(body);
        assert!(message.starts_with(rule), "{:?}: {message}", String::from_utf8_lossy(body));
    }
}

#[test]
fn nesting_is_ignored_with_its_field_and_overflows_nothing() {
    let deep = format!("{}1{}", r#"[{"a":"#.repeat(100_000), "}]".repeat(100_000));
    assert!(parse(format!(r#"{{"name":"a","x":{deep},"categoryId":1}}"#).as_bytes()).is_ok());
    for (body, rule) in [
        (deep.clone(), "the body must be a JSON object"),
        (r#"{"x":"#.repeat(100_000), "the body must be valid JSON: EOF"),
        (format!(r#"{{"name":{deep},"categoryId":1}}"#), "name must be a string"),
        (format!(r#"{{"name":"a","categoryId":{deep}}}"#), "categoryId must be an integer"),
        (format!(r#"{{"name":"a","categoryId":1,"status":{deep}}}"#), "status must be one of"),
    ] {
        assert!(rejected(&body).starts_with(rule), "{rule}");
    }
}

/// Bodies made of parts of bodies, so that many of them are valid.
fn body() -> impl Strategy<Value = String> {
    let field = prop::sample::select(vec!["name", "categoryId", "status", "nam\\u0065", "other"]);
    let value = prop_oneof![
        prop::sample::select(vec!["\"sold\"", "\"available\"", "null", "true", "[]", "{}", "1.0", "1e2"])
            .prop_map(str::to_owned),
        "\"\\PC{0,4}\"",
        "\"[a-z \\\\\\\\\"\\u{1}]{0,4}\"",
        "-?[0-9]{1,20}",
    ];
    let pair = (field, value, "[ \\n]{0,2}")
        .prop_map(|(field, value, blank)| format!("{blank}\"{field}\"{blank}:{blank}{value}{blank}"));
    let ends =
        prop::sample::select(vec![("{", "}"), ("{", "}"), (" {", "}\n"), ("", ""), ("{", ",}"), ("[", "]")]);
    (prop::collection::vec(pair, 0..5), ends, "[,x]?")
        .prop_map(|(pairs, (open, close), more)| format!("{open}{}{close}{more}", pairs.join(",")))
}

/// The pet that serde finds in a body, as far as it can tell: of a repeated field it sees only the last value, and it
/// reads whole floats as floats.
fn by_serde(body: &str) -> Option<NewPet> {
    let Value::Object(fields) = serde_json::from_str(body).ok()? else { return None };
    let status = match fields.get("status") {
        Some(status) => Some(status.as_str()?.parse().ok()?),
        None => None,
    };
    let category = &fields.get("categoryId")?;
    let category = category.as_i64().or_else(|| category.to_string().strip_suffix(".0")?.parse().ok())?;
    let name = PetName::new(fields.get("name")?.as_str()?).ok()?;
    Some(NewPet { name, category_id: CategoryId(category), status })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn a_body_is_read_as_serde_reads_it(body in body()) {
        let repeated = |name: &str| body.matches(name).count() > 1;
        match parse(body.as_bytes()) {
            Ok(pet) => prop_assert_eq!(Some(pet), by_serde(&body), "{}", body),
            Err(_) if ["\"nam", "categoryId", "status"].into_iter().any(repeated) => {}
            Err(error) => prop_assert_eq!(None, by_serde(&body), "{}: {}", body, error),
        }
    }
}

proptest! {
    #[test]
    fn a_pet_is_read_from_the_json_of_a_response(pet in any_pet()) {
        prop_assert_eq!(parse(&pet_json::pet(&pet)), Ok(pet.details));
    }

    #[test]
    fn no_bytes_make_it_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse(&body);
    }
}
