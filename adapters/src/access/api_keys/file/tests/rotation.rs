//! Which key replaces which.

use tempfile::TempDir;

use super::*;

struct Fixture {
    _directory: TempDir,
    file: KeyFile,
    now: DateTime<Utc>,
}

impl Fixture {
    fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let file = KeyFile::at(directory.path().join("keys.toml"));
        Self { _directory: directory, file, now: DateTime::from_timestamp(1_800_000_000, 0).unwrap() }
    }

    fn issue(&self, expires: Option<DateTime<Utc>>) -> KeyRecord {
        let new = NewKey {
            name: "shop".parse().unwrap(),
            scopes: Scopes::new([Scope::Read, Scope::Log]).unwrap(),
            rate_limit: Some("10/s".parse().unwrap()),
            expires,
        };
        self.file.issue(new, self.now).unwrap().record
    }

    fn rotate(&self, id: &KeyId, overlap: TimeDelta) -> Result<(Issued, KeyRecord), KeyFileError> {
        self.file.rotate(id, overlap, None, self.now)
    }
}

#[test]
fn the_new_key_has_everything_that_the_old_one_had_except_the_secret() {
    let fixture = Fixture::new();
    let old = fixture.issue(None);
    let new = fixture.rotate(&old.id(), TimeDelta::hours(1)).unwrap().0.record;
    assert_ne!(new.hash, old.hash);
    assert_eq!(new, KeyRecord { hash: new.hash, ..old });
}

#[test]
fn both_keys_are_active_until_the_overlap_ends() {
    let fixture = Fixture::new();
    let old = fixture.issue(None);
    let (issued, replaced) = fixture.rotate(&old.id(), TimeDelta::hours(1)).unwrap();
    assert_eq!(fixture.file.keys().unwrap(), [replaced.clone(), issued.record.clone()]);
    let end = fixture.now + TimeDelta::hours(1);
    assert_eq!(replaced.state(end - TimeDelta::seconds(1)), KeyState::Active);
    assert_eq!(replaced.state(end), KeyState::Expired);
    assert_eq!(issued.record.state(end), KeyState::Active);
}

#[test]
fn the_new_key_is_valid_for_as_long_as_the_old_one_was() {
    let mut fixture = Fixture::new();
    let old = fixture.issue(Some(fixture.now + TimeDelta::days(90)));
    fixture.now += TimeDelta::days(80);
    let new = fixture.rotate(&old.id(), TimeDelta::hours(1)).unwrap().0.record;
    assert_eq!(new.expires, Some(fixture.now + TimeDelta::days(90)));
}

#[test]
fn the_owner_stays_through_many_rotations_and_only_the_newest_key_can_be_rotated() {
    let fixture = Fixture::new();
    let first = fixture.issue(None);
    let mut newest = first.id();
    for _ in 0..3 {
        let before = newest.clone();
        let record = fixture.rotate(&newest, TimeDelta::hours(1)).unwrap().0.record;
        assert_eq!(record.owner, first.id().as_owner());
        newest = record.id();
        let rejected = fixture.rotate(&before, TimeDelta::hours(1)).unwrap_err();
        assert!(
            rejected.to_string().contains(&format!("was already rotated: rotate {newest}")),
            "{rejected}"
        );
    }
    assert_eq!(fixture.file.keys().unwrap().len(), 4);
}

#[test]
fn a_revoked_key_is_replaced_and_stays_revoked() {
    let fixture = Fixture::new();
    let old = fixture.issue(None);
    fixture.file.revoke(&old.id(), fixture.now).unwrap();
    let (issued, replaced) = fixture.rotate(&old.id(), TimeDelta::hours(1)).unwrap();
    assert_eq!(issued.record.owner, old.id().as_owner());
    assert_eq!((replaced.state(fixture.now), replaced.end()), (KeyState::Revoked, old.expires));
}

#[test]
fn a_key_that_does_not_exist_is_not_rotated() {
    let fixture = Fixture::new();
    let unknown_id = KeyId("000000000000".into());
    let missing = fixture.rotate(&unknown_id, TimeDelta::zero()).unwrap_err();
    assert!(matches!(missing, KeyFileError::Missing(_)));
    fixture.issue(None);
    let unknown = fixture.rotate(&unknown_id, TimeDelta::zero()).unwrap_err();
    assert!(matches!(unknown, KeyFileError::UnknownKey(path) if path == fixture.file.path()));
}
