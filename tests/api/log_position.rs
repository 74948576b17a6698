//! `Log-Position` names a commit of one history: a node whose log has another history, after a restore or a lossy
//! failover, does not take it for its own.

use harness::{App, REX, Response, petstore};

fn add(app: &App, name: &str) -> String {
    app.add(name).header("log-position").unwrap().to_owned()
}

fn list_at(app: &App, position: &str) -> Response {
    app.call("GET", "/v1/pets").header("Log-Position", position).send()
}

/// The positions of one history are believed, and those of the other are not.
fn assert_distinguished(app: &App, ours: &[&String], lost: &[&String]) {
    for position in ours {
        let response = list_at(app, position);
        assert_eq!(response.status, 200, "{position}: {}", response.text());
        assert_eq!(list_at(app, position.split_once('-').unwrap().0).status, 200, "a bare {position}");
    }
    for position in lost {
        let response = list_at(app, position);
        assert!(response.error(503, "not_caught_up").contains("another history"), "{position}");
        assert!(response.header("retry-after").is_some());
        assert_eq!(list_at(app, position.split_once('-').unwrap().0).status, 200, "a bare {position}");
        app.call("POST", "/v1/pets")
            .header("Log-Position", position)
            .json(REX)
            .send()
            .error(503, "not_caught_up");
    }
}

#[test]
fn a_position_of_the_history_that_a_restore_took_away_is_rejected() {
    for engine in ["sled", "sqlite"] {
        let directory = tempfile::tempdir().unwrap();
        let store = |name: &str| format!("{engine}:{}", directory.path().join(name).display());
        let mut app = App::on(&store("log"));
        let shared = add(&app, "Rex");
        app.terminate();
        petstore(["log", "copy", "--from", &store("log"), "--to", &store("backup")]).exits_with(0);
        app.start_again();
        let lost = [add(&app, "Bella"), add(&app, "Luna")];
        app.terminate();

        app.use_store(&store("backup"));
        app.start_again();
        let ours = [add(&app, "Max"), add(&app, "Milo")];
        for _ in 0..2 {
            assert_distinguished(&app, &[&shared, &ours[0], &ours[1]], &[&lost[0], &lost[1]]);
            app.crash();
        }
    }
}
