//! Which keys are accepted while the key file changes.

use std::fs;

use chrono::TimeDelta;
use tempfile::TempDir;

use super::*;
use crate::access::{Scope, Scopes};

/// A clock that shows what it was set to.
struct SetClock(Mutex<DateTime<Utc>>);

impl Clock for SetClock {
    fn now(&self) -> DateTime<Utc> {
        *self.0.lock()
    }
}

impl ApiKeys {
    /// The keys with these texts and scopes, in no file.
    pub(crate) fn of<'a>(keys: impl IntoIterator<Item = (&'a str, Scopes)>) -> Arc<Self> {
        let created = DateTime::UNIX_EPOCH;
        let entry = |(key, scopes): (&str, _)| {
            let (hash, name) = (KeyHash::of_text(key), key.parse().unwrap());
            let (owner, never) = (hash.id().as_owner(), None);
            let record = KeyRecord {
                hash,
                owner,
                name,
                scopes,
                rate_limit: None,
                created,
                expires: never,
                overlap_until: never,
                revoked: never,
            };
            (hash.id(), KeyEntry::new(record, None, None))
        };
        Arc::new(Self {
            file: KeyFile::at("keys.toml"),
            clock: Arc::new(SetClock(Mutex::new(created))),
            rate_limit: None,
            keys: RwLock::new(keys.into_iter().map(entry).collect()),
            loaded: Mutex::default(),
            latest: AtomicI64::default(),
            is_unusable: AtomicBool::new(false),
        })
    }
}

struct Fixture {
    _directory: TempDir,
    file: KeyFile,
    clock: Arc<SetClock>,
    keys: Arc<ApiKeys>,
    /// A key for everything.
    first: String,
}

impl Fixture {
    fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let file = KeyFile::at(directory.path().join("keys.toml"));
        let clock = Arc::new(SetClock(Mutex::new(DateTime::from_timestamp(1_800_000_000, 0).unwrap())));
        let first = fs::read_to_string(file.issue_first(clock.now()).unwrap().unwrap()).unwrap();
        let keys = ApiKeys::open(file.clone(), clock.clone(), None).unwrap();
        Self { _directory: directory, file, clock, keys, first: first.trim_end().to_owned() }
    }

    fn issue(&self, name: &str, scopes: Scopes, expires: Option<DateTime<Utc>>) -> Issued {
        let new = NewKey { name: name.parse().unwrap(), scopes, rate_limit: None, expires };
        let issued = self.file.issue(new, self.clock.now()).unwrap();
        self.keys.reload().unwrap();
        issued
    }

    fn opens(&self, key: &str) -> bool {
        self.keys.authenticate(key).is_ok()
    }

    fn advance(&self, by: TimeDelta) {
        *self.clock.0.lock() += by;
    }
}

#[test]
fn only_known_keys_are_accepted() {
    let fixture = Fixture::new();
    let unknown = ApiKey::generate().unwrap();
    let hash = unknown.hash().to_string();
    for key in ["", "petstore_", "first-key", unknown.reveal(), &hash, &fixture.first.to_uppercase()] {
        assert_eq!(fixture.keys.authenticate(key).err(), Some(RejectedKey::Unknown), "{key:?}");
    }
    assert!(!fixture.opens(&format!("{}\n", fixture.first)));
    assert!(fixture.opens(&fixture.first));
}

#[test]
fn a_hash_that_only_shares_its_id_with_a_known_one_is_rejected() {
    let fixture = Fixture::new();
    let text = fs::read_to_string(fixture.file.path()).unwrap();
    let hash = fixture.file.keys().unwrap()[0].hash.to_string();
    let other = format!("{}{}", &hash[..12], "0".repeat(52));
    fs::write(fixture.file.path(), text.replace(&hash, &other)).unwrap();
    fixture.keys.reload().unwrap();
    assert!(!fixture.opens(&fixture.first));
}

