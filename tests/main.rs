//! Everything a user can see, tested on the real binary or on the crates' public interfaces.
#![expect(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

/// The HTTP API as a client sees it.
mod api {
    mod authentication;
    mod caching;
    mod clients;
    mod cors;
    mod create_pet;
    mod errors;
    mod fuzzing;
    mod get_pet;
    mod http2;
    mod idempotency;
    mod limits;
    mod list_pets;
    mod log_position;
    mod openapi;
    mod raw;
}

/// The log: engines, nodes, restarts, and the commands that read and copy it.
mod storage {
    mod another_log;
    mod copier;
    mod copy_circle;
    pub(crate) mod engines;
    mod file_engine;
    mod hash_chain;
    mod hostile_sources;
    mod log_copies;
    mod log_find;
    mod log_over_http;
    mod log_tools;
    mod nats;
    mod object_store;
    mod point_in_time;
    mod postgres;
    mod replay;
    mod restart;
    mod salvage_copies;
    mod salvage_gaps;
    mod transfer;
}

/// Kills, power cuts, failing disks and servers, hostile clients; the simulation.
mod faults {
    pub(crate) mod crash;
    mod deleted_files;
    mod descriptors;
    mod fuzz_corpus;
    mod hostile_clients;
    mod log_faults;
    mod planted_links;
    mod real_time;
    mod simulation;
    mod slow_peers;
    mod stalled_output;
    mod writer;
}

/// Commands, configuration, deployment, monitoring.
mod operations {
    mod debian_package;
    mod deployment;
    mod frozen_node;
    mod health;
    mod key_expiry;
    mod key_files;
    mod key_rotation;
    mod log_output;
    mod manual;
    mod max_pets;
    mod metrics;
    mod mistakes;
    mod monitoring;
    mod program;
    mod readiness;
    mod request_log;
    mod rolling_restart;
    mod state_directory;
    mod systemd;
    pub(crate) mod tls;
}

/// The pages in a real browser.
mod pages {
    mod admin;
    mod docs;
    mod inventory;
}

/// Rules for the sources, the documentation and the lists of tests.
mod repository {
    mod architecture;
    mod bill_of_materials;
    mod documentation;
    mod one_file;
    mod readme;
    mod test_lists;
}
