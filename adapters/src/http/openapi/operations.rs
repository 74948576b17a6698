//! What can be asked: one function for each operation.

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
    let description = "Animals in ascending order of their ids, `limit` of them at most. The `Link` header leads to \
        the next page, with the same filter and limit; on the last page it is absent.";
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
    let description = "The animal is durable when the answer arrives. With an `Idempotency-Key` the request can be \
        sent again until an answer comes, and adds one animal.";
    let body = RequestBodyBuilder::new()
        .description(Some("The animal to add."))
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
                        Problem::UnsupportedMediaType("the Content-Type must be application/json, in UTF-8"),
                    ),
                ])
                .refused(everywhere(Scope::Write)),
        )
}

/// `GET /pets/{petId}`.
pub(in crate::http) fn get_pet() -> OperationBuilder {
    let description = "**Deprecated**: to be removed on 5 December 2030. Use `GET /pets` with the `status` filter \
        instead. Every answer says so in its `Deprecation`, `Sunset` and `Link` headers.";
    operation("Get an animal", description).parameters(Some([pet_id(), if_none_match()])).responses(
        Answers::default()
            .success(StatusCode::OK, "The requested animal.", &[ETAG], named("Pet"), rex())
            .not_modified(&[ETAG])
            .refused([
                (
                    "bad_position",
                    Problem::invalid("Log-Position must be given once and be an integer of at least 0"),
                ),
                ("no_such_pet", Problem::NotFound("there is no such pet")),
            ])
            .refused(everywhere(Scope::Read)),
    )
}

/// `GET /store/orders`.
pub(in crate::http) fn list_orders() -> OperationBuilder {
    let description = "Nobody has described yet what stands here. The answer is 501.";
    let marks: [(_, Value); 2] = [("x-stability", "experimental".into()), ("x-hideTryItPanel", true.into())];
    operation("List store orders", description).extensions(Some(marks.into_iter().collect())).responses(
        Answers::default()
            .refused([
                (
                    "bad_position",
                    Problem::invalid("Log-Position must be given once and be an integer of at least 0"),
                ),
                ("not_described", Problem::NotImplemented("store orders are not described yet")),
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
        ("unavailable", Problem::Unavailable("the storage failed to write".into())),
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
    let description = "The page starts after the animal with this id. The `Link` header fills it in; 0, or nothing, \
        starts at the beginning.";
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
    let description = "The `ETag` of what the client holds already. If nothing has changed, the answer is 304, \
        without a body.";
    header("If-None-Match", description).schema(Some(text())).build()
}

fn idempotency_key() -> Parameter {
    let description = "Makes the request safe to repeat: 1 to 255 visible ASCII characters, bare or quoted, chosen by \
        the client, a UUID for example. The same key with the same animal gets the first answer again, for 24 \
        hours, with `Idempotency-Replayed: true`; with another animal it is refused (409). Keys of different API \
        keys are independent.";
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
