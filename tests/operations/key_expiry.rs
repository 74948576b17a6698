//! API keys that expire: a clock that goes back does not revive a key.

use std::fs;

use harness::{App, with_wrong_clock};

/// The service with a clock that the test can set, by writing the difference to a file.
struct WrongClock {
    app: App,
}

impl WrongClock {
    fn start() -> Self {
        let mut app = App::stopped("memory:", &[]);
        let file = app.directory().join("clock");
        let clock = format!("FAKETIME_TIMESTAMP_FILE={}", file.display());
        app.run_by(&with_wrong_clock(&[clock, "FAKETIME_NO_CACHE=1".into()]));
        fs::write(file, "+0").unwrap();
        app.start_again();
        Self { app }
    }

    /// Sets the clock wrong by this difference.
    fn set(&self, difference: &str) {
        let (file, new) = (self.app.directory().join("clock"), self.app.directory().join("clock.new"));
        fs::write(&new, difference).unwrap();
        fs::rename(new, file).unwrap();
    }
}

#[test]
fn a_key_that_has_expired_stays_expired_when_the_clock_goes_back() {
    let clock = WrongClock::start();
    let app = &clock.app;
    let key = app.issue_active_key(&["--name", "short", "--expires-in", "1h"]);
    clock.set("+2h");
    app.wait_for_status(&key, 401);
    clock.set("+0");
    // At the wrong time, this key is not valid either.
    let new = app.issue_key(&["--name", "new", "--expires-in", "1h"]);
    app.wait_for_status(&new, 200);
    assert_eq!(app.get_as(&key, "/v1/pets").status, 401);
}
