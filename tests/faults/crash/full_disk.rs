//! A disk that fills up: writes are rejected, reads continue, and writes resume once space is free.

use std::{
    fs::File,
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use harness::{App, finished, program, wait_until};

use super::{
    disk::{Disk, Format},
    engine::Engine,
    ledger::Ledger,
    load::create,
    scenario::{self, Scenario, Tally},
};

const DISK_MIB: u64 = 16;
const ROUNDS_PER_DISK: usize = 9;

/// How the disk got full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Filled {
    /// By the pets, up to the space that the service keeps free.
    ByPets,
    /// By others, to the last byte, while the service runs.
    ByOthers,
    /// By others after the service was killed, so that it has to start on the full disk.
    BeforeTheStart,
}

#[test]
fn a_full_disk_stops_writes_until_there_is_space_again() {
    fill_again_and_again(Engine::chosen(), Scenario::begin("full disk", 3, 30));
}

#[test]
fn a_full_disk_stops_writes_to_sqlite_until_there_is_space_again() {
    fill_again_and_again(Engine::Sqlite, Scenario::begin("sqlite full disk", 3, 30));
}

fn fill_again_and_again(engine: Engine, mut scenario: Scenario) {
    let ways = [Filled::ByPets, Filled::ByOthers, Filled::BeforeTheStart];
    let mut tally = Tally::default();
    while tally.rounds < scenario.rounds {
        // Pets stay, so a disk is really full after some rounds.
        let Some(disk) = scenario::available(scenario.name, Disk::new(Format::Ext4, DISK_MIB)) else {
            return;
        };
        let mut bench = Bench::new(engine, disk);
        for way in ways.repeat(ROUNDS_PER_DISK / ways.len()) {
            if tally.rounds < scenario.rounds {
                bench.round(way, &mut tally);
                scenario.check(&tally);
            }
        }
    }
    scenario.end(&tally);
}

struct Bench {
    app: App,
    disk: Disk,
    log_key: String,
    ledger: Ledger,
    names: u64,
}

impl Bench {
    fn new(engine: Engine, disk: Disk) -> Self {
        let store = engine.url(&disk.path().join("log"));
        // The state file is on the same disk, as it is by default.
        let state = disk.path().join("state").display().to_string();
        let app = App::on_with(&store, &["--admin-listen", "127.0.0.1:0", "--state", &state]);
        let log_key = app.log_key();
        Self { app, disk, log_key, ledger: Ledger::default(), names: 0 }
    }

    /// Fills the disk, sees the service reject writes and serve reads, frees space, and sees it write again.
    fn round(&mut self, way: Filled, tally: &mut Tally) {
        self.create_some(20);
        let filler = match way {
            Filled::ByPets => {
                // Others take most of the disk, so that few pets are enough to come to its end.
                let filler = self.fill(3 * 1024 * 1024);
                wait_until("the disk is full", || self.create_next() == Some(503));
                filler
            }
            Filled::ByOthers => self.fill(0),
            Filled::BeforeTheStart => {
                // A running service would free some space when it notices.
                self.app.kill();
                let filler = self.fill(0);
                if let Err(rejection) = self.app.try_start_again() {
                    tally.rejected_opens.push(rejection.stderr);
                    return;
                }
                filler
            }
        };
        wait_until("the probes report the full disk before a write fails", || {
            self.app.probe("/readyz/writes").status == 503
        });
        for _ in 0..3 {
            assert_eq!(self.create_next(), Some(503), "{way:?}: no room, no pet");
        }
        let ready = self.app.probe("/readyz");
        assert_eq!(ready.status, 503, "{way:?}");
        assert!(ready.text().contains("full"), "{way:?}: the reason is shown: {}", ready.text());
        assert_eq!(self.app.probe("/livez").status, 200, "{way:?}");
        assert_eq!(self.app.get("/v1/pets").status, 200, "{way:?}: reads continue");
        let unseen = || self.app.metric("petstore_replica_unseen_seconds");
        let before = unseen();
        wait_until("a full log still responds", || unseen() < before);
        let mut export = Command::new(program());
        export.args(["log", "export", "--store", &format!("http://{}", self.app.admin())]);
        finished(export.env("PETSTORE_API_KEY", &self.log_key)).exits_with(0);
        std::fs::remove_file(filler).expect("the filler is ours");
        let freed = Instant::now();
        wait_until("writes continue without a restart", || self.create_next() == Some(201));
        tally.longest("ms at most from free space to the next 201", freed.elapsed());
        tally.rounds += 1;
        self.create_some(20);
        self.app.kill();
        self.ledger.start_and_settle(&mut self.app, tally);
    }

    fn create_some(&mut self, count: u64) {
        for _ in 0..count {
            assert_eq!(self.create_next(), Some(201), "there is room: {:?}", self.app.printed());
        }
    }

    fn create_next(&mut self) -> Option<u16> {
        self.names += 1;
        // As long as names may be, so that few of them fill much.
        let name = format!("{:🐕>200}", self.names);
        create(&self.app.call("POST", "/v1/pets"), &self.ledger, &name)
    }

    /// Fills the disk with a file up to so many bytes.
    fn fill(&self, left: u64) -> PathBuf {
        let path = self.disk.path().join("filler");
        let mut file = File::create(&path).expect("a new file");
        let block = vec![0xAA; 64 * 1024];
        while free(&self.disk.path()) > left && file.write(&block).is_ok_and(|written| written > 0) {
            file.sync_all().expect("what was taken is there");
        }
        path
    }
}

/// What is free on the disk of this path.
fn free(path: &Path) -> u64 {
    let finished =
        std::process::Command::new("df").args(["--output=avail", "-B1"]).arg(path).output().expect("df runs");
    let text = String::from_utf8_lossy(&finished.stdout).into_owned();
    text.lines().nth(1).and_then(|line| line.trim().parse().ok()).expect("df tells what is free")
}
