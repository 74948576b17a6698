//! Snapshots that cannot be written: nobody but the next start notices, and it only takes longer.

use std::{
    fs::{self, File},
    io::Write as _,
    path::PathBuf,
};

use harness::{App, Finished, eventually, petstore, program};
use serde_json::Value;

use super::{
    damage::assert_refused,
    disk::{Disk, Format},
    ledger::Ledger,
    load::create,
    scenario::{self, Rounds, Scenario, Tally},
    trace::{Tracer, has_strace},
};

/// Flags of the service.
pub(super) type Flags = &'static [&'static str];

/// Flags for a snapshot after every commit, and for none at all.
pub(super) const EVERY_COMMIT: Flags = &["--snapshot-every", "1"];
pub(super) const NEVER: Flags = &["--snapshot-every", "0"];

/// A service that was started on a store that may be damaged, and has a snapshot.
pub(super) struct Served {
    /// What became of the start.
    pub(super) app: Result<App, Finished>,
    pub(super) snapshot: PathBuf,
}

impl Served {
    /// Whatever is shown is right. Damage is found by the start or soon after it, and then by the next start.
    pub(super) fn check(self, pets: &[Value], is_sound: bool, what: &str, tally: &mut Tally) {
        let mut app = match self.app {
            Ok(app) => app,
            Err(refused) => {
                tally.count("refused by the start", 1);
                return assert_refused(&refused, what);
            }
        };
        assert_eq!(app.all_pets(), pets, "{what}: nothing wrong is shown");
        let ready = |app: &App| app.anonymous("GET", "/readyz").send();
        if is_sound {
            assert_eq!(ready(&app).status, 200, "{what}");
            return app.kill();
        }
        eventually(&format!("{what}: the damage is found"), || {
            let ready = ready(&app);
            (ready.status == 503 && ready.text().contains("the log is damaged")).then_some(())
        });
        app.post(r#"{"name":"one too many","categoryId":1}"#).error(503, "unavailable");
        eventually(&format!("{what}: the snapshot goes"), || (!self.snapshot.exists()).then_some(()));
        app.kill();
        assert_refused(&app.try_start_again().expect_err("the next start refuses"), what);
        tally.count("found after the start", 1);
    }
}

/// The calls that write a snapshot.
const CALLS: [&str; 5] = ["openat", "write", "fsync", "renameat", "unlinkat"];
const FAULTS: [&str; 3] = ["signal=KILL", "error=EIO", "error=ENOSPC"];
/// Creates before a fault that was not met counts as out of reach.
const CREATES_MAX: u64 = 30;
const DISK_MIB: u64 = 32;

#[test]
fn a_call_that_fails_while_a_snapshot_is_written_costs_nobody_a_pet() {
    let mut scenario = Scenario::begin("snapshot faults", Rounds { short: 15, full: 240 });
    if !has_strace() {
        return scenario::not_run(scenario.name, "there is no strace");
    }
    let mut tally = Tally::default();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut app = App::stopped_on(program(), "memory:", folder, EVERY_COMMIT);
    let points =
        (1..).flat_map(|nth| CALLS.iter().flat_map(move |call| FAULTS.map(|fault| (*call, fault, nth))));
    for (round, (call, fault, nth)) in (0..scenario.rounds).zip(points) {
        let what = format!("{call}:{fault}:when={nth}");
        let (ledger, store) = (Ledger::default(), app.folder().join(format!("{round}")));
        app.use_store(&format!("sled:{}", store.display()));
        app.run_by(&[]);
        app.start_again();
        let create_some = |app: &App, prefix: &str| -> Option<u16> {
            let post = app.call("POST", "/v1/pets");
            let mut creates =
                (0..CREATES_MAX).map(|count| create(&post, &ledger, &format!("{prefix} {count}")));
            creates.find(|status| *status != Some(201)).unwrap_or(Some(201))
        };
        assert_eq!(create_some(&app, "before"), Some(201));
        app.kill();
        // The names as they are used in the open folder, and the files that they belong to.
        let names = ["snapshot", "snapshot.new"].map(PathBuf::from);
        let files = [names.clone().to_vec(), names.map(|name| store.join(name)).to_vec()].concat();
        let tracer = Tracer::new(&app.folder().join("trace")).calls(call).inject(&what).only(&files);
        app.run_by(&tracer.command());
        // A start may be killed while it reads the snapshot.
        if app.try_start_again().is_ok() {
            let outcome = create_some(&app, "under");
            let killed = fault == "signal=KILL" && outcome.is_none();
            assert!(
                killed || outcome == Some(201),
                "{what}: nobody else notices: {outcome:?} {:?}",
                app.printed()
            );
        }
        let met = fs::read_to_string(app.folder().join("trace")).unwrap_or_default().contains("(INJECTED)");
        tally.count("met", u64::from(met));
        app.kill();
        app.run_by(&[]);
        tally.rounds += 1;
        match app.try_start_again() {
            Ok(()) => ledger.settle(&app, &mut tally),
            Err(refusal) => tally.refused_opens.push(refusal.stderr),
        }
        app.kill();
        let verified = petstore(["log", "verify", "--store", app.store()]);
        assert_eq!(verified.code, Some(0), "{what}: {}", verified.stderr);
        scenario.check(&tally);
    }
    scenario.end(&tally);
}

#[test]
fn a_full_disk_keeps_snapshots_from_being_written_and_nothing_else() {
    let mut scenario = Scenario::begin("snapshot full disk", Rounds { short: 2, full: 10 });
    let mut tally = Tally::default();
    while tally.rounds < scenario.rounds {
        let disk = match Disk::new(Format::Ext4, DISK_MIB) {
            Ok(disk) => disk,
            Err(reason) => return scenario::not_run(scenario.name, &reason),
        };
        let ledger = Ledger::default();
        let (folder, store) = (tempfile::tempdir().expect("a temporary folder"), disk.path().join("log"));
        let mut app = App::start_on(program(), &format!("sled:{}", store.display()), folder, EVERY_COMMIT);
        let create_some = |app: &App, prefix: &str| {
            let post = app.call("POST", "/v1/pets");
            for count in 0..20 {
                assert_eq!(
                    create(&post, &ledger, &format!("{prefix} {count}")),
                    Some(201),
                    "{:?}",
                    app.printed()
                );
            }
        };
        create_some(&app, "before");
        eventually("a snapshot is written", || store.join("snapshot").exists().then_some(()));
        app.kill();
        let before = fs::read(store.join("snapshot")).expect("a snapshot");
        // What is left is more than the log keeps free, and less than a snapshot leaves to it.
        let mut filler = File::create(disk.path().join("filler")).expect("a new file");
        while free(&disk) > 6 * 1024 * 1024 {
            filler.write_all(&vec![0xAA; 64 * 1024]).expect("there is room");
            filler.sync_all().expect("what was taken is there");
        }
        app.start_again();
        create_some(&app, "full");
        eventually("it is reported", || {
            app.printed().1.contains("could not be written, so the next start takes longer").then_some(())
        });
        create_some(&app, "later");
        app.kill();
        assert!(!store.join("snapshot.new").exists(), "what was begun is removed");
        assert_eq!(fs::read(store.join("snapshot")).expect("a snapshot"), before, "the one before is kept");
        app.start_again();
        ledger.settle(&app, &mut tally);
        app.kill();
        tally.rounds += 1;
        scenario.check(&tally);
    }
    scenario.end(&tally);
}

fn free(disk: &Disk) -> u64 {
    let about = rustix::fs::statvfs(disk.path()).expect("a mounted disk");
    about.f_bavail * about.f_frsize
}
