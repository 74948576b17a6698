//! The objects of a log: their keys, their content, and the requests that create, read and list them.

use std::time::Duration;

use application::{
    log::codec,
    ports::{CommitId, Fault, LogError, Position, Record, StoredRecord},
};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use object_store::{
    Error, ObjectMeta, ObjectStore as _, ObjectStoreExt as _, PutMode, aws::AmazonS3, path::Path,
};
use tokio::time;

use super::{
    address::{Address, Variables},
    client::{NotConnected, Rejection, cause, innermost},
};
use crate::root_certificates;

/// How long a response may take, and then the body of an object.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(3);
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum size of an object that is read, in bytes. A segment of the largest objects is smaller.
const OBJECT_MAX: u64 = 16 * 1024 * 1024;
/// The number of objects that are read at the same time.
const PARALLEL_READS: usize = 64;

/// One prefix of a bucket, and the server that holds it.
#[derive(Debug)]
pub(super) struct Bucket {
    client: AmazonS3,
    pub(super) address: Address,
    /// The endpoint, for messages.
    pub(super) server: String,
}

/// Consecutive records, each on one line.
#[derive(Debug, Clone)]
pub(super) struct Object {
    pub(super) first: Position,
    pub(super) bytes: Bytes,
    pub(super) records: Vec<StoredRecord>,
}

/// An object that was not created.
#[derive(Debug)]
pub(super) enum NotCreated {
    /// There is an object with this key, or another request is creating it.
    Exists,
    /// Certainly not stored.
    Rejected(LogError),
    /// May be stored, or stored later.
    Unclear(LogError),
}

impl From<NotCreated> for LogError {
    fn from(error: NotCreated) -> Self {
        match error {
            NotCreated::Exists => Fault::Unreachable.error("another node is creating the same object"),
            NotCreated::Rejected(error) | NotCreated::Unclear(error) => error,
        }
    }
}

impl Object {
    /// Joins records to an object.
    pub(super) fn of(first: Position, records: &[Record]) -> Self {
        let lines: Vec<_> = records.iter().flat_map(|record| [&record.bytes[..], b"\n"]).collect();
        let bytes = Bytes::from(lines.concat());
        Self::parse(first, &bytes).expect("joined lines are an object")
    }

    /// Splits the content of an object. The error continues a sentence about the object.
    pub(super) fn parse(first: Position, bytes: &Bytes) -> Result<Self, &'static str> {
        let lines =
            bytes.strip_suffix(b"\n").ok_or(if bytes.is_empty() { "is empty" } else { "is truncated" })?;
        let records = lines.split(|byte| *byte == b'\n').zip(first.0..);
        let records = records.map(|(line, position)| StoredRecord {
            position: Position(position),
            id: None,
            bytes: bytes.slice_ref(line),
        });
        Ok(Self { first, records: records.collect(), bytes: bytes.clone() })
    }

    pub(super) fn last(&self) -> &StoredRecord {
        self.records.last().expect("an object holds at least one record")
    }
}

/// The id of a commit. `None` if it is not a commit of petstore, which the reader of the log reports.
pub(super) fn commit_id(bytes: &[u8]) -> Option<CommitId> {
    codec::decode(bytes).ok().map(|commit| commit.id)
}

impl Bucket {
    pub(super) fn open(url: &str, variables: &Variables) -> Result<Self, LogError> {
        let address = Address::parse(url)
            .ok_or_else(|| Fault::CannotOpen.error("the store URL must have the form s3://BUCKET/PREFIX"))?;
        let (client, server) = address.client(variables)?;
        Ok(Self { client, address, server })
    }

    pub(super) fn key(&self, parts: &[&str]) -> Path {
        parts.iter().fold(self.address.prefix.clone(), |path, part| path.join(*part))
    }

