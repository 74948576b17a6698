//! The operations, one function each. Sentences from the interface specification are quoted as they are, and those
//! say *animal*; everything else says *pet*.

use application::{Limit, Scope};
use axum::http::StatusCode;
use serde_json::{Value, json};
use utoipa::openapi::{
    Content, Required,
    content::ContentBuilder,
    path::{OperationBuilder, Parameter, ParameterBuilder, ParameterIn},
    request_body::RequestBodyBuilder,
};

use super::{
    answers::Answers,
    headers::{ETAG, LOCATION, NEXT_PAGE, REPLAYED},
    schemas::{int64, named, page, rex, text},
};
use crate::http::{error::Problem, idempotency};

/// `GET /pets`.
pub(in crate::http) fn list_pets() -> OperationBuilder {
    let description = "Returns at most `limit` pets, sorted by ascending id. The `Link` header holds the URL of the next \
        page, with the same filter and limit; the last page has none.";
    operation("List all animals", description)
        .parameters(Some([limit(), status(), after(), if_none_match()]))
        .responses(
            Answers::default()
                .success(
                    StatusCode::OK,
                    "A paginated list of animals.",
                    &[ETAG, NEXT_PAGE],
                    page(),
                    json!([rex()]),
                )
                .not_modified(&[ETAG, NEXT_PAGE])
                .refused([("bad_limit", Problem::invalid("limit must be between 1 and 100"))])
                .refused(everywhere(Scope::Read)),
        )
}

/// `POST /pets`.
pub(in crate::http) fn create_pet() -> OperationBuilder {
    let description = "The pet is stored durably before the response is sent. A request with an `Idempotency-Key` can be \
        repeated until a response arrives, and adds one pet.";
    let body = RequestBodyBuilder::new()
        .description(Some("The pet to add."))
        .required(Some(Required::True))
        .content("application/json", new_pet());
    operation("Add an animal", description)
        .parameter(idempotency_key())
        .request_body(Some(body.build()))
        .responses(
            Answers::default()
                .success(
                    StatusCode::CREATED,
                    "Animal added; the body includes the assigned `id`.",
                    &[LOCATION, REPLAYED],
                    named("Pet"),
                    rex(),
                )
                .refused([
                    ("missing_fields", Problem::invalid("name is required; categoryId is required")),
                    ("too_slow", Problem::RequestTimeout),
                    ("key_reused", Problem::IdempotencyKeyReused),
                    ("too_large", Problem::PayloadTooLarge),
                    (
                        "not_json",
                        Problem::UnsupportedMediaType("Content-Type must be application/json in UTF-8"),
                    ),
                ])
                .refused(everywhere(Scope::Write)),
        )
}

/// `GET /pets/{petId}`.
pub(in crate::http) fn get_pet() -> OperationBuilder {
    let description = "**Deprecated**: will be removed on 5 December 2030. Use `GET /pets` with the `status` filter \
        instead. Every response has `Deprecation`, `Sunset` and `Link` headers that say so.";
    operation("Get an animal", description).parameters(Some([pet_id(), if_none_match()])).responses(
        Answers::default()
            .success(StatusCode::OK, "The requested animal.", &[ETAG], named("Pet"), rex())
            .not_modified(&[ETAG])
            .refused([
                ("bad_position", Problem::invalid("Log-Position must be a single integer of at least 0")),
                ("no_such_pet", Problem::NotFound("no pet has this id")),
            ])
            .refused(everywhere(Scope::Read)),
    )
}

/// `GET /store/orders`.
pub(in crate::http) fn list_orders() -> OperationBuilder {
    let description = "Reserved: not specified yet. Returns 501.";
    let marks: [(_, Value); 2] = [("x-stability", "experimental".into()), ("x-hideTryItPanel", true.into())];
    operation("List store orders", description).extensions(Some(marks.into_iter().collect())).responses(
        Answers::default()
            .refused([
                ("bad_position", Problem::invalid("Log-Position must be a single integer of at least 0")),
                ("reserved", Problem::NotImplemented("store orders are reserved and not implemented yet")),
            ])
            .refused(everywhere(Scope::Read)),
    )
}

fn operation(summary: &str, description: &str) -> OperationBuilder {
    OperationBuilder::new().summary(Some(summary)).description(Some(description))
}

/// What any request can be refused for.
fn everywhere(scope: Scope) -> [(&'static str, Problem); 7] {
    [
        ("missing_key", Problem::MissingKey),
        ("invalid_key", Problem::InvalidKey),
        ("missing_scope", Problem::Forbidden(scope)),
        ("internal", Problem::Internal),
        ("busy", Problem::Busy("too many requests are waiting")),
        ("unavailable", Problem::Unavailable("a write to storage failed".into())),
        ("not_caught_up", Problem::NotCaughtUp),
    ]
}

fn limit() -> Parameter {
    let bounds = [Limit::MIN, Limit::MAX].map(|bound| i64::try_from(bound).expect("a page is small"));
    let schema = int64(bounds[0], bounds[1]).default(Some(Limit::DEFAULT.get().into()));
    query("limit", "Maximum number of animals returned.").schema(Some(schema)).build()
}

fn status() -> Parameter {
    query("status", "Filters by availability status.").schema(Some(named("PetStatus"))).build()
}

fn after() -> Parameter {
    let description = "Returns pets whose id is greater than this one. The `Link` header of each page sets it for the next; \
        0 or no value starts at the first pet.";
    query("after", description).schema(Some(int64(0, i64::MAX))).build()
}

fn pet_id() -> Parameter {
    ParameterBuilder::new()
        .name("petId")
        .parameter_in(ParameterIn::Path)
        .required(Required::True)
        .description(Some("The identifier of the animal to retrieve."))
        .schema(Some(int64(i64::MIN, i64::MAX)))
        .example(Some(json!(41)))
        .build()
}

fn if_none_match() -> Parameter {
    let description = "The `ETag` of the copy that the client already has. If it is still current, the response is 304 \
        without a body.";
    header("If-None-Match", description).schema(Some(text())).build()
}

fn idempotency_key() -> Parameter {
    let description = "Makes the request safe to repeat. The client chooses the key, for example a UUID: 1 to 255 visible \
        ASCII characters, with or without quotes. For 24 hours, the same key with the same pet returns the first \
        response again, with `Idempotency-Replayed: true`; with a different pet it returns 409. Each API key has \
        its own set of idempotency keys.";
    header("Idempotency-Key", description)
        .schema(Some(text().pattern(Some(idempotency::PATTERN))))
        .example(Some(json!("8e03978e-40d5-43e8-bc93-6894a57f9324")))
        .build()
}

fn query(name: &str, description: &str) -> ParameterBuilder {
    optional(ParameterIn::Query, name, description)
}

fn header(name: &str, description: &str) -> ParameterBuilder {
    optional(ParameterIn::Header, name, description)
}

fn optional(place: ParameterIn, name: &str, description: &str) -> ParameterBuilder {
    ParameterBuilder::new()
        .name(name)
        .parameter_in(place)
        .required(Required::False)
        .description(Some(description))
}

fn new_pet() -> Content {
    let example = json!({ "name": "Rex", "categoryId": 7, "status": "available" });
    ContentBuilder::new().schema(Some(named("NewPet"))).example(Some(example)).build()
}
