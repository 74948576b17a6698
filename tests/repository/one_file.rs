//! The example that shows the idea in one file serves the main requests of the API.

use std::{net::SocketAddr, path::Path, process::Command};

use harness::{Call, Running, free_port, one_file, wait_until};
use serde_json::json;

fn start(log: &Path) -> (Running, SocketAddr) {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let service = Command::new(one_file()).arg(log).arg(address.port().to_string()).spawn();
    let service = Running(service.expect("the example starts"));
    wait_until("the example responds", || Call::new(address, "GET", "/v1/pets").try_send().is_some());
    (service, address)
}

#[test]
fn one_file_lists_creates_and_gets_and_replays_its_log() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("pets.log");
    let (service, address) = start(&log);
    let call = |method: &str, path: &str| Call::new(address, method, path).key("secret");
    Call::new(address, "GET", "/v1/pets").send().error(401, "unauthorized");

    let pets = [
        json!({"id": 1, "name": "Rex", "categoryId": 7, "status": "available"}),
        json!({"id": 2, "name": "Bella", "categoryId": -3}),
    ];
    for pet in &pets {
        let mut body = pet.clone();
        body.as_object_mut().unwrap().remove("id");
        let created = call("POST", "/v1/pets").json(body.to_string()).send();
        assert_eq!((created.status, created.json()), (201, pet.clone()));
    }
    for broken in [r#"{"name": "Rex"}"#, r#"{"name": " ", "categoryId": 7}"#, "{"] {
        call("POST", "/v1/pets").json(broken).send().error(400, "invalid_request");
    }
    assert_eq!(call("GET", "/v1/pets?limit=1").send().ids(), [1]);
    assert_eq!(call("GET", "/v1/pets?status=sold").send().ids(), [0; 0]);
    assert_eq!(call("GET", "/v1/pets/2").send().json(), pets[1]);
    call("GET", "/v1/pets/3").send().error(404, "not_found");

    drop(service);
    let (_service, address) = start(&log);
    let listed = Call::new(address, "GET", "/v1/pets").key("secret").send();
    assert_eq!(listed.json(), json!(pets), "the log is replayed");
}
