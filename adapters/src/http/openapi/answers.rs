//! What operations answer, by status. Refusals are described by the very problems that cause them, so status,
//! code and words are those of `error`.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use serde_json::Value;
use utoipa::openapi::{
    Content, RefOr, Response, Responses, Schema, content::ContentBuilder, example::ExampleBuilder,
};

use super::{
    headers::{self, Named},
    schemas::named,
};
use crate::http::error::Problem;

const JSON: &str = "application/json";

/// The answers of one operation.
#[derive(Default)]
pub(super) struct Answers(BTreeMap<String, RefOr<Response>>);

impl Answers {
    /// A success with a body.
    pub(super) fn success(
        self,
        status: StatusCode,
        description: &str,
        headers: &[Named],
        schema: impl Into<RefOr<Schema>>,
        example: Value,
    ) -> Self {
        let content = ContentBuilder::new().schema(Some(schema)).example(Some(example)).build();
        self.add(status, description, headers, Some(content))
    }

    /// What those get who hold the content already.
    pub(super) fn not_modified(self, headers: &[Named]) -> Self {
        let description = "Nothing has changed: the `If-None-Match` header matches the current `ETag`.";
        self.add(StatusCode::NOT_MODIFIED, description, headers, None)
    }

    /// The refusals, each with a name for its example.
    pub(super) fn refused(self, problems: impl IntoIterator<Item = (&'static str, Problem)>) -> Self {
        let mut by_status = BTreeMap::<StatusCode, Vec<_>>::new();
        for (name, problem) in problems {
            by_status.entry(problem.status()).or_default().push((name, problem));
        }
        by_status.into_iter().fold(self, |answers, (status, problems)| {
            let (description, headers) = refusal(status);
            answers.add(status, description, headers, Some(error(problems)))
        })
    }

    fn add(
        mut self,
        status: StatusCode,
        description: &str,
        headers: &[Named],
        content: Option<Content>,
    ) -> Self {
        let mut answer = Response::new(description);
        let authenticated =
            if status == StatusCode::UNAUTHORIZED { &[][..] } else { &headers::AUTHENTICATED };
        let headers = headers::EVERYWHERE.iter().chain(authenticated).chain(headers);
        answer.headers = headers.map(|header| header.reference()).collect();
        answer.content.extend(content.map(|content| (JSON.to_owned(), content.into())));
        self.0.insert(status.as_str().to_owned(), answer.into());
        self
    }
}

impl From<Answers> for Responses {
    fn from(answers: Answers) -> Self {
        answers.0.into_iter().collect()
    }
}

/// The Error body, with one example for each problem.
fn error(problems: Vec<(&'static str, Problem)>) -> Content {
    let examples = problems.into_iter().map(|(name, problem)| {
        let body: Value = serde_json::from_slice(&problem.body()).expect("the Error body is JSON");
        (name, ExampleBuilder::new().value(Some(body)).build())
    });
    ContentBuilder::new().schema(Some(named("Error"))).examples_from_iter(examples).build()
}

/// What a status means here, whichever operation answers with it, and the headers it always has.
fn refusal(status: StatusCode) -> (&'static str, &'static [Named]) {
    match status {
        StatusCode::BAD_REQUEST => ("The request has missing or invalid values.", &[]),
        StatusCode::UNAUTHORIZED => ("Missing or invalid API key.", &[headers::CHALLENGE]),
        StatusCode::FORBIDDEN => ("The API key lacks the scope that this operation needs.", &[]),
        StatusCode::NOT_FOUND => ("The requested resource could not be found.", &[]),
        StatusCode::REQUEST_TIMEOUT => ("The body took too long to arrive.", &[]),
        StatusCode::CONFLICT => ("The `Idempotency-Key` was already used for a different pet.", &[]),
        StatusCode::PAYLOAD_TOO_LARGE => ("The body is too large.", &[]),
        StatusCode::UNSUPPORTED_MEDIA_TYPE => ("The body is not uncompressed JSON in UTF-8.", &[]),
        StatusCode::INTERNAL_SERVER_ERROR => ("The service failed unexpectedly.", &[]),
        StatusCode::NOT_IMPLEMENTED => ("The operation is reserved and not implemented yet.", &[]),
        StatusCode::SERVICE_UNAVAILABLE => (
            "The service cannot handle the request right now. Retry after the time in `Retry-After`.",
            &[headers::RETRY_AFTER],
        ),
        status => unreachable!("no operation refuses with {status}"),
    }
}
