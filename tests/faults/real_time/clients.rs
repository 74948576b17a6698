//! Clients that add and list pets on any node, and record every request with its response.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use harness::{Call, Chance, Response};
use serde_json::{Value, json};

use super::{
    super::crash::ledger,
    history::{Operation, Outcome, Pet, Position, Request},
};

/// How many clients send requests at the same time.
const CLIENTS: u64 = 9;
/// So many of them also add pets. The others continue to read while creates wait for a server.
const WRITERS: u64 = 6;
/// How often a request with a key is sent until it is acknowledged.
const TRIES: u64 = 4;
/// How long a client waits after a request that failed, and a client that only reads after each request.
const INTERVAL: Duration = Duration::from_millis(5);
const PAGE_MAX: usize = 100;

/// The nodes as their clients see them, with what is known about the log.
pub(crate) struct Nodes {
    started: Instant,
    key: String,
    /// `None` while a node is down.
    addresses: Vec<Mutex<Option<SocketAddr>>>,
    newest: Mutex<Option<Position>>,
    last_id: AtomicU64,
}

impl Nodes {
    pub(crate) fn new(count: usize, key: &str) -> Self {
        let addresses = (0..count).map(|_| Mutex::default()).collect();
        let (newest, last_id) = Default::default();
        Self { started: Instant::now(), key: key.to_owned(), addresses, newest, last_id }
    }

    /// The time since the run began.
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// From now on, clients find the node here.
    pub(crate) fn set_address(&self, node: usize, address: Option<SocketAddr>) {
        *held(&self.addresses[node]) = address;
    }

    /// The largest id in any response.
    pub(crate) fn last_id(&self) -> u64 {
        self.last_id.load(Relaxed)
    }

    /// The newest position in any response.
    pub(crate) fn newest(&self) -> Option<Position> {
        held(&self.newest).clone()
    }

    /// Sends a request to a node and waits for the response.
    pub(crate) fn send(&self, node: usize, request: &Request, asked: Option<Position>) -> Operation {
        let sent = self.now();
        let address = *held(&self.addresses[node]);
        let response = address.and_then(|address| self.call(address, request, asked.as_ref()));
        let ended = self.now();
        let outcome = response.map_or(Outcome::Lost, |response| outcome_of(&response));
        let operation = Operation { node, sent, ended, asked, request: request.clone(), outcome };
        self.last_id.fetch_max(operation.at_least(), Relaxed);
        let mut newest = held(&self.newest);
        *newest = newest.take().max(operation.position().cloned());
        operation
    }

    fn call(&self, address: SocketAddr, request: &Request, asked: Option<&Position>) -> Option<Response> {
        let call = match request {
            Request::Create { name, key } => {
                let post = Call::new(address, "POST", "/v1/pets").json(ledger::pet(name).to_string());
                key.iter().fold(post, |post, key| post.header("Idempotency-Key", key))
            }
            Request::List { after, limit } => {
                let begin = if *after == 0 { String::new() } else { format!("&after={after}") };
                Call::new(address, "GET", &format!("/v1/pets?limit={limit}{begin}"))
            }
        };
        let call = asked.iter().fold(call, |call, asked| call.header("Log-Position", &asked.header()));
        call.key(&self.key).try_send()
    }

    /// One of the nodes that are up. Of several nodes, each client leaves one out, so that a frozen node does not stop all
    /// clients.
    fn any(&self, client: u64, dice: &mut Chance) -> Option<usize> {
        let count = self.addresses.len();
        let left_out = |node: &usize| count > 1 && client % count as u64 == *node as u64;
        let up = |node: &usize| !left_out(node) && held(&self.addresses[*node]).is_some();
        let up: Vec<_> = (0..count).filter(up).collect();
        (!up.is_empty()).then(|| dice.pick(&up))
    }
}

/// Clients at work. Their threads end when this is dropped.
pub(crate) struct Clients {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<Operation>>>,
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
    }
}

impl Clients {
    pub(crate) fn start(nodes: &Arc<Nodes>, dice: &mut Chance) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let start = |number| {
            let (nodes, dice, stop) = (nodes.clone(), dice.fork(), stop.clone());
            let client = Client { number, nodes, dice, newest: None, operations: vec![] };
            thread::spawn(move || client.run(&stop))
        };
        let threads = (0..CLIENTS).map(start).collect();
        Self { stop, threads }
    }

    /// Stops all clients, waits for their last responses, and returns what they recorded.
    pub(crate) fn stop(mut self) -> Vec<Operation> {
        self.stop.store(true, Relaxed);
        let threads = std::mem::take(&mut self.threads);
        threads.into_iter().flat_map(|thread| thread.join().expect("no client panics")).collect()
    }
}

