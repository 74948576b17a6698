//! Keeps a second log at the heels of one that grows: copies what is there, and then what comes.

use std::{convert::Infallible, time::Duration};

use tokio::time;

use super::{Broken, Check, CopyError, intake::Intake, still_holds};
use crate::{
    commit::Commit,
    ports::{EventLog, Fault, LogError, LogSource, Position, ReadBound, StoredRecord},
};

/// How long to wait for news before looking anyway.
const PATIENCE: Duration = Duration::from_secs(1);
/// The pause after an error that may pass: it doubles with each further one.
const RETRY_PAUSE: Duration = Duration::from_millis(250);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(5);

/// What happens while a log is followed.
#[derive(Debug)]
pub enum FollowStep<'a> {
    /// The target was read and checked, and holds this commit of the source last.
    Resumed(Position),
    /// The target holds this commit.
    Stored(&'a Commit),
    /// One side does not respond for now: there will be another try.
    Waiting(&'a CopyError),
}

/// Copies `from` into `to`, byte for byte, for as long as it is polled. Goes on where an earlier copy stopped, and after
/// either side was away; refuses a target that holds anything else than the beginning of the source.
pub async fn follow(
    from: &dyn LogSource,
    to: &dyn EventLog,
    mut tell: impl FnMut(FollowStep<'_>),
) -> Result<Infallible, Broken<CopyError>> {
    let mut copied = Check::default();
    let known = copied.walk(to, async |_, _, _| Ok::<(), LogError>(())).await;
    let ended = match known {
        Ok(()) => follow_on(from, to, &mut copied, &mut tell).await,
        Err(error) => Err(CopyError::Target(error)),
    };
    match ended {
        Ok(never) => match never {},
        Err(error) => Err(Broken { sound: Box::new(copied.summary()), error }),
    }
}

async fn follow_on(
    from: &dyn LogSource,
    to: &dyn EventLog,
    copied: &mut Check,
    tell: &mut impl FnMut(FollowStep<'_>),
) -> Result<Infallible, CopyError> {
    let mut pause = RETRY_PAUSE;
    loop {
        let before = copied.sound.last;
        let Err(error) = copy_on(from, to, copied, tell).await;
        if !may_pass(&error) {
            return Err(error);
        }
        tell(FollowStep::Waiting(&error));
        pause = if copied.sound.last > before { RETRY_PAUSE } else { (2 * pause).min(RETRY_PAUSE_MAX) };
        time::sleep(pause).await;
    }
}

/// Copies until something fails.
async fn copy_on(
    from: &dyn LogSource,
    to: &dyn EventLog,
    copied: &mut Check,
    tell: &mut impl FnMut(FollowStep<'_>),
) -> Result<Infallible, CopyError> {
    if let Some(last) = &copied.last {
        compare(from, last).await?;
    }
    tell(FollowStep::Resumed(copied.sound.last));
    let mut intake = Intake::after(to, copied.history.version);
    loop {
        // First, so that a running service has a follower from the beginning, and sends it everything before it stops.
        from.wait_for(copied.sound.last, PATIENCE).await?;
        let records = from.read(copied.sound.last, ReadBound::BATCH).await?;
        if let (Some(last), false) = (&copied.last, records.is_empty()) {
            still_holds(from, last).await?;
        }
        for record in &records {
            let commit = copied.follows(record)?;
            store(&mut intake, record, &commit, tell).await?;
            copied.take(record, &commit);
            tell(FollowStep::Stored(&commit));
        }
    }
}

/// The source must hold the last commit of the target.
async fn compare(from: &dyn LogSource, last: &StoredRecord) -> Result<(), CopyError> {
    let before = Position(last.position.0 - 1);
    let head = from.head().await?;
    if head < last.position {
        return Err(CopyError::AnotherHistory(head.next()));
    }
    match from.read(before, ReadBound::ONE).await?.first() {
        Some(found) if found == last => Ok(()),
        Some(_) => Err(CopyError::AnotherHistory(last.position)),
        None => {
            let detail = format!("the log does not show the commit at position {} for now", last.position);
            Err(LogError::new(Fault::Unreachable, detail).into())
        }
    }
}

/// Stores a record that was checked, however often the target is away meanwhile.
async fn store(
    intake: &mut Intake<'_>,
    record: &StoredRecord,
    commit: &Commit,
    tell: &mut impl FnMut(FollowStep<'_>),
) -> Result<(), CopyError> {
    let mut pause = RETRY_PAUSE;
    loop {
        match intake.take(record, commit.id).await {
            Err(error) if may_pass(&error) => {
                tell(FollowStep::Waiting(&error));
                intake.look_again();
                time::sleep(pause).await;
                pause = (2 * pause).min(RETRY_PAUSE_MAX);
            }
            stored => return stored,
        }
    }
}

/// Whether a side may come back by itself.
fn may_pass(error: &CopyError) -> bool {
    match error {
        CopyError::Source(error) => error.fault == Fault::Unreachable,
        CopyError::Target(error) => {
            matches!(error.fault, Fault::Unreachable | Fault::WriteFailed | Fault::Full)
        }
        CopyError::AnotherHistory(_) | CopyError::TooLarge { .. } | CopyError::TargetInUse(_) => false,
    }
}
