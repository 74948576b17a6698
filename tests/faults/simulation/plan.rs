//! What a seed decides before its run starts: how many nodes and clients there are, how often each fault
//! occurs, and when something happens to the nodes and the engine. Half of the faults are absent from any one
//! run, so that no fault hides another.

use std::time::Duration;

use application::LogAccess;
use harness::Chance;

/// In seconds.
pub(crate) const DAY: i64 = 24 * 60 * 60;

/// The whole run in numbers.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) access: LogAccess,
    pub(crate) nodes: usize,
    pub(crate) clients: usize,
    pub(crate) requests_per_client: usize,
    pub(crate) think_max: u64,
    pub(crate) faults: Faults,
    pub(crate) outages: Vec<Outage>,
    pub(crate) restarts: Vec<Restart>,
    pub(crate) unfit: Option<Unfit>,
    /// How far each node is from the engine: milliseconds that every way takes in addition.
    pub(crate) distances: Vec<u64>,
    /// How wrong the clock of each node is, in seconds.
    pub(crate) skews: Vec<i64>,
    /// Per mille of the looks at a clock that make it jump.
    pub(crate) clock_jumps: u64,
    /// The most records that a read returns.
    pub(crate) read_max: usize,
    pub(crate) lie: Option<Lie>,
}

/// A promise of the port that the engine does not keep, to see whether a check detects it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lie {
    /// Appends are acknowledged before they are stored.
    AnswersBeforeItStores,
    /// Appends that may have been stored are called stored.
    CallsDoubtsStored,
    /// Appends that may have been stored are called not stored.
    CallsDoubtsNotStored,
    /// The last record is gone when the process starts again.
    ForgetsTheLastRecord,
}

/// How often a call meets each fault, per mille, and how long calls take, in milliseconds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Faults {
    pub(crate) delay_max: u64,
    /// The call takes seconds.
    pub(crate) slow: u64,
    /// The append is not stored, and the outcome is unclear.
    pub(crate) request_lost: u64,
    /// The append is stored, if its turn has come, and the reply is lost.
    pub(crate) answer_lost: u64,
    /// The append is stored seconds after its outcome was called unclear.
    pub(crate) lands_late: u64,
    /// The append is rejected and the log stays sound.
    pub(crate) rejected: u64,
    /// The append closes the log, which is reopened automatically, with the record or without it.
    pub(crate) closes: u64,
    /// A read, a look at the head or a wait fails.
    pub(crate) read_fails: u64,
    /// A read or a look at the head shows less than there is, though never less than this node saw before.
    pub(crate) stale: u64,
    /// A wait is not woken by what it waits for.
    pub(crate) deaf: u64,
}

/// The engine cannot be reached for a while.
#[derive(Debug, Clone)]
pub(crate) struct Outage {
    pub(crate) at: Duration,
    pub(crate) lasts: Duration,
    /// The only node it is away for; `None` is all of them.
    pub(crate) node: Option<usize>,
}

/// For a while the engine holds a log that must not be written to. Then the right one is back, unchanged.
#[derive(Debug, Clone)]
pub(crate) struct Unfit {
    pub(crate) at: Duration,
    pub(crate) lasts: Duration,
    pub(crate) how: Unfitness,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unfitness {
    /// The log is empty.
    Emptied,
    /// The log is another one, with so many commits.
    Replaced(u64),
    /// The log is an older state of itself, without so many commits.
    Restored(usize),
    /// The engine calls the log damaged, and still accepts appends.
    Damaged,
}

/// A node ends and comes back.
#[derive(Debug, Clone)]
pub(crate) struct Restart {
    pub(crate) at: Duration,
    pub(crate) down: Duration,
    pub(crate) node: usize,
    pub(crate) end: End,
}

/// How the life of a node ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// kill -9: whatever it was doing is cut off, whatever it had sent is on its way.
    Killed,
    /// In order: requests are finished first.
    Closed,
    /// Let go of while the next life starts already, as in a rolling upgrade.
    Replaced,
}

