//! What one node does: it decides and appends commits (`writer`, `decision`) when it is its turn (`turns`), reads those of
//! all nodes (`replica`, `replay`), and applies both to its state (`state`, `idempotency`).

mod decision;
pub(crate) mod health;
pub(crate) mod idempotency;
pub(crate) mod replay;
pub(crate) mod replica;
pub(crate) mod state;
mod turns;
pub(crate) mod writer;
