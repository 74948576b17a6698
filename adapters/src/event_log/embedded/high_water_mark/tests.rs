//! The mark must survive whatever a log can survive, and reveal when the log did not.

use std::path::PathBuf;

use tempfile::TempDir;

use super::*;

fn mark(position: u64) -> Version {
    Version::at(Position(position), CommitId(Uuid::from_u128(u128::from(position) * 7)))
}

/// A new mark and its path. The directory is deleted when dropped.
fn new_mark() -> (TempDir, PathBuf, HighWaterMark) {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("mark");
    let high_water_mark = HighWaterMark::create(&path).unwrap();
    (directory, path, high_water_mark)
}

fn reopened(path: &Path) -> Version {
    HighWaterMark::open(path).unwrap().unwrap().version
}

#[test]
fn a_mark_comes_back_as_it_was_raised() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("mark");
    assert!(HighWaterMark::open(&path).unwrap().is_none(), "no mark before one is made");
    let mut high_water_mark = HighWaterMark::create(&path).unwrap();
    assert_eq!(reopened(&path), Version::START);
    for position in 1..20 {
        high_water_mark.raise(mark(position)).unwrap();
        assert_eq!(reopened(&path), mark(position), "raised");
        if position % 3 == 0 {
            high_water_mark.sync().unwrap();
            assert_eq!(reopened(&path), mark(position), "synced");
        }
    }
}

#[test]
fn a_torn_write_leaves_the_mark_that_was_synced_before() {
    for torn_at in 0..SLOT_LEN {
        let (_directory, path, mut high_water_mark) = new_mark();
        high_water_mark.raise(mark(8)).unwrap();
        high_water_mark.sync().unwrap();
        high_water_mark.raise(mark(9)).unwrap();
        high_water_mark.raise(mark(10)).unwrap();
        let slot =
            (0..SLOTS).find(|slot| read_slot(&File::open(&path).unwrap(), *slot) == Some(mark(10))).unwrap();
        let place = slot as u64 * SLOT_DISTANCE + torn_at as u64;
        let mut byte = [0];
        File::open(&path).unwrap().read_exact_at(&mut byte, place).unwrap();
        high_water_mark.file.write_all_at(&[!byte[0]], place).unwrap();
        assert_eq!(reopened(&path), mark(8), "torn at byte {torn_at}");
    }
}

#[test]
fn a_settled_mark_survives_the_loss_of_either_slot() {
    for slot in 0..SLOTS {
        let (_directory, path, mut high_water_mark) = new_mark();
        high_water_mark.raise(mark(3)).unwrap();
        high_water_mark.settle().unwrap();
        high_water_mark.file.write_all_at(&[0; SLOT_LEN], slot as u64 * SLOT_DISTANCE).unwrap();
        assert_eq!(reopened(&path), mark(3), "without slot {slot}");
    }
}

#[test]
fn only_a_log_that_holds_the_marked_commit_passes() {
    let (_directory, _, mut high_water_mark) = new_mark();
    assert_eq!(check_nothing_is_lost(high_water_mark.version, Position(0), None), Ok(()), "no promise");
    high_water_mark.raise(mark(5)).unwrap();
    assert_eq!(check_nothing_is_lost(high_water_mark.version, Position(5), mark(5).commit), Ok(()));
    assert_eq!(check_nothing_is_lost(high_water_mark.version, Position(9), mark(5).commit), Ok(()), "ahead");
    for (head, found) in [(Position(4), None), (Position(0), None), (Position(5), mark(6).commit)] {
        let rejected = check_nothing_is_lost(high_water_mark.version, head, found).unwrap_err();
        assert_eq!(rejected.fault, Fault::Damaged, "{head} {found:?}");
    }
}

#[test]
fn a_reopened_mark_does_not_write_over_the_one_that_was_synced_last() {
    for last in 1..=3 {
        let (_directory, path, mut high_water_mark) = new_mark();
        for position in 1..=last {
            high_water_mark.raise(mark(position)).unwrap();
            high_water_mark.sync().unwrap();
        }
        HighWaterMark::open(&path).unwrap().unwrap().raise(mark(9)).unwrap();
        let marks = [0, 1].map(|slot| read_slot(&File::open(&path).unwrap(), slot).unwrap());
        assert!(marks.contains(&mark(9)) && marks.contains(&mark(last)), "{marks:?}");
    }
}

#[test]
fn a_mark_tells_whether_it_was_synced() {
    let (_directory, _, mut high_water_mark) = new_mark();
    assert!(high_water_mark.synced);
    high_water_mark.raise(mark(1)).unwrap();
    assert!(!high_water_mark.synced);
    high_water_mark.sync().unwrap();
    assert!(high_water_mark.synced);
}

#[test]
fn a_mark_can_be_looked_at_without_opening_it() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("mark");
    assert_eq!(HighWaterMark::read(&path), Ok(None));
    HighWaterMark::create(&path).unwrap().raise(mark(3)).unwrap();
    assert_eq!(HighWaterMark::read(&path), Ok(Some(mark(3))));
}

#[test]
fn a_mark_that_cannot_be_opened_is_not_taken_for_a_missing_one() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("file");
    File::create(&file).unwrap();
    let path = file.join("mark");
    for rejected in [HighWaterMark::read(&path).err(), HighWaterMark::open(&path).err()] {
        assert_eq!(rejected.unwrap().fault, Fault::CannotOpen);
    }
}