impl Plan {
    pub(crate) fn of(chance: &mut Chance) -> Self {
        let access = if chance.per_mille(250) { LogAccess::Exclusive } else { LogAccess::Shared };
        let nodes = match access {
            LogAccess::Exclusive => 1,
            LogAccess::Shared => 1 + chance.index(3),
        };
        let requests_per_client = 4 + chance.index(12);
        let think_max = chance.pick(&[5, 100, 3_000]);
        // About as long as the clients will be there, so that trouble meets them.
        let span = 1_000 + requests_per_client as u64 * think_max / 2;
        let outages = (0..chance.pick(&[0, 0, 1, 2])).map(|_| Outage::of(chance, span, nodes)).collect();
        let restarts =
            (0..chance.pick(&[0, 0, 1, 2, 3])).map(|_| Restart::of(chance, span, nodes, access)).collect();
        let unfit = (access == LogAccess::Shared && chance.per_mille(200)).then(|| Unfit {
            at: chance.millis(0..=span),
            lasts: chance.millis(0..=20_000),
            how: chance.pick(&[
                Unfitness::Emptied,
                Unfitness::Restored(1),
                Unfitness::Restored(3),
                Unfitness::Replaced(1),
                Unfitness::Replaced(4),
                Unfitness::Replaced(40),
                Unfitness::Damaged,
            ]),
        });
        Self {
            access,
            nodes,
            clients: 1 + chance.index(5),
            requests_per_client,
            think_max,
            faults: Faults::of(chance, access),
            outages,
            restarts,
            unfit,
            distances: (0..nodes).map(|_| chance.pick(&[0, 0, 0, 5, 50])).collect(),
            skews: (0..nodes).map(|_| chance.pick(&[0, 0, 1, -1, 60, -3_600, 3 * DAY, -400 * DAY])).collect(),
            clock_jumps: chance.pick(&[0, 0, 20]),
            read_max: 8,
            lie: None,
        }
    }

    /// Whether nothing at all goes wrong in this run, save that nodes compete.
    pub(crate) fn is_calm(&self) -> bool {
        let undisturbed = self.outages.is_empty() && self.restarts.is_empty();
        self.faults.is_calm() && undisturbed && self.unfit.is_none()
    }
}

impl Faults {
    fn of(chance: &mut Chance, access: LogAccess) -> Self {
        let delay_max = chance.pick(&[0, 2, 20, 200]);
        if chance.per_mille(50) {
            return Self { delay_max, ..Self::default() };
        }
        let mut rate = || chance.pick(&[0, 0, 0, 10, 50, 200]);
        let faults = Self {
            delay_max,
            slow: rate() / 5,
            request_lost: rate(),
            answer_lost: rate(),
            lands_late: rate(),
            rejected: rate() / 5,
            closes: rate() / 5,
            read_fails: rate(),
            stale: rate(),
            deaf: rate(),
        };
        match access {
            // A log that is not shared is on this machine, so no message is in transit for long.
            LogAccess::Exclusive => Self { lands_late: 0, stale: 0, ..faults },
            LogAccess::Shared => faults,
        }
    }

    fn is_calm(&self) -> bool {
        let Self { delay_max: _, slow, request_lost, answer_lost, lands_late, .. } = self;
        let Self { rejected, closes, read_fails, stale, deaf: _, .. } = self;
        [slow, request_lost, answer_lost, lands_late, rejected, closes, read_fails, stale]
            .iter()
            .all(|rate| **rate == 0)
    }
}

impl Outage {
    fn of(chance: &mut Chance, span: u64, nodes: usize) -> Self {
        Self {
            at: chance.millis(0..=span),
            lasts: if chance.per_mille(100) { chance.millis(0..=40_000) } else { chance.millis(100..=8_000) },
            node: chance.per_mille(500).then(|| chance.index(nodes)),
        }
    }
}

impl Restart {
    fn of(chance: &mut Chance, span: u64, nodes: usize, access: LogAccess) -> Self {
        let ends: &[End] = match access {
            LogAccess::Exclusive => &[End::Killed, End::Closed],
            LogAccess::Shared => &[End::Killed, End::Closed, End::Replaced],
        };
        Self {
            at: chance.millis(0..=span),
            down: chance.millis(0..=3_000),
            node: chance.index(nodes),
            end: chance.pick(ends),
        }
    }
}
