//! Every response waits for the disk, as the system calls of the running service show.

use std::{collections::HashMap, fs, path::Path, sync::Arc, thread};

use harness::App;

use super::{
    ledger::Ledger,
    load::create,
    trace::{Tracer, has_strace},
};

/// Enough clients at a time that commits have to be shared.
const CLIENTS: u64 = 64;
const CREATES_PER_CLIENT: u64 = 8;

#[test]
fn no_create_is_acknowledged_before_its_commit_is_synced() {
    let Some((mut app, trace)) = traced_app() else { return };
    let ledger = Arc::new(Ledger::default());
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let (ledger, post) = (ledger.clone(), app.call("POST", "/v1/pets"));
            thread::spawn(move || {
                for count in 0..CREATES_PER_CLIENT {
                    assert_eq!(create(&post, &ledger, &format!("{client}-{count}")), Some(201));
                }
            })
        })
        .collect();
    for client in clients {
        client.join().expect("every client is served");
    }
    app.kill();
    let seen = Seen::in_trace(&trace);
    let creates = CLIENTS * CREATES_PER_CLIENT;
    assert_eq!((seen.responses, seen.too_early), (creates, vec![]), "none before its sync");
    assert!(seen.syncs < creates, "{} syncs for {creates} creates", seen.syncs);
    println!("{creates} creates by {CLIENTS} clients: {} syncs", seen.syncs);
}

/// A service on an empty store whose syncs and responses are traced, and the path of the trace.
fn traced_app() -> Option<(App, std::path::PathBuf)> {
    if !has_strace() {
        super::scenario::not_run("syncs", "there is no strace");
        return None;
    }
    let mut app = App::stopped_on_engine("sled", &[]);
    let trace = app.directory().join("trace");
    app.run_by(&Tracer::new(&trace).calls("fdatasync,write,writev,sendto").command());
    app.start_again();
    Some((app, trace))
}

/// What a trace shows.
#[derive(Debug, Default)]
struct Seen {
    /// Syncs of the file with the records that have succeeded.
    syncs: u64,
    /// Acknowledged creates.
    responses: u64,
    /// Responses about a commit that was not synced yet. The store was empty, so commit n needs n syncs.
    too_early: Vec<String>,
}

impl Seen {
    fn in_trace(trace: &Path) -> Self {
        let mut seen = Self::default();
        // Which file each thread is syncing.
        let mut syncing: HashMap<&str, bool> = HashMap::new();
        let text = fs::read_to_string(trace).expect("the trace is text");
        for line in text.lines() {
            let thread = line.split_whitespace().next().expect("each line opens with a thread");
            if line.contains("fdatasync(") {
                syncing.insert(thread, line.contains("/sled/db>"));
            }
            if line.contains("fdatasync") && line.ends_with("= 0") && syncing[thread] {
                seen.syncs += 1;
            }
            if line.contains("HTTP/1.1 201") {
                seen.responses += 1;
                let position =
                    line.split("log-position: ").nth(1).and_then(|rest| rest.split(['-', '\\']).next());
                let position: u64 =
                    position.and_then(|text| text.parse().ok()).expect("every response carries it");
                if position > seen.syncs {
                    seen.too_early.push(line.to_owned());
                }
            }
        }
        seen
    }
}
