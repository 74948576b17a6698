//! Opens a suspect store on a copy first, so that a rejected store stays unchanged.

use std::io;

use application::ports::{LogError, Position, ReadBound, Version};

use super::{Sled, inspect};
use crate::event_log::embedded::{Layout, StoreCopy, check, discard, io_error, read_within};

/// Rejects a store that has lost commits, with all its files unchanged.
///
/// Without room for a copy, the dry run is skipped. A store that was hit by a power cut on a full disk still opens. One
/// that was damaged on a full disk is rejected, but sled may have overwritten the data after the damage.
pub(super) fn try_if_suspect(layout: &Layout, acknowledged: Version) -> Result<(), LogError> {
    let doing = "inspecting the log before opening it";
    let suspect = inspect::first_suspect_offset(layout, acknowledged).map_err(io_error(doing))?;
    let Some(at) = suspect else { return Ok(()) };
    let store = layout.path.display();
    tracing::info!(
        target: "petstore::storage",
        %store, offset = at,
        "the log was not closed cleanly; checking a copy of it first"
    );
    let copy = match StoreCopy::in_store::<Sled>(layout, "dry-run") {
        Ok(copy) => copy,
        Err(error) if error.kind() == io::ErrorKind::StorageFull => {
            tracing::warn!(
                target: "petstore::storage",
                %store,
                "no disk space to check a copy of the log first; opening it directly"
            );
            return Ok(());
        }
        Err(error) => return Err(io_error(doing)(error)),
    };
    let engine = Sled::open_in(&copy.layout)?;
    // Every record must be present. Its content is checked by the replay.
    let outcome = check(&engine, acknowledged).and_then(|last| {
        let mut after = Position::START;
        while let Some(record) = read_within(&engine, after, last.position, ReadBound::BATCH)?.last() {
            after = record.position;
        }
        Ok(())
    });
    discard(engine);
    outcome
}
