//! Requests that are rejected, and why.

/// Bodies of a create, and how the message about each of them begins.
pub(crate) const BODIES: &[(&[u8], &str)] = &[
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

/// Query strings of a list, and the message about each of them.
pub(crate) const QUERIES: &[(&str, &str)] = &[
    ("limit=0", LIMIT),
    ("limit=101", LIMIT),
    ("limit=", LIMIT),
    ("limit", LIMIT),
    ("limit=+5", LIMIT),
    ("limit=%205", LIMIT),
    ("limit=05", LIMIT),
    ("limit=1e1", LIMIT),
    ("limit=99999999999999999999", LIMIT),
    ("limit=5&limit=5", "limit must be given only once"),
    ("status=SOLD", STATUS),
    ("status=sold,pending", STATUS),
    ("status=%ff", STATUS),
    ("status=sold&status=sold", "status must be given only once"),
    ("after=-1", AFTER),
    ("after=00", AFTER),
    ("after=9223372036854775808", AFTER),
    ("after=1&x&after=1", "after must be given only once"),
];

/// Values of `Idempotency-Key`. One with more than 255 characters is rejected, too.
pub(crate) const IDEMPOTENCY_KEYS: &[&str] =
    &["", "\"\"", "\"", "\"a", "\"a\"b", "\"a b\"", "a b", "\"a\\b\"", "ä"];

const NO_BODY: &str = "a body is required: send a JSON object";
const NO_OBJECT: &str = "the body must be a JSON object";
const NO_JSON: &str = "the body must be valid JSON: ";
const NO_TEXT: &str = "the body must be UTF-8";
const NO_INTEGER: &str = "categoryId must be an integer between -9223372036854775808 and 9223372036854775807";
const STATUS: &str = "status must be one of available, pending, sold";
const LIMIT: &str = "limit must be an integer between 1 and 100";
const AFTER: &str = "after must be an integer between 0 and 9223372036854775807";
