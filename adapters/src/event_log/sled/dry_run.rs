//! A dry run: opens a suspect store on a copy first, so that the store stays unchanged if it is rejected.

use std::io;

use application::ports::{LogError, Position, ReadBound, Version};

use super::{Sled, inspect};
use crate::event_log::embedded::{CloseMode, Layout, StoreCopy, check, close, io_error, read_within};

/// Refuses a store that has lost something, with all its files untouched.
///
/// Without room for a copy there is no dry run: a store that was hit by a power cut on a full disk opens, and one that
/// was damaged on a full disk is refused too, but sled may have overwritten what follows the damage.
pub(super) fn try_if_suspect(layout: &Layout, acknowledged: Version) -> Result<(), LogError> {
    let doing = "looking at the log before opening it";
    let suspect = inspect::first_suspect_offset(layout, acknowledged).map_err(io_error(doing))?;
    let Some(at) = suspect else { return Ok(()) };
    let store = layout.path.display();
    tracing::info!("the log {store} was not closed cleanly (byte {at}): trying it on a copy");
    let copy = match StoreCopy::in_store::<Sled>(layout, "dry-run") {
        Ok(copy) => copy,
        Err(error) if error.kind() == io::ErrorKind::StorageFull => {
            tracing::warn!("there is no room for a copy of the log: opening it as it is");
            return Ok(());
        }
        Err(error) => return Err(io_error(doing)(error)),
    };
    let engine = Sled::open_in(&copy.layout)?;
    let outcome = check(&engine, acknowledged).and_then(|last| read_through(&engine, last.position));
    close(engine, CloseMode::LeaveFiles).unwrap_or_else(|error| tracing::debug!("{error}"));
    outcome
}

/// Every record is there. What is in them is for their reader to check.
fn read_through(engine: &Sled, last: Position) -> Result<(), LogError> {
    let mut after = Position::START;
    while let Some(record) = read_within(engine, after, last, ReadBound::BATCH)?.last() {
        after = record.position;
    }
    Ok(())
}
