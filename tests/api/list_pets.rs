//! `GET /v1/pets`: pages, filters, and paging from the first pet to the last.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use harness::{App, ids};
use serde_json::json;

#[test]
fn a_page_has_20_pets_by_default() {
    let app = App::start();
    let empty = app.get("/v1/pets");
    assert_eq!((empty.status, empty.text(), empty.next()), (200, "[]", None));
    for _ in 0..21 {
        app.post(r#"{"name":"a","categoryId":1}"#);
    }
    let page = app.get("/v1/pets");
    assert_eq!(page.ids(), (1..=20).collect::<Vec<_>>());
    assert_eq!(page.next(), Some("/v1/pets?limit=20&after=20"));
    let last = app.get("/v1/pets?limit=20&after=20");
    assert_eq!((last.ids(), last.next()), (vec![21], None));
    assert_eq!(app.get("/v1/pets?limit=1").ids(), [1]);
    assert_eq!(app.get("/v1/pets?limit=100").ids().len(), 21);
    assert_eq!(app.get("/v1/pets?after=9223372036854775807").ids(), Vec::<i64>::new());
    assert_eq!(app.get("/v1/pets?after=0&limit=2").ids(), [1, 2]);
}

#[test]
fn a_filter_shows_one_status_and_is_kept_from_page_to_page() {
    let app = App::start();
    for status in ["available", "pending", "sold"].iter().cycle().take(30) {
        app.post(&json!({"name": "a", "categoryId": 1, "status": status}).to_string());
    }
    let page = app.get("/v1/pets?status=sold&limit=4");
    assert_eq!(page.ids(), [3, 6, 9, 12]);
    assert_eq!(page.next(), Some("/v1/pets?limit=4&status=sold&after=12"));
    assert_eq!(
        ids(&app.walk("/v1/pets?status=pending&limit=3")),
        (0..10).map(|n| 3 * n + 2).collect::<Vec<_>>()
    );
}

#[test]
fn every_page_has_the_number_of_pets_that_match_the_filter() {
    let app = App::start();
    for status in [r#","status":"sold""#, r#","status":"pending""#, ""].iter().cycle().take(7) {
        app.post(&format!(r#"{{"name":"a","categoryId":1{status}}}"#));
    }
    for (query, total) in [
        ("", "7"),
        ("?limit=2", "7"),
        ("?limit=2&after=5", "7"),
        ("?after=7", "7"),
        ("?status=sold", "3"),
        ("?status=sold&limit=1&after=4", "3"),
        ("?status=pending", "2"),
        ("?status=available", "0"),
    ] {
        let path = format!("/v1/pets{query}");
        assert_eq!(app.get(&path).header("total-count"), Some(total), "{query}");
        assert_eq!(app.call("HEAD", &path).send().header("total-count"), Some(total), "HEAD {query}");
    }
    assert_eq!(app.get("/v1/pets/1").header("total-count"), None);
    assert_eq!(app.get("/v1/pets?limit=0").header("total-count"), None);
}

#[test]
fn paging_returns_each_pet_exactly_once_while_others_write() {
    let app = App::start();
    let more = AtomicBool::new(true);
    let add = |count: usize, status: &str| {
        let body = json!({"name": "a", "categoryId": 1, "status": status}).to_string();
        (0..count).map(|_| app.post(&body).json()["id"].as_i64().unwrap()).collect::<Vec<_>>()
    };
    thread::scope(|scope| {
        let clients: Vec<_> = (0..10).map(|_| scope.spawn(|| add(13, "sold"))).collect();
        let mut sold: Vec<_> = clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
        sold.sort_unstable();
        assert_eq!(sold.len(), 130);
        scope.spawn(|| {
            while more.load(Ordering::Relaxed) {
                add(1, "available");
            }
        });
        for limit in [7, 20, 100] {
            assert_eq!(ids(&app.walk(&format!("/v1/pets?status=sold&limit={limit}"))), sold, "limit {limit}");
            let all = ids(&app.walk(&format!("/v1/pets?limit={limit}")));
            assert!(all.is_sorted_by(|earlier, later| earlier < later), "in order, each once");
            assert!(sold.iter().all(|id| all.binary_search(id).is_ok()), "no pet is missing");
        }
        more.store(false, Ordering::Relaxed);
    });
}

#[test]
fn bad_parameters_are_named_with_their_rule_and_unknown_ones_are_ignored() {
    let app = App::start();
    let message = app.get("/v1/pets?l%69mit=0&status=SOLD&after=-1").error(400, "invalid_request");
    let rules = "limit must be an integer between 1 and 100; status must be one of available, pending, sold; \
                 after must be an integer between 0 and 9223372036854775807";
    assert_eq!(message, rules);
    assert_eq!(app.get("/v1/pets?%FF=1&Limit=0&offset=3").status, 200);
}
