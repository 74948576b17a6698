//! Limits for clients: requests per key, wrong keys per address, connections per address, and whose address it is.

use harness::{App, Call, Connection, eventually, raw, succeed};

#[test]
fn a_key_that_has_used_up_its_limit_gets_429_and_others_do_not() {
    let app = App::start_with(&["--rate-limit", "3/h"]);
    let own_limit = app.issue_active_key(&["--name", "own", "--rate-limit", "100/h"]);
    for remaining in [2, 1, 0] {
        let response = app.get("/v1/pets");
        assert_eq!(response.status, 200);
        assert_eq!(response.header("ratelimit-policy"), Some("\"key\";q=3;w=3600"));
        assert_eq!(response.header("ratelimit"), Some(&*format!("\"key\";r={remaining};t=1200")));
        assert_eq!(response.header("retry-after"), None);
    }
    for response in [app.get("/v1/pets"), app.post("{}"), app.get("/v1/nothing"), app.get("/v1/pets/1")] {
        response.error(429, "rate_limited");
        let wait: u64 = response.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=1_200).contains(&wait), "{wait}");
        assert_eq!(response.header("ratelimit"), Some(&*format!("\"key\";r=0;t={wait}")));
        assert!(response.header("log-position").is_some(), "the key is still known");
    }
    let other = app.get_as(&own_limit, "/v1/pets");
    assert_eq!(other.status, 200);
    assert_eq!(other.header("ratelimit-policy"), Some("\"key\";q=100;w=3600"));
    for probe in ["/livez", "/readyz"] {
        assert_eq!(app.call("GET", probe).send().status, 200, "{probe} has no limit");
    }
    app.anonymous("GET", "/v1/pets").send().error(401, "unauthorized");
}

#[test]
fn ten_thousand_wrong_keys_are_limited_and_good_keys_are_not_affected() {
    let app = App::start_with(&["--failed-auth-limit", "5/h", "--trusted-proxy", "127.0.0.2"]);
    let address = app.address();
    let mut wrong = Connection::open(address, "petstore_wrong");
    let mut good = Connection::open(address, &app.key);
    let mut statuses = std::collections::BTreeMap::new();
    for number in 0..10_000 {
        let response = wrong.list();
        *statuses.entry(response.status).or_insert(0) += 1;
        if response.status == 429 {
            let wait: u64 = response.header("retry-after").unwrap().parse().unwrap();
            assert!((1..=720).contains(&wait), "{wait}");
        }
        if number % 100 == 0 {
            assert_eq!(good.list().status, 200, "a good key from the same address");
        }
    }
    println!("10,000 wrong keys from one address: {statuses:?}");
    assert_eq!(statuses, [(401, 5), (429, 9_995)].into());
    app.get_as("petstore_wrong", "/v1/pets").error(429, "rate_limited");
    app.anonymous("GET", "/v1/pets").send().error(401, "unauthorized");

    let from = |client: &str, key: &str| {
        let call = Call::new(address, "GET", "/v1/pets").header("X-Forwarded-For", client);
        call.key(key).send().status
    };
    assert_eq!(from("198.51.100.7", "petstore_wrong"), 429, "this peer is not trusted");
    assert_eq!(from("198.51.100.7", &app.key), 200);
}

#[test]
fn wrong_keys_at_a_probe_count_too() {
    let app = App::start_with(&["--failed-auth-limit", "5/h"]);
    for probe in ["/readyz", "/readyz/reads", "/readyz/writes"].into_iter().cycle().take(6) {
        assert_eq!(app.get_as("petstore_wrong", probe).status, 200, "a probe rejects nothing");
    }
    app.get_as("petstore_wrong", "/v1/pets").error(429, "rate_limited");
    assert_eq!(app.get("/v1/pets").status, 200);
}

#[test]
fn a_forged_address_does_not_replace_that_of_the_client() {
    let app = App::start_with(&["--log-format", "json", "--trusted-proxy", "127.0.0.1,10.0.0.0/8"]);
    let client = |id: &str, headers: &[u8]| {
        let head = format!(
            "GET /v1/pets HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer wrong\r\nConnection: close\r\nX-Request-Id: {id}\r\n"
        );
        let response = raw(app.address(), &[head.as_bytes(), headers, b"\r\n\r\n"].concat());
        assert!(response.starts_with(b"HTTP/1.1 401"), "{}", response.escape_ascii());
        eventually("the request is logged", || {
            let log = app.printed().1;
            let line = log.split_inclusive('\n').find(|line| line.contains(id) && line.ends_with('\n'))?;
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            Some(line["client"].as_str().unwrap().to_owned())
        })
    };
    let cases: [(&[u8], &str); 11] = [
        (b"X-Forwarded-For: 6.6.6.6, 9.9.9.8, 10.0.0.2", "9.9.9.8"),
        (b"X-Forwarded-For: 6.6.6.6\r\nX-Forwarded-For: 9.9.9.8", "9.9.9.8"),
        (b"X-Forwarded-For: 6.6.6.6\xff, 9.9.9.8", "9.9.9.8"),
        (b"X-Forwarded-For: 6.6.6.6\xff\r\nX-Forwarded-For: 9.9.9.8", "9.9.9.8"),
        (b"X-Forwarded-For: 6.6.6.6, \xff, 10.0.0.2", "10.0.0.2"),
        (b"X-Forwarded-For: 6.6.6.6, \xff", "127.0.0.1"),
        (b"X-Forwarded-For: \"6.6.6.6, 9.9.9.8", "9.9.9.8"),
        (b"Forwarded: for=\"6.6.6.6:, for=9.9.9.8", "127.0.0.1"),
        (b"Forwarded: for=\"6.6.6.6:\r\nForwarded: for=9.9.9.8", "127.0.0.1"),
        (b"Forwarded: for=6.6.6.6\r\nX-Forwarded-For: 9.9.9.8", "9.9.9.8"),
        (b"Forwarded: for=6.6.6.6\r\nX-Forwarded-For: \xff, 9.9.9.8", "9.9.9.8"),
    ];
    let clients = (0..).zip(cases).map(|(n, (headers, _))| client(&format!("forged-{n}"), headers));
    assert_eq!(clients.collect::<Vec<_>>(), cases.map(|(_, expected)| expected));
}

#[test]
fn one_address_gets_so_many_connections_and_others_get_theirs() {
    let app = App::start_with(&["--connections-per-address", "3"]);
    let mut open: Vec<_> = (0..10).map(|_| Connection::open(app.address(), &app.key)).collect();
    assert_eq!(app.get("/v1/pets").status, 200, "a new connection is never rejected");
    let served = open.iter_mut().filter_map(Connection::try_list).count();
    assert!((1..=3).contains(&served), "the others were replaced: {served}");
    let mut curl = app.curl();
    curl.args(["--interface", "127.0.0.9", "--output", "/dev/null", "--write-out", "%{http_code}"]);
    let elsewhere = succeed(curl.arg(format!("http://{}/v1/pets", app.address())));
    assert_eq!(elsewhere, "200", "another address");
}