struct Client {
    number: u64,
    nodes: Arc<Nodes>,
    dice: Chance,
    /// The newest position in a response to this client.
    newest: Option<Position>,
    operations: Vec<Operation>,
}

impl Client {
    fn run(mut self, stop: &AtomicBool) -> Vec<Operation> {
        for count in 0_u64.. {
            if stop.load(Relaxed) {
                break;
            }
            if self.number < WRITERS && self.dice.per_mille(700) {
                self.create(format!("{}-{count}", self.number));
            } else {
                self.list();
            }
            if self.number >= WRITERS {
                thread::sleep(INTERVAL);
            }
        }
        self.operations
    }

    fn create(&mut self, name: String) {
        let key = self.dice.per_mille(600).then(|| format!("key of {name}").replace(' ', "-"));
        let request = Request::Create { name, key: key.clone() };
        if key.is_none() {
            // Without a key, a repetition could add a second pet.
            self.send(&request);
        } else if self.dice.per_mille(150) {
            self.send_twice_at_once(&request);
        } else {
            let acknowledged = (0..TRIES).any(|_| self.send(&request));
            if acknowledged && self.dice.per_mille(100) {
                self.send(&request);
            }
        }
    }

    /// Lists pets from the beginning, from the middle, or, most often, near the end.
    fn list(&mut self) {
        let last = self.nodes.last_id();
        let after = match self.dice.within(0..=9) {
            0 => 0,
            1 => self.dice.within(0..=last),
            _ => last.saturating_sub(self.dice.within(0..=10)),
        };
        let limit = self.dice.pick(&[1, 20, PAGE_MAX]);
        self.send(&Request::List { after, limit });
    }

    /// Sends a request to one of the nodes. Returns whether it was successful.
    fn send(&mut self, request: &Request) -> bool {
        let Some(node) = self.nodes.any(self.number, &mut self.dice) else {
            thread::sleep(INTERVAL);
            return false;
        };
        let asked = self.position_to_ask_for();
        let operation = self.nodes.send(node, request, asked);
        self.record(operation)
    }

    /// Sends a request with a key to two nodes, or to one node twice, at the same time.
    fn send_twice_at_once(&mut self, request: &Request) {
        let both = [self.nodes.any(self.number, &mut self.dice), self.nodes.any(self.number, &mut self.dice)];
        let [Some(first), Some(second)] = both else { return };
        let nodes = self.nodes.clone();
        let operations = thread::scope(|scope| {
            let other = scope.spawn(|| nodes.send(second, request, None));
            [nodes.send(first, request, None), other.join().expect("no client panics")]
        });
        for operation in operations {
            self.record(operation);
        }
    }

    /// Nothing, the newest position that this client has got, or the newest one of all clients.
    fn position_to_ask_for(&mut self) -> Option<Position> {
        match self.dice.within(0..=3) {
            0 => self.nodes.newest(),
            1 => self.newest.clone(),
            _ => None,
        }
    }

    fn record(&mut self, operation: Operation) -> bool {
        let newest = self.newest.take();
        self.newest = newest.max(operation.position().cloned());
        let successful = operation.position().is_some();
        self.operations.push(operation);
        if !successful {
            thread::sleep(INTERVAL);
        }
        successful
    }
}

fn outcome_of(response: &Response) -> Outcome {
    let position = || Position::of(response.header("log-position").expect("every success has a position"));
    match response.status {
        201 => {
            let replayed = response.header("idempotency-replayed").is_some();
            Outcome::Created { pet: pet_of(&response.json()), replayed, position: position() }
        }
        200 => {
            let Value::Array(pets) = response.json() else { panic!("a list is an array") };
            let after = |next: &str| next.rsplit_once("after=").and_then(|(_, after)| after.parse().ok());
            let next = response.next().map(|next| after(next).expect("the next page begins after an id"));
            Outcome::Page { pets: pets.iter().map(pet_of).collect(), next, position: position() }
        }
        other => Outcome::Rejected(other, response.json()["code"].to_string()),
    }
}

fn pet_of(shown: &Value) -> Pet {
    let id = shown["id"].as_u64().expect("ids are positive integers");
    let name = shown["name"].as_str().expect("names are text");
    let mut expected = ledger::pet(name);
    expected["id"] = json!(id);
    let name = if *shown == expected { name.to_owned() } else { shown.to_string() };
    Pet { id, name }
}

impl Position {
    fn of(header: &str) -> Self {
        let (number, hash) = header.split_once('-').unwrap_or((header, ""));
        Self { number: number.parse().expect("a position is a number"), hash: hash.to_owned() }
    }

    fn header(&self) -> String {
        let Self { number, hash } = self;
        if hash.is_empty() { number.to_string() } else { format!("{number}-{hash}") }
    }
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no client panics")
}
