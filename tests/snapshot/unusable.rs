//! Snapshots that cannot be used: each costs a replay, never a wrong answer, and never a refused start.

use std::fs;

use harness::{eventually, petstore};

use super::{AT_THE_END, ENGINES, EVERY_COMMIT, Shop, copy};

/// A store with so many commits that are all in its snapshot, which is stopped.
fn stopped(commits: u32) -> Shop {
    let mut shop = Shop::new(ENGINES[0], EVERY_COMMIT);
    shop.fill(0..commits);
    shop.stop();
    shop
}

#[test]
fn a_damaged_snapshot_is_recognised_wherever_the_damage_is() {
    let mut shop = stopped(40);
    let sound = fs::read(&shop.snapshot).unwrap();
    shop.app.use_flags(AT_THE_END);
    assert_eq!(shop.start(), Some(40));
    let expected = shop.shown(40);
    shop.app.kill();
    // Every part of it: the title, the first block, hashes, request keys, pets, the last block.
    let step = sound.len() / 12;
    for place in (0..sound.len()).step_by(step).chain([25, sound.len() - 1]) {
        let mut damaged = sound.clone();
        damaged[place] ^= 1 << (place % 8);
        fs::write(&shop.snapshot, &damaged).unwrap();
        assert_eq!(shop.start(), None, "the bit in byte {place} is noticed");
        assert_eq!(shop.shown(40), expected, "byte {place}");
        shop.app.kill();
        let verified = shop.verify();
        assert_eq!(verified.code, Some(0), "{verified:?}");
        assert!(verified.stdout.contains("snapshot    not usable"), "{verified:?}");
    }
}

#[test]
fn a_half_written_snapshot_is_not_used() {
    let mut shop = stopped(40);
    let sound = fs::read(&shop.snapshot).unwrap();
    for len in [0, 1, 19, 20, sound.len() / 3, sound.len() - 9, sound.len() - 1] {
        fs::write(&shop.snapshot, &sound[..len]).unwrap();
        // What a killed process leaves behind.
        fs::write(shop.snapshot.with_file_name("snapshot.new"), &sound[..len]).unwrap();
        assert_eq!(shop.start(), None, "{len} bytes of {}", sound.len());
        shop.shown(40);
        shop.app.kill();
    }
    let longer = [&sound[..], b"more"].concat();
    fs::write(&shop.snapshot, longer).unwrap();
    shop.app.start_again();
    shop.shown(40);
    shop.stop();
    // One that was begun in vain does not keep the next one from being written.
    shop.app.start_again();
    shop.fill(40..42);
    shop.stop();
    assert_eq!(shop.start(), Some(42));
    shop.shown(42);
}

#[test]
fn a_snapshot_of_another_format_is_not_used_and_makes_way_for_the_next() {
    let mut shop = stopped(10);
    let sound = fs::read(&shop.snapshot).unwrap();
    for title in [
        "petstore snapshot 99\n",
        "petstore snapshot 0\n",
        "petstore snapshot 4294967295\n",
        "petstore snap 1\n",
    ] {
        let rest = sound.splitn(2, |byte| *byte == b'\n').nth(1).unwrap();
        fs::write(&shop.snapshot, [title.as_bytes(), rest].concat()).unwrap();
        assert_eq!(shop.start(), None, "{title}");
        shop.shown(10);
        shop.app.kill();
    }
    shop.app.start_again();
    shop.fill(10..11);
    shop.stop();
    assert_eq!(shop.start(), Some(11));
}

#[test]
fn an_older_snapshot_is_followed_by_everything_that_came_after_it() {
    let mut shop = stopped(10);
    let old = fs::read(&shop.snapshot).unwrap();
    shop.app.start_again();
    shop.fill(10..60);
    let expected = shop.shown(60);
    shop.stop();
    fs::write(&shop.snapshot, old).unwrap();
    assert_eq!(shop.start(), Some(10));
    assert_eq!(shop.shown(60), expected);
    shop.fill(60..61);
    shop.shown(61);
}

