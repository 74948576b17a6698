//! `--max-pets`: an upper bound on what a service takes in, and so on the memory it needs.

use harness::{App, Response};

const REX: &str = r#"{"name":"Rex","categoryId":7,"status":"available"}"#;

fn add(app: &App, key: &str) -> Response {
    app.call("POST", "/v1/pets").header("Idempotency-Key", key).json(REX).send()
}

fn check_full(rejected: &Response) {
    assert_eq!(rejected.status, 503, "{}", rejected.text());
    assert_eq!(rejected.json()["code"], "unavailable");
    assert!(
        rejected.text().contains("the pet limit has been reached; contact the operator"),
        "{}",
        rejected.text()
    );
    assert_eq!(rejected.header("retry-after"), None, "nothing changes in a second");
}

#[test]
fn creates_over_the_limit_are_rejected_and_repeated_ones_succeed() {
    let mut app = App::on_engine("sled", &["--max-pets", "2", "--admin-listen", "127.0.0.1:0"]);
    let first = add(&app, "one");
    assert_eq!((first.status, add(&app, "two").status), (201, 201));
    check_full(&add(&app, "three"));
    let again = add(&app, "one");
    assert_eq!((again.status, again.json()), (201, first.json()), "a repeat adds nothing");
    assert_eq!(app.all_pets().len(), 2);
    assert_eq!(app.get("/readyz").status, 200, "the node serves as it should");
    let metrics = app.metrics();
    for line in ["petstore_pets 2\n", "petstore_pets_limit 2\n"] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    assert!(app.terminate().success());
    app.use_flags(&["--max-pets", "1"]);
    app.start_again();
    assert_eq!(app.all_pets().len(), 2, "a log above the limit is served");
    check_full(&add(&app, "four"));
}
