//! API keys that expire: an operator sees it before it happens.

use std::fs;

use chrono::{DateTime, TimeDelta, Utc};
use harness::{App, eventually, petstore, wait_until, with_wrong_clock};

/// The next expiry of the keys with this name, as the metrics show it.
fn expiry(app: &App, name: &str) -> Option<DateTime<Utc>> {
    let series = format!(r#"petstore_key_expiry_timestamp_seconds{{key="{name}"}} "#);
    let metrics = app.metrics();
    let seconds = metrics.lines().find_map(|line| line.strip_prefix(&series))?;
    DateTime::from_timestamp(seconds.parse().unwrap(), 0)
}

/// How often the service has reported that the keys with this name expire soon.
fn reports(app: &App, name: &str) -> usize {
    let is_report =
        |line: &&str| line.contains("API key expires soon") && line.contains(&format!("key_name={name} "));
    app.printed().1.lines().filter(is_report).count()
}

#[test]
fn the_expiry_of_a_key_is_shown_and_reported_a_week_before() {
    let mut app = App::stopped("memory:", &["--admin-listen", "127.0.0.1:0"]);
    let file = app.directory().join("clock");
    let clock = format!("FAKETIME_TIMESTAMP_FILE={}", file.display());
    app.run_by(&with_wrong_clock(&[clock, "FAKETIME_NO_CACHE=1".into()]));
    fs::write(&file, "+0").unwrap();
    app.start_again();
    for (name, lifetime) in [("weekly", "6d"), ("monthly", "30d")] {
        let issued = Utc::now();
        let key = app.issue_active_key(&["--name", name, "--expires-in", lifetime]);
        let shown = eventually("the expiry is shown", || expiry(&app, name));
        let days = lifetime.trim_end_matches('d').parse().unwrap();
        assert!((shown - issued - TimeDelta::days(days)).abs() < TimeDelta::minutes(5), "{name}: {shown}");
        assert_eq!(app.get_as(&key, "/v1/pets").status, 200);
    }
    assert_eq!(expiry(&app, "test"), None, "a key without an end has no expiry");
    assert_eq!((reports(&app, "weekly"), reports(&app, "monthly")), (1, 0));

    fs::write(file.with_extension("new"), "+24d").unwrap();
    fs::rename(file.with_extension("new"), &file).unwrap();
    wait_until("the week before the expiry begins", || reports(&app, "monthly") == 1);
    assert_eq!(expiry(&app, "weekly"), None, "an expired key has no next expiry");
    app.issue_active_key(&["--name", "other"]);
    assert_eq!((reports(&app, "weekly"), reports(&app, "monthly")), (1, 1), "once, also after a reload");
}

#[test]
fn a_key_that_expires_soon_is_reported_at_startup_and_a_rotated_one_is_not() {
    let mut app = App::stopped("memory:", &["--admin-listen", "127.0.0.1:0"]);
    app.issue_key(&["--name", "weekly", "--expires-in", "6d"]);
    let rotated = app.issue_key(&["--name", "rotated", "--expires-in", "30d"]);
    let keys = app.keys_file();
    petstore(["keys", "rotate", &rotated, "--overlap", "1d", "--keys", keys.to_str().unwrap()]).exits_with(0);
    app.start_again();
    assert_eq!((reports(&app, "weekly"), reports(&app, "rotated")), (1, 0));
    let shown = expiry(&app, "rotated").unwrap();
    assert!(shown - Utc::now() > TimeDelta::days(29), "the key that replaced it: {shown}");
}
