//! The same interface over HTTP/2, called by an independent client: curl.

use axum::http::Request;
use harness::{App, REX, succeed};
use tokio::net::TcpStream;

/// Status, protocol version and body of what curl got.
fn curl(app: &App, path: &str, more: &[&str]) -> (String, String, String) {
    let output = succeed(
        app.curl()
            .args(["--write-out", "\n%{http_code} %{http_version}"])
            .args(more)
            .arg(format!("http://{}{path}", app.address())),
    );
    let (body, end) = output.rsplit_once('\n').unwrap();
    let (status, version) = end.split_once(' ').unwrap();
    (status.into(), version.into(), body.into())
}

#[test]
fn pets_are_added_and_listed_over_http_2() {
    let app = App::start();
    let json = ["--header", "Content-Type: application/json", "--data"];
    let pet = REX;
    let (status, version, body) = curl(&app, "/v1/pets", &[&json[..], &[pet]].concat());
    assert_eq!((status.as_str(), version.as_str()), ("201", "2"), "{body}");
    assert_eq!(curl(&app, "/v1/pets", &[]).2, app.get("/v1/pets").text(), "the same list");
}

#[test]
fn errors_over_http_2_have_the_error_shape_too() {
    let app = App::start();
    let directory = tempfile::tempdir().unwrap();
    let large = directory.path().join("large.json");
    std::fs::write(&large, format!(r#"{{"name":"{}"}}"#, "x".repeat(2_000_000))).unwrap();
    let large = format!("@{}", large.display());
    let json = ["--header", "Content-Type: application/json", "--data"];
    for (path, more, status, code) in [
        ("/v1/pets", [&json[..], &["{}"]].concat(), "400", "invalid_request"),
        ("/v1/pets", [&json[..], &[large.as_str()]].concat(), "413", "payload_too_large"),
        ("/v1/nothing", vec![], "404", "not_found"),
        ("/v1/pets", vec!["--header", "Authorization: Bearer twice"], "401", "unauthorized"),
    ] {
        let (got, version, body) = curl(&app, path, &more);
        assert_eq!((got.as_str(), version.as_str()), (status, "2"), "{body}");
        let error: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(error["code"], code, "{body}");
    }
}

#[test]
fn a_request_names_one_host_without_doubt() {
    let app = App::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let status = |authority: &str, host: Option<&str>| {
        let mut request = Request::get(format!("http://{authority}/livez"));
        if let Some(host) = host {
            request = request.header("host", host);
        }
        let request = request.body(()).unwrap();
        runtime.block_on(async {
            let stream = TcpStream::connect(app.address()).await.unwrap();
            let (mut requests, connection) = h2::client::handshake(stream).await.unwrap();
            tokio::spawn(connection);
            let (response, _) = requests.send_request(request, true).unwrap();
            response.await.unwrap().status().as_u16()
        })
    };
    assert_eq!(status("shop.example.com", None), 200);
    assert_eq!(status("shop.example.com", Some("SHOP.example.com")), 200);
    assert_eq!(status("shop.example.com", Some("other.example.com")), 400);
    assert_eq!(status("user@shop.example.com", None), 400);
}
