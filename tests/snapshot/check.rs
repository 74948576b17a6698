//! The check of the log in the background, after a start that has not read all of it.

use std::fs;

use harness::eventually;

use super::{ENGINES, EVERY_COMMIT, Shop, metric};

#[test]
fn after_a_start_from_a_snapshot_the_whole_log_is_checked() {
    for engine in ENGINES {
        let mut shop = Shop::new(engine, &["--snapshot-every", "1", "--ops-listen", "127.0.0.1:0"]);
        shop.fill(0..30);
        shop.stop();
        assert_eq!(shop.start(), Some(30));
        shop.fill(30..31);
        let checked = || metric(&shop.app, "petstore_log_checked_position");
        eventually("the check ends, and follows the log from then on", || {
            (checked() == Some(31)).then_some(())
        });
    }
}

#[test]
fn damage_found_after_the_start_stops_writes_at_once_and_the_next_start_refuses() {
    for engine in ENGINES {
        let mut shop = Shop::new(engine, EVERY_COMMIT);
        shop.fill(0..60);
        shop.stop();
        damage(&shop, engine.0);
        let sound = fs::read(&shop.snapshot).unwrap();
        shop.app.begin();
        assert!(shop.app.wait_until_listening().is_ok());
        let report = eventually("the damage is found", || {
            let ready = shop.app.anonymous("GET", "/readyz").try_send()?;
            (ready.status == 503 && ready.text().contains("the log is damaged")).then_some(ready)
        });
        assert!(report.text().contains(r#""reason":"the log is damaged""#), "{}", report.text());
        for _ in 0..3 {
            shop.app.post(r#"{"name":"Rex","categoryId":1}"#).error(503, "unavailable");
        }
        assert_eq!(shop.app.all_pets().len(), 60, "reads go on");
        assert_eq!(shop.app.anonymous("GET", "/livez").send().status, 200);
        eventually("the snapshot is dropped", || (!shop.snapshot.exists()).then_some(()));
        let stderr = shop.app.printed().1;
        assert!(stderr.contains("started from the snapshot at position 60"), "{stderr}");
        // A clean end does not bring it back.
        assert_eq!(shop.app.terminate().code(), Some(0));
        assert!(!shop.snapshot.exists());
        let refused = shop.app.try_start_again().expect_err("the next start refuses");
        assert_eq!(refused.code, Some(1), "{}", refused.stderr);
        assert!(refused.stderr.contains("position 30"), "{engine:?}: {}", refused.stderr);
        // The same with a snapshot that was brought back.
        fs::write(&shop.snapshot, sound).unwrap();
        assert_eq!(shop.start_ready_or_not(), Some(60), "{engine:?}");
    }
}

/// Changes a letter of a name in the record at position 30, so that only the checksum of the record tells.
fn damage(shop: &Shop, scheme: &str) {
    if scheme == "sled" {
        const CHECKSUM: std::ops::Range<usize> = 36..40;
        let database = sled::open(shop.app.folder().join("log/sled")).unwrap();
        let (key, value) = database.range(30_u64.to_be_bytes()..).next().unwrap().unwrap();
        let mut chunk = value.to_vec();
        let place = chunk.windows(4).position(|window| window == b"pet ").unwrap();
        chunk[place] = b'j';
        let checksum =
            crc32c::crc32c_append(crc32c::crc32c(&chunk[..CHECKSUM.start]), &chunk[CHECKSUM.end..]);
        chunk[CHECKSUM].copy_from_slice(&checksum.to_be_bytes());
        database.insert(key, chunk).unwrap();
        database.flush().unwrap();
    } else {
        let file = shop.app.folder().join("pets");
        let mut bytes = fs::read(&file).unwrap();
        let place = bytes.windows(7).position(|window| window == b"pet 29 ").unwrap();
        bytes[place] = b'j';
        fs::write(&file, bytes).unwrap();
    }
}
