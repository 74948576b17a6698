//! Changes to the key file: concurrent changes all take effect, and no reader sees half of one.

mod rotation;

use std::{
    os::unix::fs::{PermissionsExt as _, symlink},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use tempfile::TempDir;

use super::*;
use crate::access::Scope;

fn new_key(name: &str) -> NewKey {
    NewKey { name: name.parse().unwrap(), scopes: Scope::Read.into(), rate_limit: None, expires: None }
}

fn in_directory() -> (TempDir, KeyFile) {
    let directory = TempDir::new().unwrap();
    let file = KeyFile::at(directory.path().join("keys.toml"));
    (directory, file)
}

fn in_missing_directory() -> (TempDir, KeyFile) {
    let directory = TempDir::new().unwrap();
    let file = KeyFile::at(directory.path().join("data/of/petstore/keys.toml"));
    (directory, file)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_file_with_wide_permissions_is_narrowed_by_the_next_change() {
    let (_directory, file) = in_directory();
    file.issue(new_key("shop"), Utc::now()).unwrap();
    fs::set_permissions(file.path(), fs::Permissions::from_mode(0o644)).unwrap();
    file.issue(new_key("other"), Utc::now()).unwrap();
    assert_eq!(mode(file.path()), 0o600);
}

#[test]
fn a_file_that_others_could_have_changed_is_not_stored_again() {
    let (_directory, file) = in_directory();
    let id = file.issue(new_key("shop"), Utc::now()).unwrap().record.id();
    fs::set_permissions(file.path(), fs::Permissions::from_mode(0o666)).unwrap();
    let before = fs::read(file.path()).unwrap();
    let errors = [
        file.issue(new_key("other"), Utc::now()).err(),
        file.rotate(&id, TimeDelta::zero(), None, Utc::now()).err(),
        file.revoke(&id, Utc::now()).err(),
    ];
    for error in errors {
        let error = error.unwrap().to_string();
        assert!(error.starts_with("other users can write to "), "{error}");
    }
    assert_eq!(fs::read(file.path()).unwrap(), before);
    assert_eq!(mode(file.path()), 0o666);
}

#[test]
fn keys_issued_at_the_same_time_are_all_stored_and_no_reader_ever_sees_half_a_file() {
    // So few that a busy machine stores all of them within the timeout of the lock.
    const THREADS: usize = 4;
    const KEYS_EACH: usize = 4;
    let (_directory, file) = in_directory();
    file.issue(new_key("before"), Utc::now()).unwrap();
    let done = AtomicBool::new(false);
    let issue_some = || {
        let issue = |_| file.issue(new_key("shop"), Utc::now()).map(|issued| issued.record.id());
        (0..KEYS_EACH).map(issue).collect::<Result<Vec<KeyId>, _>>()
    };
    let issued: Vec<_> = thread::scope(|scope| {
        scope.spawn(|| {
            let mut seen = 0;
            while !done.load(Ordering::Relaxed) {
                let count = file.keys().expect("every state of the file is whole").len();
                assert!(count >= seen, "{seen} keys became {count}");
                seen = count;
            }
        });
        let writers: Vec<_> = (0..THREADS).map(|_| scope.spawn(issue_some)).collect();
        let issued = writers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        done.store(true, Ordering::Relaxed);
        issued
    });
    let issued: Vec<KeyId> = issued.into_iter().flat_map(|ids| ids.unwrap().unwrap()).collect();
    let stored: Vec<KeyId> = file.keys().unwrap().iter().map(KeyRecord::id).collect();
    assert_eq!(stored.len(), 1 + THREADS * KEYS_EACH);
    assert!(issued.iter().all(|id| stored.contains(id)));
}

#[test]
fn a_revoked_key_keeps_its_entry_and_its_first_time() {
    let (_directory, file) = in_directory();
    let key = file.issue(new_key("shop"), Utc::now()).unwrap().record;
    let now = Utc::now().trunc_subsecs(0);
    let later = now + TimeDelta::hours(1);
    let revoked = KeyRecord { revoked: Some(now), ..key };
    assert_eq!(file.revoke(&revoked.id(), now).unwrap(), (revoked.clone(), true));
    assert_eq!(file.revoke(&revoked.id(), later).unwrap(), (revoked.clone(), false));
    assert_eq!(file.keys().unwrap(), [revoked]);
}

#[test]
fn without_a_file_there_is_nothing_to_list_or_revoke_and_no_file_is_created() {
    let (directory, file) = in_missing_directory();
    let revoked = file.revoke(&KeyId("000000000000".into()), Utc::now());
    assert!(matches!(revoked, Err(KeyFileError::Missing(_))));
    assert!(matches!(file.keys(), Err(KeyFileError::Missing(_))));
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn the_first_key_is_created_once_however_many_nodes_start_together() {
    let (_directory, file) = in_missing_directory();
    let made: Vec<PathBuf> = thread::scope(|scope| {
        let starts: Vec<_> = (0..4).map(|_| scope.spawn(|| file.issue_first(Utc::now()).unwrap())).collect();
        starts.into_iter().filter_map(|start| start.join().unwrap()).collect()
    });
    let [path] = &made[..] else { panic!("{made:?} should be one") };
    assert_eq!(*path, file.path().with_file_name("first-key"));
    let secret = fs::read_to_string(path).unwrap();
    let [record] = &file.keys().unwrap()[..] else { panic!("one key") };
    assert_eq!(KeyHash::of_presented(secret.trim_end()), Some(record.hash));
    assert_eq!((record.name.as_str(), record.scopes), ("first-key", Scopes::READ_WRITE));
}

#[test]
fn a_first_key_left_by_a_killed_start_is_replaced() {
    let (_directory, file) = in_directory();
    let path = file.issue_first(Utc::now()).unwrap().unwrap();
    let stale = fs::read_to_string(&path).unwrap();
    fs::remove_file(file.path()).unwrap();
    assert_eq!(file.issue_first(Utc::now()).unwrap(), Some(path.clone()));
    let fresh = fs::read_to_string(&path).unwrap();
    assert_ne!(fresh, stale);
    assert_eq!(KeyHash::of_presented(fresh.trim_end()), Some(file.keys().unwrap()[0].hash));
}

#[test]
fn a_broken_file_is_never_replaced() {
    let (_directory, file) = in_directory();
    file.issue_first(Utc::now()).unwrap();
    fs::write(file.path(), "version = ").unwrap();
    assert_eq!(file.issue_first(Utc::now()).unwrap(), None);
    let error = file.issue(new_key("shop"), Utc::now()).unwrap_err();
    assert!(error.to_string().contains(" cannot be used: "), "{error}");
    assert_eq!(fs::read_to_string(file.path()).unwrap(), "version = ");
}

#[test]
fn the_remains_of_a_killed_change_do_no_harm() {
    let (_directory, file) = in_directory();
    file.issue(new_key("shop"), Utc::now()).unwrap();
    fs::write(private_files::with_suffix(file.path(), ".new"), "half a fi").unwrap();
    file.issue(new_key("other"), Utc::now()).unwrap();
    assert_eq!(file.keys().unwrap().len(), 2);
}

#[test]
fn a_link_to_a_missing_key_file_is_not_replaced() {
    let (directory, link) = in_directory();
    symlink(directory.path().join("not mounted/keys.toml"), link.path()).unwrap();
    let issued = link.issue(new_key("shop"), Utc::now()).unwrap_err();
    let listed = link.keys().unwrap_err();
    assert_eq!(link.issue_first(Utc::now()).unwrap(), None);
    for error in [issued, listed] {
        assert!(
            error.to_string().contains("a link to a file that does not exist: mount its disk"),
            "{error}"
        );
    }
    assert!(link.path().is_symlink() && !link.path().with_file_name(FIRST_KEY).exists());
}

#[test]
fn a_link_to_the_key_file_stays_a_link() {
    let (directory, file) = in_directory();
    file.issue(new_key("shop"), Utc::now()).unwrap();
    let link = KeyFile::at(directory.path().join("link.toml"));
    symlink(file.path(), link.path()).unwrap();
    link.issue(new_key("other"), Utc::now()).unwrap();
    assert!(fs::symlink_metadata(link.path()).unwrap().is_symlink());
    assert_eq!(file.keys().unwrap().len(), 2);
}

#[test]
fn anything_but_a_key_file_is_rejected_at_once() {
    let directory = TempDir::new().unwrap();
    let too_large = directory.path().join("large");
    fs::File::create(&too_large).unwrap().set_len(KeyFile::BYTES_MAX + 1).unwrap();
    for path in [directory.path(), Path::new("/dev/null"), &too_large] {
        let error = KeyFile::at(path).keys().unwrap_err();
        assert!(error.to_string().contains(" cannot be used: "), "{error}");
    }
}

#[test]
fn a_full_file_accepts_no_more_keys_and_is_not_too_large_to_be_read() {
    let name = "\"🐈".repeat(KeyName::MAX_CHARS / 2).parse::<KeyName>().unwrap();
    let time = Some(Utc::now());
    let hash = ApiKey::generate().unwrap().hash();
    let longest = KeyRecord {
        hash,
        owner: OwnerId("000000000000".into()),
        name: name.clone(),
        scopes: Scopes::new(Scope::ALL).unwrap(),
        rate_limit: Some("1000000/s".parse().unwrap()),
        created: Utc::now(),
        expires: time,
        overlap_until: time,
        revoked: time,
    };
    let size = document::write(std::slice::from_ref(&longest)).len() as u64;
    assert!(size * KeyFile::KEYS_MAX as u64 <= KeyFile::BYTES_MAX, "{size} bytes each");

    let mut full = vec![longest; KeyFile::KEYS_MAX];
    let file = KeyFile::at("keys.toml");
    let new = NewKey { name, scopes: Scope::Read.into(), rate_limit: None, expires: None };
    let error = file.add(&mut full, new, None, Utc::now()).unwrap_err().to_string();
    assert!(error.starts_with("the key file keys.toml already holds 10000 keys"), "{error}");
}

#[test]
fn a_file_of_another_version_is_rejected_and_left_unchanged() {
    let (_directory, file) = in_directory();
    for version in [0, 2] {
        let text = format!("version = {version}\nunknown = true\n");
        fs::write(file.path(), &text).unwrap();
        let sentence = format!(
            "the key file {} has format version {version}, and this petstore reads only 1: run the petstore that \
             wrote it, or restore a backup",
            file.path().display()
        );
        assert_eq!(file.keys().unwrap_err().to_string(), sentence);
        assert!(file.issue(new_key("shop"), Utc::now()).is_err());
        assert_eq!(fs::read_to_string(file.path()).unwrap(), text);
    }
}
