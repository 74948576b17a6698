//! The commands of the program, one module each.

pub(crate) mod keys;
