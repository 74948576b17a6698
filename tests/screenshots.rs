//! Takes the screenshots in `docs`: fills a shop with pets, lets its clients use it for ten minutes, and takes pictures of
//! the inventory page and the admin page.
//!
//! `cargo run --package tests --all-features --example screenshots`

use std::{
    f64::consts::TAU,
    fs,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use harness::{App, Browser, Response, root};
use serde_json::json;

const TRAFFIC: Duration = Duration::from_mins(10);
/// The pets that are there before the traffic begins.
const PETS: usize = 48;
const STATUSES: [Option<&str>; 5] =
    [Some("available"), Some("available"), Some("pending"), Some("sold"), None];
const NAMES: [&str; 24] = [
    "Biscuit", "Luna", "Pepper", "Oscar", "Maple", "Ziggy", "Hazel", "Mochi", "Rusty", "Clover", "Pickle",
    "Nala", "Waffles", "Shadow", "Poppy", "Gizmo", "Willow", "Peanut", "Juniper", "Bandit", "Olive", "Tofu",
    "Marble", "Ginger",
];

/// Pets in a fixed order that looks mixed.
fn pet(number: usize) -> String {
    let mut pet = json!({ "name": NAMES[number * 7 % NAMES.len()], "categoryId": 1 + number * 5 % 9 });
    if let Some(status) = STATUSES[number * 3 % STATUSES.len()] {
        pet["status"] = status.into();
    }
    pet.to_string()
}

/// Sends requests until the end. The traffic rises and falls within `period` seconds; `interval` is the number of seconds
/// between two requests at the busiest moment.
fn send(ended: &AtomicBool, period: f64, interval: f64, request: impl Fn(usize) -> Response) {
    let start = Instant::now();
    for number in PETS.. {
        if ended.load(Relaxed) {
            return;
        }
        request(number);
        let wave = (start.elapsed().as_secs_f64() * TAU / period).sin();
        thread::sleep(Duration::from_secs_f64(interval * (2.0 - wave)));
    }
}

fn main() {
    let app = &App::start_with(&["--admin-listen", "127.0.0.1:0"]);
    for number in 0..PETS {
        app.post(&pet(number));
    }
    let issue = |name, scope| app.issue_active_key(&["--name", name, "--scope", scope]);
    let (shop, warehouse, reports) =
        (issue("web shop", "read"), issue("warehouse", "write"), issue("monthly report", "read"));
    let admin = Browser::start();
    admin.emulate(1280, 900, "light");
    admin.open(&format!("http://{}/", app.admin()));
    admin.see("#overview:not([hidden])");

    let ended = &AtomicBool::new(false);
    thread::scope(|clients| {
        for (period, query) in [(150.0, ""), (190.0, "?status=available"), (230.0, "?limit=50")] {
            let (shop, path) = (&shop, format!("/v1/pets{query}"));
            clients.spawn(move || send(ended, period, 0.012, |_| app.get_as(shop, &path)));
        }
        for period in [90.0, 110.0, 130.0, 170.0] {
            let post = app.anonymous("POST", "/v1/pets").key(&warehouse);
            clients.spawn(move || send(ended, period, 0.05, |number| post.clone().json(pet(number)).send()));
        }
        // An outdated client of the shop sends a parameter that is not allowed.
        clients.spawn(|| send(ended, 60.0, 0.2, |_| app.get_as(&shop, "/v1/pets?limit=500")));
        clients.spawn(|| {
            send(ended, 70.0, 0.3, |number| app.get_as(&reports, &format!("/v1/pets/{}", 1 + number % PETS)));
        });
        thread::sleep(TRAFFIC);
        fs::write(root().join("docs/admin-page.png"), admin.screenshot()).expect("docs can be written");
        ended.store(true, Relaxed);
    });

    let inventory = Browser::start();
    inventory.emulate(1280, 800, "light");
    inventory.open(&format!("http://{}/", app.address()));
    inventory.fill("#key", &app.key);
    inventory.click("#key-form button");
    inventory.see("#rows tr");
    fs::write(root().join("docs/inventory-page.png"), inventory.screenshot()).expect("docs can be written");
}
