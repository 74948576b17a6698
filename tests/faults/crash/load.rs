//! Clients that write and read until the service is gone, and record every response in the ledger.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use harness::{App, Call};
use serde_json::Value;

use super::ledger::{Ledger, pet};

/// Clients at work.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts so many writers, and one reader that holds the service to what it shows. `round` keeps the
    /// names of this load apart from those of others in the same ledger.
    pub(crate) fn start(app: &App, ledger: &Arc<Ledger>, round: u64, writers: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let post = app.call("POST", "/v1/pets");
        let mut clients: Vec<_> = (0..writers)
            .map(|writer| {
                let (stop, post, ledger) = (stop.clone(), post.clone(), ledger.clone());
                thread::spawn(move || {
                    for count in 0_u64.. {
                        let name = format!("{round}-{writer}-{count}");
                        if stop.load(Ordering::Relaxed) || create(&post, &ledger, &name).is_none() {
                            return;
                        }
                    }
                })
            })
            .collect();
        let (stopped, list, ledger) = (stop.clone(), app.call("GET", "/v1/pets"), ledger.clone());
        clients.push(thread::spawn(move || watch(&list, &ledger, &stopped)));
        Self { stop, clients }
    }

    /// Stops all clients, and waits for their last responses.
    pub(crate) fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        for client in self.clients {
            client.join().expect("no client panics");
        }
    }
}

/// Asks for one pet and notes what becomes of it. Returns the status, or `None` if there was no response.
pub(crate) fn create(post: &Call, ledger: &Ledger, name: &str) -> Option<u16> {
    ledger.ask(name);
    let response = post.clone().json(pet(name).to_string()).try_send()?;
    match response.status {
        201 => ledger.acknowledge(name, &response.json()),
        503 => {
            response.error(503, "unavailable");
            assert!(response.header("retry-after").is_some(), "a rejection says when to come back");
        }
        other => panic!("a create gets 201 or 503, not {other}: {}", response.text()),
    }
    Some(response.status)
}

/// Reads on from the last pet that is known, as fast as the responses arrive.
fn watch(list: &Call, ledger: &Ledger, stop: &AtomicBool) {
    let mut seen = ledger.last_id();
    while !stop.load(Ordering::Relaxed) {
        let Some(page) = list.to(&format!("/v1/pets?limit=100&after={seen}")).try_send() else { return };
        assert_eq!(page.status, 200, "reads continue: {}", page.text());
        let Value::Array(pets) = page.json() else { panic!("a list is an array: {}", page.text()) };
        ledger.show(&pets);
        seen = pets.last().map_or(seen, |pet| pet["id"].as_i64().expect("ids are integers"));
    }
}
