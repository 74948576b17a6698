//! What the real program survives: kills, power cuts, failing system calls, full disks, damage.
//!
//! Every scenario records the responses outside the service, and compares them with what the service shows
//! after each restart. A short form runs with all other tests; `tests/crash-suite` runs the full form,
//! or one scenario for longer.
//!
//! Reading order: `scenario` (how long, which seed, what is counted), `ledger` (the responses, and what follows
//! from them), `load` (the clients), `engine` (the engines), `disk` (disks whose power can be cut); then the
//! scenarios, each in its file.

mod copies;
mod damage;
pub(crate) mod disk;
mod engine;
mod failing_disk;
mod full_disk;
mod injected;
mod kills;
mod leaving;
pub(crate) mod ledger;
mod load;
mod power_cuts;
pub(crate) mod scenario;
mod short_writes;
mod syncs;
mod trace;
