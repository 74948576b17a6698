//! The keys of a log: `PREFIX/<log id>/commits/<first position>` and `PREFIX/<log id>/segments/<first>-<last>-<hash>`.

use application::ports::Position;
use object_store::{ObjectMeta, path::Path};
use uuid::Uuid;

use super::bucket::Bucket;

#[derive(Debug, Clone)]
pub(super) struct Layout {
    pub(super) commits: Path,
    pub(super) segments: Path,
}

impl Layout {
    pub(super) fn of(bucket: &Bucket, log: Uuid) -> Self {
        let log = log.to_string();
        Self { commits: bucket.key(&[&log, "commits"]), segments: bucket.key(&[&log, "segments"]) }
    }

    /// A position as a name: 20 digits, so that names sort like positions.
    pub(super) fn name(position: Position) -> String {
        format!("{:020}", position.0)
    }

    /// The key of the object whose first record is at this position.
    pub(super) fn commit(&self, first: Position) -> Path {
        self.commits.clone().join(Self::name(first))
    }

    /// The first positions of listed objects. Objects with other names are not petstore's, and are ignored.
    pub(super) fn firsts(listed: &[ObjectMeta]) -> impl Iterator<Item = (Position, &ObjectMeta)> {
        listed.iter().filter_map(|object| {
            let first = object.location.filename()?.parse().ok().map(Position)?;
            (object.location.filename() == Some(&Self::name(first))).then_some((first, object))
        })
    }
}
