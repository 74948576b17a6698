//! What one node does: it decides and appends commits (`writer`, `decision`) when it is its turn (`turns`). It reads
//! those of all nodes (`follower`, `replay`), and applies both to its state (`state`, `idempotency`). That wakes the
//! requests that wait for a commit (`applied`).

pub(crate) mod applied;
mod decision;
pub(crate) mod follower;
pub(crate) mod health;
pub(crate) mod idempotency;
pub(crate) mod replay;
pub(crate) mod state;
mod turns;
pub(crate) mod writer;