#[test]
fn a_snapshot_that_is_newer_than_a_restored_log_is_not_used() {
    let mut shop = stopped(10);
    let log = shop.app.folder().join("log");
    let backup = shop.app.folder().join("backup");
    copy(&log, &backup);
    shop.app.start_again();
    shop.fill(10..20);
    shop.stop();
    let newer = fs::read(&shop.snapshot).unwrap();
    fs::remove_dir_all(&log).unwrap();
    copy(&backup, &log);
    fs::write(&shop.snapshot, &newer).unwrap();
    assert_eq!(shop.start(), None, "the log ends before it");
    shop.shown(10);
    // The log grows up to its position with other commits, and then past it.
    for more in [10, 5] {
        for number in 0..more {
            assert_eq!(shop.app.post(&format!(r#"{{"name":"later {number}","categoryId":1}}"#)).status, 201);
        }
        let expected = shop.app.all_pets();
        shop.stop();
        fs::write(&shop.snapshot, &newer).unwrap();
        assert_eq!(shop.start(), None, "the log holds another commit there");
        assert_eq!(shop.app.all_pets(), expected);
    }
}

#[test]
fn an_import_beside_a_snapshot_of_another_history_shows_what_was_imported() {
    let stale = fs::read(stopped(30).snapshot).unwrap();
    let mut source = Shop::new(ENGINES[1], AT_THE_END);
    source.fill(0..50);
    let expected = source.shown(50);
    source.stop();
    let export = source.app.folder().join("export");
    fs::write(&export, petstore(["log", "export", "--store", source.app.store()]).stdout).unwrap();
    for command in ["import", "copy"] {
        let folder = source.app.folder().join(command);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("snapshot"), &stale).unwrap();
        let to = format!("sled:{}", folder.display());
        let done = match command {
            "import" => petstore(["log", "import", export.to_str().unwrap(), "--store", &to]),
            _ => petstore(["log", "copy", "--from", source.app.store(), "--to", &to]),
        };
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        source.app.use_store(&to);
        source.app.use_flags(EVERY_COMMIT);
        assert_eq!(source.start(), None, "{command}");
        assert_eq!(source.shown(50), expected, "{command}");
        source.app.kill();
        source.app.use_store(&format!("sqlite:{}", source.app.folder().join("pets").display()));
    }
}

#[test]
fn a_snapshot_that_is_sound_and_wrong_is_found_by_verify() {
    let mut shop = stopped(30);
    let sound = fs::read(&shop.snapshot).unwrap();
    // The name of one pet among the pets, or among the remembered requests, with every checksum right.
    for kind in *b"PK" {
        fs::write(&shop.snapshot, forged(&sound, kind)).unwrap();
        let verified = shop.verify();
        assert_eq!(verified.code, Some(1), "{verified:?}");
        assert!(verified.stderr.contains("is not what a replay gives: delete the snapshot"), "{verified:?}");
    }
    fs::write(&shop.snapshot, &sound).unwrap();
    assert_eq!(shop.verify().code, Some(0));
    assert_eq!(shop.start(), Some(30));
}

/// Changes a letter in the last block of this kind, and mends the checksums.
fn forged(snapshot: &[u8], kind: u8) -> Vec<u8> {
    let title = 1 + snapshot.iter().position(|byte| *byte == b'\n').unwrap();
    let mut checksum = crc32c::crc32c(&snapshot[..title]);
    let (mut forged, mut rest) = (snapshot[..title].to_vec(), &snapshot[title..]);
    while !rest.is_empty() {
        let len = 5 + u32::from_le_bytes(rest[1..5].try_into().unwrap()) as usize;
        let mut block = rest[..len].to_vec();
        if let Some(place) =
            block.windows(4).rposition(|letters| letters == b"pet ").filter(|_| block[0] == kind)
        {
            block[place] = b'P';
        }
        checksum = crc32c::crc32c_append(checksum, &block);
        forged.extend(block);
        forged.extend(checksum.to_le_bytes());
        rest = &rest[len + 4..];
    }
    assert_ne!(forged, snapshot, "there is such a block");
    forged
}

#[test]
fn a_directory_in_the_place_of_a_snapshot_is_reported_once_with_what_to_do() {
    let mut shop = stopped(5);
    fs::remove_file(&shop.snapshot).unwrap();
    fs::create_dir(&shop.snapshot).unwrap();
    assert_eq!(shop.start(), None);
    shop.fill(5..8);
    shop.stop();
    let (_, stderr) = shop.app.printed();
    let warnings: Vec<_> = stderr.lines().filter(|line| line.contains("WARN")).collect();
    let [warning] = warnings[..] else { panic!("one warning: {stderr}") };
    let place = shop.snapshot.display().to_string();
    for words in [&*place, "it is a directory", "delete it: until then no snapshot is written"] {
        assert!(warning.contains(words), "{words}: {warning}");
    }
    fs::remove_dir(&shop.snapshot).unwrap();
    shop.app.start_again();
    shop.fill(8..9);
    shop.stop();
    assert_eq!(shop.start(), Some(9));
}

#[test]
fn every_warning_names_the_file_and_what_to_do() {
    let mut shop = stopped(5);
    let place = shop.snapshot.display().to_string();
    fs::write(&shop.snapshot, "no snapshot").unwrap();
    assert_eq!(shop.start(), None);
    let (_, stderr) = shop.app.printed();
    let warning = stderr.lines().find(|line| line.contains("is not used")).unwrap();
    assert!(warning.contains(&place) && warning.contains("the next snapshot replaces it"), "{warning}");
    // The draft of the next one has no place either.
    fs::create_dir(shop.snapshot.with_file_name("snapshot.new")).unwrap();
    shop.fill(5..6);
    let warning = eventually("the failure is reported", || {
        let (_, stderr) = shop.app.printed();
        stderr.lines().find(|line| line.contains("could not be written")).map(str::to_owned)
    });
    assert!(warning.contains(&place) && warning.contains("--snapshot-every 0"), "{warning}");
}

#[test]
fn a_snapshot_that_is_left_of_a_deleted_log_tells_what_is_missing() {
    for engine in ENGINES {
        let mut shop = Shop::new(engine, EVERY_COMMIT);
        shop.fill(0..10);
        shop.stop();
        let (folder, log) = (shop.snapshot.parent().unwrap(), engine.1);
        for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            let is_of_log =
                folder.ends_with(log) || entry.file_name().unwrap().to_str().unwrap().starts_with(log);
            if entry.is_dir() {
                fs::remove_dir_all(entry).unwrap();
            } else if is_of_log && entry != shop.snapshot {
                fs::remove_file(entry).unwrap();
            }
        }
        assert_eq!(shop.start(), None, "{engine:?}: it starts");
        assert_eq!(shop.app.all_pets().len(), 0, "{engine:?}");
        let (_, stderr) = shop.app.printed();
        let warning = stderr.lines().find(|line| line.contains("is not used")).unwrap();
        for words in [
            &*shop.snapshot.display().to_string(),
            "it ends at position 10, and the log is empty",
            "acknowledged commits are missing",
            "restore the log from a backup",
        ] {
            assert!(warning.contains(words), "{engine:?}: {words}: {warning}");
        }
    }
}
