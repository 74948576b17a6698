//! Links that another user has planted: whatever command runs, the target of a link keeps its content and its mode.
//! Here are the files next to the key file; `stores` has those of a store. Root stops before it opens any file of
//! another user.

mod stores;

use std::{
    fs::{self, File},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, lchown, symlink},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use harness::{Call, eventually, files_below, petstore, program, signal};
use rustix::process::geteuid;
use tempfile::TempDir;

use super::crash::scenario::not_run;

/// A user with a name and one without: every Debian has the first.
const DAEMON: u32 = 1;
const UNNAMED: u32 = 64_999;
const PRECIOUS: &str = "private\n";

/// Every file that petstore creates next to the key file, and the drafts of those that it replaces.
const BESIDE_THE_KEY_FILE: &str = "keys.toml.lock keys.toml.new first-key first-key.new";

#[derive(Debug, Clone, Copy)]
enum Plant {
    Symbolic,
    Dangling,
    Hard,
}

impl Plant {
    const ALL: [Self; 3] = [Self::Symbolic, Self::Dangling, Self::Hard];
}

/// A directory of petstore, and a private directory that links lead to.
struct Trap {
    service: TempDir,
    private: TempDir,
}

impl Trap {
    fn new() -> Self {
        let trap = Self { service: TempDir::new().unwrap(), private: TempDir::new().unwrap() };
        fs::write(trap.target(), PRECIOUS).unwrap();
        fs::set_permissions(trap.target(), fs::Permissions::from_mode(0o640)).unwrap();
        trap
    }

    fn path(&self, name: &str) -> PathBuf {
        self.service.path().join(name)
    }

    fn keys(&self) -> String {
        self.path("keys.toml").to_str().unwrap().to_owned()
    }

    fn target(&self) -> PathBuf {
        self.private.path().join("target")
    }

    fn plant(&self, plant: Plant, name: &str) {
        let link = self.path(name);
        match plant {
            Plant::Symbolic => symlink(self.target(), &link).unwrap(),
            Plant::Dangling => symlink(self.private.path().join("not there yet"), &link).unwrap(),
            Plant::Hard => fs::hard_link(self.target(), &link).unwrap(),
        }
    }

    fn check(&self, finished: &str) {
        let names: Vec<_> =
            fs::read_dir(self.private.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(names, [self.target()], "{finished}: nothing is created behind a link");
        assert_eq!(fs::metadata(self.target()).unwrap().mode() & 0o777, 0o640, "{finished}: the mode stays");
        assert_eq!(fs::read_to_string(self.target()).unwrap(), PRECIOUS, "{finished}: the content stays");
    }
}

/// A service on a store, which may reject to start.
struct Service {
    child: Child,
    output: PathBuf,
}

impl Service {
    fn start(store: &str, keys: &str, output: PathBuf) -> Self {
        let file = File::create(&output).unwrap();
        let child = Command::new(program())
            .args(["serve", "--listen", "127.0.0.1:0", "--store", store, "--keys", keys])
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        Self { child, output }
    }

    /// Uses a key once, if the service starts, and ends it.
    fn use_key(mut self, key: Option<&str>) {
        let address = eventually("the service starts or ends", || {
            if self.child.try_wait().unwrap().is_some() {
                return Some(None);
            }
            let printed = fs::read_to_string(&self.output).unwrap();
            let address = printed.split("http://").nth(1)?.split_ascii_whitespace().next()?.parse().ok()?;
            printed.contains(" ready pets=").then_some(Some(address))
        });
        let Some(address) = address else { return };
        if let Some(key) = key {
            let authorization = format!("Bearer {key}");
            Call::new(address, "GET", "/v1/pets").header("Authorization", &authorization).send();
        }
        signal(self.child.id(), "TERM");
        self.child.wait().unwrap();
    }
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim_end().to_owned())
}

