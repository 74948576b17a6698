//! Links that the service's user has planted for root: whatever command root runs, the target of a link keeps
//! its content, its owner and its mode. Here are the files next to the key file; `stores` has those of a store.

mod stores;

use std::{
    fs::{self, File, Metadata},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, lchown, symlink},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use harness::{Call, eventually, petstore, program, signal};
use tempfile::TempDir;

use super::crash::scenario::not_run;

/// The user of the service.
const NOBODY: u32 = 65_534;
const PRECIOUS: &str = "root's own\n";

/// Every file that petstore creates next to the key file, and the drafts of those that it replaces.
const BESIDE_THE_KEY_FILE: &str =
    "keys.toml.lock keys.toml.new keys.last-used.toml keys.last-used.toml.new first-key first-key.new";

#[derive(Debug, Clone, Copy)]
enum Plant {
    Symbolic,
    Dangling,
    Hard,
}

impl Plant {
    const ALL: [Self; 3] = [Self::Symbolic, Self::Dangling, Self::Hard];
}

/// A directory of the service's user, and a directory of root's.
struct Trap {
    service: TempDir,
    root: TempDir,
}

impl Trap {
    fn new() -> Self {
        let (service, root) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        chown(service.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        let trap = Self { service, root };
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
        self.root.path().join("target")
    }

    fn plant(&self, plant: Plant, name: &str) {
        let link = self.path(name);
        match plant {
            Plant::Symbolic => symlink(self.target(), &link).unwrap(),
            Plant::Dangling => symlink(self.root.path().join("not there yet"), &link).unwrap(),
            Plant::Hard => return fs::hard_link(self.target(), &link).unwrap(),
        }
        lchown(&link, Some(NOBODY), Some(NOBODY)).unwrap();
    }

    fn check(&self, finished: &str) {
        let names: Vec<_> =
            fs::read_dir(self.root.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(names, [self.target()], "{finished}: nothing is created behind a link");
        let about = fs::metadata(self.target()).unwrap();
        assert_eq!(owner(&about), (0, 0), "{finished}: the owner stays");
        assert_eq!(about.mode() & 0o777, 0o640, "{finished}: the mode stays");
        assert_eq!(fs::read_to_string(self.target()).unwrap(), PRECIOUS, "{finished}: the content stays");
    }
}

fn owner(about: &Metadata) -> (u32, u32) {
    (about.uid(), about.gid())
}

fn is_root(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        not_run(test, "only root can be led astray");
    }
    root
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
            printed.contains("ready: ").then_some(Some(address))
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
fn root_never_follows_links_next_to_the_key_file() {
    if !is_root("links next to the key file") {
        return;
    }
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
fn root_changes_no_key_file_through_a_link_of_another_user() {
    if !is_root("a link in the place of the key file") {
        return;
    }
    let trap = Trap::new();
    let private = tempfile::tempdir().unwrap();
    let of_root = private.path().join("keys.toml");
    let issue = |keys: &Path| petstore(["keys", "issue", "--name", "a", "--keys", keys.to_str().unwrap()]);
    assert_eq!(issue(&of_root).code, Some(0));
    let before = read(&of_root);
    symlink(&of_root, trap.path("keys.toml")).unwrap();
    lchown(trap.path("keys.toml"), Some(NOBODY), Some(NOBODY)).unwrap();
    symlink(private.path(), trap.path("directory")).unwrap();
    lchown(trap.path("directory"), Some(NOBODY), Some(NOBODY)).unwrap();
    for planted in [trap.path("keys.toml"), trap.path("directory").join("keys.toml")] {
        issue(&planted).exits_with(1).says("name the target itself");
    }
    assert_eq!(read(&of_root), before);
    let own = private.path().join("link");
    symlink(&of_root, &own).unwrap();
    assert_eq!(issue(&own).code, Some(0), "a link of root's own is followed");
}

#[test]
fn what_root_creates_belongs_to_the_owner_of_the_directory() {
    if !is_root("the owner of what root creates") {
        return;
    }
    let trap = Trap::new();
    let keys = trap.keys();
    Service::start("memory:", &keys, trap.root.path().join("output")).use_key(None);
    let key = read(&trap.path("first-key"));
    Service::start("memory:", &keys, trap.root.path().join("output")).use_key(key.as_deref());
    for name in ["keys.toml", "keys.toml.lock", "keys.last-used.toml", "first-key"] {
        let about = fs::metadata(trap.path(name)).unwrap();
        assert_eq!(owner(&about), (NOBODY, NOBODY), "{name}");
        assert_eq!(about.mode() & 0o777, 0o600, "{name}");
    }
}

#[test]
fn an_existing_file_keeps_its_owner() {
    if !is_root("the owner of what was there") {
        return;
    }
    let trap = Trap::new();
    File::create(trap.path("keys.toml.lock")).unwrap();
    assert_eq!(petstore(["keys", "issue", "--name", "a", "--keys", &trap.keys()]).code, Some(0));
    assert_eq!(owner(&fs::metadata(trap.path("keys.toml.lock")).unwrap()), (0, 0));
}
