//! What the service survives, shown on the real program: kills, power cuts, failing calls, full disks,
//! damage.
//!
//! Every part records outside of the service what it was answered, and compares that with what the service
//! shows after each restart. A short form runs with all other tests; `tests/crash-suite` runs the full form,
//! or one part for longer.
//!
//! Reading order: `part` (how long, which seed, what is counted), `ledger` (what was answered, and what that
//! obliges to), `load` (who asks), `engine` (on what), `disk` (disks whose power can be cut); then the parts,
//! each in a file of its own.

mod damage;
pub(crate) mod disk;
mod engine;
mod failing_disk;
mod full_disk;
mod injected;
mod kills;
mod leaving;
mod ledger;
mod load;
pub(crate) mod part;
mod power_cuts;
mod short_writes;
mod sqlite_damage;
mod syncs;
mod trace;
