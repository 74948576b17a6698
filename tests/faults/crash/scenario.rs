//! One scenario of the suite: how many rounds, which seed, and what it counts.

use std::{
    collections::BTreeMap,
    env,
    fmt::{self, Display},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

pub(crate) use harness::not_run;
use harness::{Chance, number, tell};

use super::ledger::Findings;

/// `full` asks for the full form.
const FORM: &str = "TEST_CRASH";
/// Makes all choices of a run those of an earlier one, as far as they are not a matter of timing.
const SEED: &str = "TEST_CRASH_SEED";
/// How often a long run says how far it is.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// A scenario that is being run.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) rounds: u64,
    seed: u64,
    started: Instant,
    shown: Instant,
    long: bool,
}

/// What a scenario has counted so far.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) rounds: u64,
    pub(crate) acknowledged: u64,
    pub(crate) findings: Findings,
    /// Starts that failed although nothing stood in the way any more.
    pub(crate) rejected_opens: Vec<String>,
    /// What only this scenario counts.
    pub(crate) more: BTreeMap<&'static str, u64>,
}

/// The short form makes the same choices every time, so that a change that fails it has broken something; the
/// full form looks elsewhere each time.
const SHORT_SEED: u64 = 20_301_205;

pub(crate) fn seed_of_the_moment() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970");
    u64::from(now.subsec_nanos())
}

impl Scenario {
    /// Starts a scenario with so many rounds in its short and its full form. `TEST_CRASH_<NAME>` changes their number.
    pub(crate) fn begin(name: &'static str, short_rounds: u64, full_rounds: u64) -> Self {
        let full = env::var(FORM).is_ok_and(|form| form == "full");
        let usual = if full { full_rounds } else { short_rounds };
        let chosen: Option<u64> = number(&format!("{FORM}_{}", name.replace(' ', "_").to_uppercase()));
        let rounds = chosen.unwrap_or(usual);
        let seed = number(SEED).unwrap_or_else(|| if full { seed_of_the_moment() } else { SHORT_SEED });
        let now = Instant::now();
        Self { name, rounds, seed, started: now, shown: now, long: full || chosen.is_some() }
    }

    /// The choices of one round, or of one of several lanes.
    pub(crate) fn dice(&self, salt: u64) -> Chance {
        Chance::new(self.seed ^ salt.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Ends the run if anything was found, and says now and then how far it is.
    pub(crate) fn check(&mut self, tally: &Tally) {
        assert!(tally.is_clean(), "{} with seed {}: {tally:#?}", self.name, self.seed);
        if self.long && self.shown.elapsed() > PROGRESS_INTERVAL {
            self.shown = Instant::now();
            tell(&format!("crash: {} {}/{}: {tally}\n", self.name, tally.rounds, self.rounds));
        }
    }

    /// Tells what was counted.
    pub(crate) fn end(mut self, tally: &Tally) {
        self.long = false;
        self.check(tally);
        let seconds = self.started.elapsed().as_secs();
        tell(&format!("\ncrash: {}: {tally} (seed {}, {seconds} s)\n", self.name, self.seed));
    }
}

/// What a scenario needs. `None` if this machine lacks it, which is reported.
pub(crate) fn available<T>(name: &str, needed: Result<T, String>) -> Option<T> {
    needed.map_err(|reason| not_run(name, &reason)).ok()
}

impl Tally {
    pub(crate) fn is_clean(&self) -> bool {
        self.findings.is_clean() && self.rejected_opens.is_empty()
    }

    /// Adds to a count of this scenario's own.
    pub(crate) fn count(&mut self, what: &'static str, more: u64) {
        *self.more.entry(what).or_default() += more;
    }

    /// Keeps the longest of several times.
    pub(crate) fn longest(&mut self, what: &'static str, time: Duration) {
        let milliseconds = u64::try_from(time.as_millis()).expect("tests do not run for ages");
        let longest = self.more.entry(what).or_default();
        *longest = milliseconds.max(*longest);
    }

    /// Takes over what another lane has counted.
    pub(crate) fn join(&mut self, other: Self) {
        self.rounds += other.rounds;
        self.acknowledged += other.acknowledged;
        self.findings.join(other.findings);
        self.rejected_opens.extend(other.rejected_opens);
        for (what, count) in other.more {
            self.count(what, count);
        }
    }
}

impl Display for Tally {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} rounds", self.rounds)?;
        for (what, count) in &self.more {
            write!(formatter, ", {count} {what}")?;
        }
        write!(formatter, ", {} acknowledged, {}", self.acknowledged, self.findings)?;
        write!(formatter, ", {} rejected opens", self.rejected_opens.len())
    }
}
