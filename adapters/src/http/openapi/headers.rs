//! The headers of answers, each described once.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use utoipa::openapi::{Header, ObjectBuilder, Ref, RefOr};

use super::schemas::{int64, text};

/// A header of some answer: its name on the wire, and its name in the document.
#[derive(Debug, Clone, Copy)]
pub(super) struct Named {
    wire: &'static str,
    document: &'static str,
}

const REQUEST_ID: Named = Named::new("X-Request-Id", "RequestId");
const LOG_POSITION: Named = Named::new("Log-Position", "LogPosition");
const CACHE_CONTROL: Named = Named::new("Cache-Control", "CacheControl");
pub(super) const ETAG: Named = Named::new("ETag", "EntityTag");
pub(super) const NEXT_PAGE: Named = Named::new("Link", "NextPage");
pub(super) const LOCATION: Named = Named::new("Location", "Location");
pub(super) const REPLAYED: Named = Named::new("Idempotency-Replayed", "IdempotencyReplayed");
pub(super) const RETRY_AFTER: Named = Named::new("Retry-After", "RetryAfter");
pub(super) const CHALLENGE: Named = Named::new("WWW-Authenticate", "Challenge");
const DEPRECATION: Named = Named::new("Deprecation", "Deprecation");
const SUNSET: Named = Named::new("Sunset", "Sunset");
const SUCCESSOR: Named = Named::new("Link", "Successor");

/// What every response carries.
pub(super) const EVERYWHERE: [Named; 2] = [REQUEST_ID, CACHE_CONTROL];
/// What every response to a caller with a valid key carries, too.
pub(super) const AUTHENTICATED: [Named; 1] = [LOG_POSITION];
/// What every response of a deprecated operation carries too.
pub(super) const DEPRECATED: [Named; 3] = [DEPRECATION, SUNSET, SUCCESSOR];

impl Named {
    const fn new(wire: &'static str, document: &'static str) -> Self {
        Self { wire, document }
    }

    /// The header by its name on the wire, as a reference to its description.
    pub(super) fn reference(self) -> (String, RefOr<Header>) {
        let description = Ref::new(format!("#/components/headers/{}", self.document));
        (self.wire.to_owned(), RefOr::Ref(description))
    }
}

/// The headers by their names in the document.
pub(super) fn all() -> BTreeMap<String, RefOr<Header>> {
    let headers = [
        (
            REQUEST_ID,
            text(),
            "Identifies the request, here and in the service's log. If the request has a valid `X-Request-Id` \
            (1 to 64 letters, digits, `.`, `_` and `-`), the service uses that one.",
            json!("6d1f0c2ab9e84f35-2a"),
        ),
        (
            LOG_POSITION,
            int64(0, i64::MAX),
            "The position of the last change that this response reflects. A request that sends it back is \
            answered once the node has caught up with that change.",
            json!(128),
        ),
        (CACHE_CONTROL, text(), "Whether and how the response may be cached.", json!("private, no-cache")),
        (
            ETAG,
            text(),
            "The version of this content. Send it back as `If-None-Match` to get 304 until the content changes.",
            json!("\"1-128-0199f3a0d6f17c3c8a52b1c9d7e4f601\""),
        ),
        (
            NEXT_PAGE,
            text(),
            "The URL of the next page; absent on the last page.",
            json!("</v1/pets?limit=20&after=41>; rel=\"next\""),
        ),
        (LOCATION, text(), "The URL of the new pet.", json!("/v1/pets/41")),
        (
            REPLAYED,
            text().enum_values(Some(["true"])),
            "Present if this response repeats an earlier one with the same `Idempotency-Key`: no pet was added \
            this time.",
            json!("true"),
        ),
        (RETRY_AFTER, int64(0, i64::MAX), "How many seconds to wait before retrying.", json!(1)),
        (CHALLENGE, text(), "How to authenticate.", json!("Bearer realm=\"petstore\"")),
        (DEPRECATION, text(), "When the operation was deprecated (RFC 9745).", json!("@1764892800")),
        (
            SUNSET,
            text(),
            "When the operation will be removed (RFC 8594).",
            json!("Thu, 05 Dec 2030 00:00:00 GMT"),
        ),
        (SUCCESSOR, text(), "The operation to use instead.", json!("</v1/pets>; rel=\"successor-version\"")),
    ];
    headers
        .map(|(named, schema, description, example)| {
            (named.document.into(), header(schema, description, example))
        })
        .into()
}

fn header(schema: ObjectBuilder, description: &str, example: Value) -> RefOr<Header> {
    let mut header = Header::new(schema);
    header.description = Some(description.into());
    header.example = Some(example);
    RefOr::T(header)
}
