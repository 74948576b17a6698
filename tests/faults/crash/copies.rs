//! `log copy` while the command, the source or the target is killed at random moments: the same command resumes, and
//! the copy has the head hash of the source.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use harness::{
    App, Chance, NatsCluster, NatsSync, PostgresServer, fill_embedded, free_port, head_hash, key_file,
    petstore, program,
};
use tempfile::TempDir;

use super::{
    engine::Engine,
    scenario::{Scenario, Tally},
};

/// So many commits that a copy takes several times as long as the start of a process, in several batches.
const COMMITS: u64 = 5_000;

/// A copy that is run again until it succeeds.
struct Copy<'a> {
    from: &'a str,
    to: &'a str,
    access: &'a [&'a str],
}

impl Copy<'_> {
    /// Lets `kill` interrupt the copy at random moments within `limit`. A copy that is not interrupted must succeed.
    fn run(
        &self,
        tally: &mut Tally,
        dice: &mut Chance,
        mut limit: Duration,
        mut kill: impl FnMut(&mut Child),
    ) {
        loop {
            let mut copy = Command::new(program())
                .args(["log", "copy", "--from", self.from, "--to", self.to])
                .args(self.access)
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            thread::sleep(dice.moment(limit));
            let killed = copy.try_wait().unwrap().is_none();
            if killed {
                kill(&mut copy);
                tally.rounds += 1;
            }
            let ended = copy.wait_with_output().unwrap();
            if ended.status.success() {
                return;
            }
            assert!(killed, "{ended:?}");
            // Longer attempts, so that one completes on a busy machine.
            limit += limit / 8;
        }
    }
}

/// Fills a store that does not exist yet, and returns its URL.
fn history(engine: Engine, directory: &Path) -> String {
    std::fs::create_dir(directory).unwrap();
    let url = engine.url(directory);
    fill_embedded(&url, COMMITS);
    url
}

/// How long a copy takes that is not interrupted.
fn copy_time(from: &str, to: &str) -> Duration {
    // Built before the clock starts.
    program();
    let begun = Instant::now();
    petstore(["log", "copy", "--from", from, "--to", to]).exits_with(0);
    begun.elapsed()
}

#[test]
fn a_copy_killed_at_any_moment_resumes_to_the_same_head_hash() {
    let mut scenario = Scenario::begin("copy kills", 6, 400);
    let (mut tally, mut dice) = (Tally::default(), scenario.dice(0));
    let directory = TempDir::new().unwrap();
    let stores = [Engine::Sled, Engine::Sqlite]
        .map(|engine| (engine, history(engine, &directory.path().join(format!("{engine:?}")))));
    let limit = copy_time(&stores[0].1, &Engine::Sqlite.url(directory.path()));
    for number in 0..scenario.rounds {
        for (engine, from) in &stores {
            let other = stores.iter().find(|(other, _)| other != engine).unwrap().0;
            let target = directory.path().join(format!("{engine:?} {number}"));
            std::fs::create_dir(&target).unwrap();
            let to = other.url(&target);
            let copy = Copy { from, to: &to, access: &[] };
            copy.run(&mut tally, &mut dice, limit, |copy| copy.kill().unwrap());
            assert_eq!(head_hash(&to), head_hash(from), "{engine:?} to {other:?}");
        }
        scenario.check(&tally);
        if tally.rounds >= scenario.rounds {
            break;
        }
    }
    scenario.end(&tally);
}

#[test]
fn a_copy_whose_source_or_target_is_killed_resumes_to_the_same_head_hash() {
    let mut scenario = Scenario::begin("copy server kills", 3, 60);
    let (mut tally, mut dice) = (Tally::default(), scenario.dice(0));
    let directory = TempDir::new().unwrap();
    let from = history(Engine::Sled, &directory.path().join("source"));
    let expected = head_hash(&from);
    let limit = copy_time(&from, &Engine::Sqlite.url(directory.path()));
    let admin = format!("127.0.0.1:{}", free_port());
    let mut postgres = PostgresServer::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut nats = runtime.block_on(NatsCluster::start(1, NatsSync::Default));
    for number in 0..scenario.rounds {
        let target = directory.path().join(number.to_string());
        std::fs::create_dir(&target).unwrap();
        let to = Engine::Sqlite.url(&target);
        let mut app = App::on_with(&from, &["--admin-listen", &admin]);
        let key = key_file(app.directory(), &app.log_key());
        let access = ["--api-key-file", key.to_str().unwrap()];
        let url = format!("http://{admin}");
        let copy = Copy { from: &url, to: &to, access: &access };
        copy.run(&mut tally, &mut dice, limit, |_| app.crash());
        assert!(app.terminate().success());
        assert_eq!(head_hash(&to), expected, "from a service to SQLite");

        let database = postgres.create_database();
        let to = postgres.url(&database);
        let copy = Copy { from: &from, to: &to, access: &[] };
        copy.run(&mut tally, &mut dice, limit, |_| {
            postgres.kill();
            postgres.start_again();
        });
        assert_eq!(head_hash(&to), expected, "from sled to PostgreSQL");

        let to = nats.url(&format!("COPY{number}"));
        let copy = Copy { from: &from, to: &to, access: &[] };
        copy.run(&mut tally, &mut dice, limit, |_| {
            nats.servers[0].kill();
            nats.servers[0].start_again();
            runtime.block_on(nats.servers[0].wait_until_ready());
        });
        assert_eq!(head_hash(&to), expected, "from sled to JetStream");
        scenario.check(&tally);
        if tally.rounds >= scenario.rounds {
            break;
        }
    }
    scenario.end(&tally);
}
