//! The log in SQLite and in PostgreSQL: on real files and real servers, with and without faults.

mod nodes;
mod postgres;
mod postgres_failover;
mod postgres_faults;
mod postgres_network;
mod postgres_refusal;
mod postgres_restore;