#[test]
fn links_next_to_the_key_file_are_not_followed() {
    for name in BESIDE_THE_KEY_FILE.split(' ') {
        for plant in Plant::ALL {
            let trap = Trap::new();
            let keys = trap.keys();
            trap.plant(plant, name);
            let finished = |command: &str| format!("{plant:?} link {name}, {command}");

            // The first start, which creates the key file and the first key.
            Service::start("memory:", &keys, trap.path("output")).use_key(None);
            trap.check(&finished("first serve"));
            let issued = petstore(["keys", "issue", "--name", "a", "--keys", &keys]);
            trap.check(&finished("keys issue"));
            petstore(["keys", "list", "--keys", &keys]);
            trap.check(&finished("keys list"));
            let key = issued.stdout.lines().last().map(str::to_owned);
            let key = key.or_else(|| read(&trap.path("first-key")));
            Service::start("memory:", &keys, trap.path("output")).use_key(key.as_deref());
            trap.check(&finished("serve"));
            petstore(["keys", "revoke", key.as_deref().unwrap_or("none"), "--keys", &keys]);
            trap.check(&finished("keys revoke"));
        }
    }
}

#[test]
fn root_stops_with_one_sentence_at_files_of_another_user() {
    if !geteuid().is_root() {
        return not_run("root and the files of another user", "only root can open them");
    }
    let (trap, elsewhere) = (Trap::new(), TempDir::new().unwrap());
    let path = |name: &str| trap.path(name).display().to_string();
    let own = |name: &str| elsewhere.path().join(name).display().to_string();
    let (keys, linked_keys, own_keys) = (trap.keys(), path("link/keys.toml"), own("keys.toml"));
    let own_store = format!("sled:{}", own("log"));
    // The slash at the end would resolve the link.
    let stores = ["sled:log", "sqlite:log.db", "sled:link/"]
        .map(|store| store.replace(':', &format!(":{}", path(""))));
    assert_eq!(petstore(["keys", "issue", "--name", "a", "--keys", &keys]).code, Some(0));
    for store in [&stores[0], &stores[1], &own_store] {
        stores::fill(store);
    }
    symlink(trap.private.path(), trap.path("link")).unwrap();
    for name in ["", "keys.toml", "log", "log.db", "link"] {
        lchown(trap.path(name), Some(DAEMON), None).unwrap();
    }
    let before = contents(&trap);

    let state = path("");
    let mut commands = vec![
        vec!["serve", "--store", &own_store, "--keys", &own_keys, "--state", &state],
        vec!["keys", "list", "--keys", &keys],
        vec!["keys", "rotate", "000000000000", "--keys", &keys],
        vec!["keys", "revoke", "000000000000", "--keys", &keys],
    ];
    for keys in [&keys, &linked_keys] {
        commands.push(vec!["serve", "--store", "memory:", "--keys", keys]);
        commands.push(vec!["keys", "issue", "--name", "b", "--keys", keys]);
    }
    for store in &stores {
        commands.push(vec!["serve", "--store", store, "--keys", &own_keys]);
        commands.extend(
            ["stat", "verify", "export", "tail"].map(|command| vec!["log", command, "--store", store]),
        );
        commands.push(vec!["log", "salvage", "--from", store, "--to", &own_store]);
        commands.push(vec!["log", "copy", "--from", store, "--to", &own_store]);
        commands.push(vec!["log", "copy", "--from", &own_store, "--to", store]);
    }
    for command in commands {
        let listen: &[&str] = if command[0] == "serve" { &["--listen", "127.0.0.1:0"] } else { &[] };
        let stopped = petstore([&command[..], listen].concat());
        let stopped = stopped.exits_with(1).says("as their owner, with `sudo -u daemon petstore …`\n");
        assert_eq!(stopped.sentences(), 1, "{command:?}: {stopped:?}");
        assert_eq!(contents(&trap), before, "{command:?}");
    }
    lchown(trap.keys(), Some(UNNAMED), None).unwrap();
    petstore(["keys", "list", "--keys", &trap.keys()]).says("with `sudo -u '#64999' petstore …`\n");
}

/// Every file of the trap, with its owner.
fn contents(trap: &Trap) -> Vec<(PathBuf, u32)> {
    let below = [trap.service.path(), trap.private.path()].map(files_below).concat();
    below.into_iter().map(|path| (path.clone(), path.symlink_metadata().unwrap().uid())).collect()
}
