//! Walking a whole log without serving it: what `petstore log` does.

use crate::{
    codec::Commit,
    follower,
    ports::{EventLog, Fault, LogError, Position, ReadBound, StoredRecord},
};

/// Reads the log from `after` to its end and hands on each record with what it says. Every record is checked:
/// its checksum, its version, its place. The first fault ends the walk.
pub async fn walk(
    log: &dyn EventLog,
    after: Position,
    mut visit: impl FnMut(&StoredRecord, &Commit) -> Result<(), LogError>,
) -> Result<Position, LogError> {
    let mut last = after;
    loop {
        let records = log.read(last, ReadBound::BATCH).await?;
        if records.is_empty() {
            return Ok(last);
        }
        for record in &records {
            let commit = follower::decode(record)?;
            if record.position != last.next() {
                let detail = format!(
                    "after position {last} the log goes on with {}: commits are missing",
                    record.position
                );
                return Err(LogError::new(Fault::Damaged, detail));
            }
            visit(record, &commit)?;
            last = record.position;
        }
    }
}
