//! API keys: 401 before anything else under `/v1`, scopes, and changes without a restart.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    thread,
};

use harness::{App, Call, REX, Response, create_head, petstore, wait_until};
use serde_json::Value;

#[test]
fn without_a_valid_key_nothing_under_v1_is_revealed() {
    let app = App::start();
    let oversize = vec![b'x'; 100_000];
    let message = app.anonymous("GET", "/v1/pets").send().error(401, "unauthorized");
    for (method, path, body) in [
        ("GET", "/v1/pets", &b""[..]),
        ("GET", "/v1/pets?limit=0", b""),
        ("GET", "/v1/pets/1", b""),
        ("GET", "/v1/store/orders", b""),
        ("GET", "/v1/nothing", b""),
        ("GET", "/v1", b""),
        ("GET", "/v1/", b""),
        ("DELETE", "/v1/pets", b""),
        ("OPTIONS", "/v1/pets", b""),
        ("BREW", "/v1/pets", b""),
        ("POST", "/v1/pets", b"{"),
        ("POST", "/v1/pets", &oversize),
    ] {
        let response = app.anonymous(method, path).body(body).send();
        assert_eq!(response.error(401, "unauthorized"), message, "{method} {path}");
        assert_eq!(response.header("www-authenticate"), Some("Bearer realm=\"petstore\""), "{method} {path}");
        let response = app.anonymous(method, path).header("Authorization", "Bearer wrong").body(body).send();
        response.error(401, "unauthorized");
        assert_eq!(response.header("allow"), None, "{method} {path}: it would tell that the address exists");
        let challenge = response.header("www-authenticate").unwrap();
        assert_eq!(challenge, "Bearer realm=\"petstore\", error=\"invalid_token\"", "{method} {path}");
    }
}

#[test]
fn only_callers_with_a_key_learn_the_position_of_the_log() {
    let app = App::start_with(&["--cors-origin", "https://shop.example", "--admin-listen", "127.0.0.1:0"]);
    app.add("Rex");
    let position = |response: &Response| Some(response.header("log-position")?.split('-').next()?.to_owned());
    for (call, status) in [
        (app.anonymous("GET", "/v1/pets"), 401),
        (app.anonymous("GET", "/v1/pets").header("Authorization", "Bearer wrong"), 401),
        (app.anonymous("GET", "/v1/nothing"), 401),
        (app.anonymous("GET", "/v1/pets").header("Host", "b"), 400),
        (app.call("GET", "/v1/pets").header("Host", "b"), 400),
        (
            app.anonymous("OPTIONS", "/v1/pets")
                .header("Origin", "https://shop.example")
                .header("Access-Control-Request-Method", "GET"),
            204,
        ),
    ] {
        let response = call.send();
        assert_eq!((response.status, position(&response)), (status, None), "{call:?}");
    }
    let writer = app.issue_active_key(&["--name", "writer", "--scope", "write"]);
    for (response, status) in [
        (app.get("/v1/pets"), 200),
        (app.get("/v1/pets?limit=0"), 400),
        (app.get("/v1/nothing"), 404),
        (app.call("GET", "/v1/pets").header("Log-Position", "x").send(), 400),
        (app.get_as(&writer, "/v1/pets"), 403),
    ] {
        assert_eq!((response.status, position(&response)), (status, Some("1".to_owned())));
    }

    let ready = |call: Call| {
        let response = call.send();
        assert_eq!((response.status, position(&response)), (200, None), "{call:?}");
        let state = response.json();
        assert_eq!(state["status"], "ready");
        assert!(state["engine"].is_string() && state["durability"]["promise"].is_string(), "{state}");
        state["position"].clone()
    };
    let probe = app.anonymous("GET", "/readyz");
    assert_eq!(ready(probe.clone()), Value::Null, "not without a key");
    assert_eq!(ready(probe.header("Authorization", "Bearer wrong")), Value::Null);
    for key in [&app.key, &writer] {
        let with_key = app.anonymous("GET", "/readyz").key(key);
        assert_eq!(ready(with_key), 1);
    }
    assert_eq!(ready(Call::new(app.admin(), "GET", "/readyz")), 1, "operators need no key");
}