    /// Creates an object, unless it exists.
    pub(super) async fn create(&self, key: &Path, bytes: Bytes) -> Result<(), NotCreated> {
        let created = self.client.put_opts(key, bytes.into(), PutMode::Create.into()).await;
        created.map(drop).map_err(|error| {
            let is_rejected = match cause::<Rejection>(&error) {
                Some(rejection) => (400..500).contains(&rejection.status) && rejection.status != 408,
                None => cause::<NotConnected>(&error).is_some(),
            };
            match error {
                Error::AlreadyExists { .. } => NotCreated::Exists,
                Error::NotFound { .. } | Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
                    NotCreated::Rejected(self.failure(&error))
                }
                _ if is_rejected => NotCreated::Rejected(self.failure(&error)),
                _ => NotCreated::Unclear(self.failure(&error)),
            }
        })
    }

    /// Reads an object, if it exists.
    pub(super) async fn get(&self, key: &Path) -> Result<Option<Bytes>, LogError> {
        let found = match time::timeout(RESPONSE_TIMEOUT, self.client.get(key)).await {
            Ok(Ok(found)) => found,
            Ok(Err(Error::NotFound { .. })) => return Ok(None),
            Ok(Err(error)) => return Err(self.failure(&error)),
            Err(_elapsed) => return Err(self.late()),
        };
        let size = found.meta.size;
        if size > OBJECT_MAX {
            return Err(Fault::Foreign.error(format!(
                "the object {key} has {size} bytes and was not written by petstore: its objects have at most {OBJECT_MAX}"
            )));
        }
        match time::timeout(BODY_TIMEOUT, found.bytes()).await {
            Ok(Ok(bytes)) if bytes.len() as u64 == size => Ok(Some(bytes)),
            Ok(Ok(_)) => {
                Err(Fault::Unreachable.error(format!("the response of {} was cut off", self.server)))
            }
            Ok(Err(error)) => Err(self.failure(&error)),
            Err(_elapsed) => Err(self.late()),
        }
    }

    /// Reads records under this key, if the object exists.
    pub(super) async fn object(&self, key: &Path, first: Position) -> Result<Option<Object>, LogError> {
        let Some(bytes) = self.get(key).await? else { return Ok(None) };
        let parsed = Object::parse(first, &bytes);
        parsed.map(Some).map_err(|damage| Fault::Damaged.error(format!("the object {key} {damage}")))
    }

    /// Reads these objects at the same time, up to the first that is missing or damaged. Fails if that is the first.
    pub(super) async fn objects(&self, keys: Vec<(Position, Path)>) -> Result<Vec<Object>, LogError> {
        let read = async |(first, key): (Position, Path)| {
            let object = self.object(&key, first).await?;
            object
                .ok_or_else(|| Fault::FilesMissing.error(format!("the object {key} was deleted; restore it")))
        };
        let mut reading = stream::iter(keys).map(read).buffered(PARALLEL_READS);
        let mut objects = Vec::new();
        while let Some(object) = reading.next().await {
            match object {
                Ok(object) => objects.push(object),
                Err(error) if objects.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        Ok(objects)
    }

    /// Lists at most `max` objects under `prefix`, in the order of their names, starting after the name `after`.
    pub(super) async fn list(
        &self,
        prefix: &Path,
        after: &str,
        max: usize,
    ) -> Result<Vec<ObjectMeta>, LogError> {
        let mut listed = self.client.list_with_offset(Some(prefix), &prefix.clone().join(after)).take(max);
        let mut found = Vec::new();
        loop {
            match time::timeout(RESPONSE_TIMEOUT, listed.next()).await {
                Ok(None) => return Ok(found),
                Ok(Some(Ok(object))) => found.push(object),
                Ok(Some(Err(error))) => return Err(self.failure(&error)),
                Err(_elapsed) => return Err(self.late()),
            }
        }
    }

    pub(super) fn late(&self) -> LogError {
        Fault::Unreachable.error(format!("no response from {} within {RESPONSE_TIMEOUT:?}", self.server))
    }

    /// Describes a failed request, without what the library adds to its errors: URLs, headers and whole responses.
    fn failure(&self, error: &Error) -> LogError {
        let (server, bucket) = (&self.server, &self.address.bucket);
        let denied = |code: &str| {
            let advice = match code {
                "RequestTimeTooSkewed" => "check the clock of this machine",
                _ => {
                    "check the credentials in AWS_* variables, and that they allow GetObject, PutObject and ListBucket"
                }
            };
            Fault::CannotOpen.error(format!("{server} rejected the request ({code}): {advice}"))
        };
        if let Some(Rejection { status, code }) = cause(error) {
            return match status {
                404 => Fault::CannotOpen.error(format!(
                    "the bucket {bucket} does not exist at {server}: create it, or check the URL and AWS_ENDPOINT_URL"
                )),
                401 | 403 => denied(code),
                408 | 429 | 500.. => Fault::Unreachable.error(format!("{server} responded with {status} {code}")),
                _ => Fault::CannotOpen.error(format!(
                    "{server} rejected the request ({status} {code}): check AWS_REGION and AWS_ENDPOINT_URL"
                )),
            };
        }
        if let Some(reason) = root_certificates::rejection(error, "SSL_CERT_FILE") {
            return Fault::CannotOpen.error(format!("{server} cannot be used: {reason}"));
        }
        match cause::<NotConnected>(error) {
            Some(failed) if server.contains(&failed.server) || server == "Amazon S3" => {
                Fault::Unreachable.error(failed.to_string())
            }
            Some(failed) => Fault::CannotOpen.error(format!(
                "{failed}, which was tried because AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set"
            )),
            None => match error {
                Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => denied("AccessDenied"),
                Error::NotFound { .. } => denied("NotFound"),
                _ => Fault::Unreachable.error(format!("a request to {server} failed: {}", innermost(error))),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_lines_and_each_of_them_is_ended() {
        let parse = |text: &'static str| {
            let object = Object::parse(Position(7), &Bytes::from(text))?;
            Ok(object.records.into_iter().map(|record| (record.position.0, record.bytes)).collect::<Vec<_>>())
        };
        assert_eq!(parse("a\nbc\n"), Ok(vec![(7, "a".into()), (8, "bc".into())]));
        assert_eq!(parse(""), Err("is empty"));
        assert_eq!(parse("a\nb"), Err("is truncated"));
    }
}