#[test]
fn a_key_that_was_accepted_before_is_checked_again_every_time() {
    let fixture = Fixture::new();
    let end = fixture.clock.now() + TimeDelta::seconds(30);
    let issued = fixture.issue("shop", Scope::Read.into(), Some(end));
    let key = issued.key.reveal();
    let scopes = || fixture.keys.authenticate(key).map(|principal| principal.scopes);
    assert_eq!([scopes(), scopes()], [Ok(Scope::Read.into()), Ok(Scope::Read.into())]);

    let text = fs::read_to_string(fixture.file.path()).unwrap();
    fs::write(fixture.file.path(), text.replace("\"read\"]", "\"write\"]")).unwrap();
    fixture.keys.reload().unwrap();
    assert_eq!([scopes(), scopes()], [Ok(Scope::Write.into()), Ok(Scope::Write.into())]);

    fixture.advance(TimeDelta::seconds(30));
    assert_eq!(scopes(), Err(RejectedKey::Expired(issued.record.id(), "shop".into())));
    fixture.file.revoke(&issued.record.id(), fixture.clock.now()).unwrap();
    fixture.keys.reload().unwrap();
    assert_eq!(scopes(), Err(RejectedKey::Revoked(issued.record.id(), "shop".into())));
    assert!(fixture.opens(&fixture.first));
}

#[test]
fn an_expired_key_stays_expired_when_the_clock_goes_back_until_its_end_is_changed() {
    let fixture = Fixture::new();
    let begin = fixture.clock.now();
    let issued = fixture.issue("shop", Scope::Read.into(), Some(begin + TimeDelta::days(1)));
    fixture.advance(TimeDelta::days(1));
    fixture.keys.reload().unwrap();
    fixture.advance(TimeDelta::days(-1));
    assert!(!fixture.opens(issued.key.reveal()));
    fixture.issue("other", Scope::Read.into(), None);
    assert!(!fixture.opens(issued.key.reveal()), "a reload does not change that");

    let text = fs::read_to_string(fixture.file.path()).unwrap();
    let later = |end: DateTime<Utc>| end.format("%Y-%m-%dT%H:%M:%SZ").to_string();
    let text = text.replace(&later(begin + TimeDelta::days(1)), &later(begin + TimeDelta::days(2)));
    fs::write(fixture.file.path(), text).unwrap();
    fixture.keys.reload().unwrap();
    assert!(fixture.opens(issued.key.reveal()));
}

#[test]
fn the_next_expiry_of_a_name_is_that_of_its_active_keys() {
    let fixture = Fixture::new();
    let day = |number| fixture.clock.now() + TimeDelta::days(number);
    let (first, second) = (day(1), day(2));
    fixture.issue("shop", Scope::Read.into(), Some(second));
    fixture.issue("shop", Scope::Read.into(), Some(first));
    let revoked = fixture.issue("gone", Scope::Read.into(), Some(first));
    fixture.file.revoke(&revoked.record.id(), fixture.clock.now()).unwrap();
    fixture.keys.reload().unwrap();
    assert_eq!(fixture.keys.expiries(), [("shop".to_owned(), first)]);
    fixture.advance(TimeDelta::days(1));
    assert_eq!(fixture.keys.expiries(), [("shop".to_owned(), second)], "an expired key has no next expiry");
}

#[test]
fn with_a_file_without_keys_every_key_is_rejected() {
    let fixture = Fixture::new();
    fs::write(fixture.file.path(), "version = 1").unwrap();
    fixture.keys.reload().unwrap();
    assert!(!fixture.opens(&fixture.first));
}

#[test]
fn a_broken_file_is_an_error_and_a_missing_one_before_the_first_start_is_not() {
    let fixture = Fixture::new();
    let open = || ApiKeys::open(fixture.file.clone(), fixture.clock.clone(), None);
    for broken in ["", "version"] {
        fs::write(fixture.file.path(), broken).unwrap();
        assert!(open().err().unwrap().to_string().contains(" cannot be used: "), "{broken:?}");
    }
    fs::remove_file(fixture.file.path()).unwrap();
    let keys = open().unwrap();
    assert!(keys.reload().is_ok() && keys.is_usable() && !keys.is_loaded());
    fixture.file.issue_first(fixture.clock.now()).unwrap();
    assert!(keys.reload().is_ok() && keys.is_loaded());
    fs::remove_file(fixture.file.path()).unwrap();
    assert!(keys.reload().is_err() && keys.is_loaded(), "the loaded keys stay active");
}