#[test]
fn a_key_may_do_what_its_scopes_say() {
    let app = App::start();
    let reader = app.issue_key(&["--name", "reader", "--scope", "read"]);
    let writer = app.issue_key(&["--name", "writer", "--scope", "write"]);
    app.wait_for_status(&reader, 200);
    app.wait_for_status(&writer, 403);
    let call = |key: &str, method: &str, path: &str| {
        let call = app.anonymous(method, path).key(key);
        if method == "POST" { call.json(r#"{"name":"a","categoryId":1}"#).send() } else { call.send() }
    };
    call(&reader, "POST", "/v1/pets").error(403, "forbidden");
    assert_eq!(call(&writer, "POST", "/v1/pets").status, 201);
    assert_eq!(call(&reader, "GET", "/v1/pets/1").status, 200);
    for path in ["/v1/pets", "/v1/pets/1", "/v1/store/orders"] {
        call(&writer, "GET", path).error(403, "forbidden");
    }
}

#[test]
fn a_key_that_is_revoked_or_loses_its_scope_while_the_body_arrives_adds_nothing() {
    for (is_revoked, reads, status, code) in
        [(true, 401, 401, "unauthorized"), (false, 200, 403, "forbidden")]
    {
        let app = App::start();
        let key = app.issue_key(&["--name", "other", "--scope", "read,write,log"]);
        app.wait_for_status(&key, 200);
        let body = REX;
        let mut slow = TcpStream::connect(app.address()).unwrap();
        let head = create_head(&key, body.len()).replace("Host: a", "Host: a\r\nConnection: close");
        slow.write_all(head.as_bytes()).unwrap();
        let file = app.keys_file();
        if is_revoked {
            app.revoke(&key);
        } else {
            let (text, all) = (fs::read_to_string(&file).unwrap(), r#"["read", "write", "log"]"#);
            assert_eq!(text.matches(all).count(), 1, "{text}");
            fs::write(&file, text.replace(all, r#"["read"]"#)).unwrap();
            wait_until("the scope is gone", || {
                let create = app.anonymous("POST", "/v1/pets").key(&key);
                create.send().status == 403
            });
        }
        app.wait_for_status(&key, reads);
        slow.write_all(body.as_bytes()).unwrap();
        let mut response = Vec::new();
        slow.read_to_end(&mut response).unwrap();
        Response::parse(&response, false).unwrap().error(status, code);
        assert_eq!(app.all_pets().len(), 0);
    }
}

#[test]
fn a_revoked_key_stops_working_while_another_process_holds_the_lock() {
    let app = App::start();
    let file = app.keys_file();
    let path = file.to_str().unwrap();
    let other = app.issue_key(&["--name", "other"]);
    let lock = fs::File::open(app.directory().join("keys.toml.lock")).unwrap();
    lock.lock().unwrap();
    app.wait_for_status(&other, 200);
    let change = thread::spawn({
        let path = path.to_owned();
        move || petstore(["keys", "issue", "--name", "late", "--keys", &path])
    });
    assert_eq!(petstore(["keys", "list", "--keys", path]).code, Some(0), "reading needs no lock");
    let text = fs::read_to_string(&file).unwrap();
    let revoked = text.replace("name = \"other\"", "name = \"other\"\nrevoked = 2026-01-01T00:00:00Z");
    fs::write(&file, revoked).unwrap();
    app.wait_for_status(&other, 401);
    change.join().unwrap().exits_with(1).says("another process holds the lock");
}

#[test]
fn a_broken_or_vanished_key_file_changes_nothing() {
    let app = App::start();
    let file = app.keys_file();
    let sound = fs::read(&file).unwrap();
    let replacement = app.directory().join("replacement");
    for broken in [Some(&b"not [toml"[..]), Some(b""), None] {
        let warnings = || app.printed().1.matches("WARN").count();
        let warnings_before = warnings();
        match broken {
            // Put in place at once: a half-written file would be warned about as well.
            Some(bytes) => {
                fs::write(&replacement, bytes).unwrap();
                fs::rename(&replacement, &file).unwrap();
            }
            None => fs::remove_file(&file).unwrap(),
        }
        // Only after the warning has the service looked at the file.
        wait_until("the service warns about the key file", || warnings() > warnings_before);
        assert_eq!(app.get("/v1/pets").status, 200, "{broken:?}: the old set stays active");
        assert_eq!(app.anonymous("GET", "/v1/pets").send().status, 401, "{broken:?}: never open to everyone");
    }
    let log = app.printed().1;
    let advice = format!(
        "the loaded keys stay active error=the key file {} was deleted; restore it\n",
        file.display()
    );
    assert!(log.contains(&advice) && !log.contains("petstore keys issue"), "{log}");
    fs::write(&file, sound).unwrap();
    app.issue_active_key(&["--name", "other"]);
}

#[test]
fn a_key_file_without_an_active_key_is_reported() {
    let mut app = App::start();
    let warning = "no API key is active, so every request under /v1 gets 401";
    assert!(!app.printed().1.contains(warning));
    app.issue_key(&["--name", "brief", "--expires-in", "5s"]);
    app.revoke(&app.key);
    app.wait_for_log(warning);
    assert_eq!(app.get("/v1/pets").status, 401);
    app.terminate();
    app.begin();
    app.wait_for_log(warning);
}
