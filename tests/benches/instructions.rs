//! A guard against accidents, and no goal: the cost of one request in the whole binary, counted by callgrind. Instructions
//! and allocations of a list, a get and a create over one kept-alive connection, with authentication, a rate limit and
//! metrics, on the memory engine.
//!
//! `tests/instructions` builds the program, runs this and compares the counts with `instructions.txt`. Unlike times,
//! counts are the same on a busy machine; they differ between compilers, C libraries and processors. The
//! instructions of the allocator itself are left out, because they depend on everything that was allocated
//! before; allocations are counted instead.

use std::{
    collections::HashMap,
    env, fs, iter,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use harness::{App, Connection, program, wait_until};

/// Every count is taken with so many requests and with so many more, and the difference divided by theirs: what the
/// start, the end and the connection cost then plays no part.
const REQUESTS: (usize, usize) = (300, 1_300);

/// Each run is made so many times, and the lowest counts are kept. What differs (timers, random ids that begin with
/// zeros) only adds.
const RUNS: usize = 3;

/// Enough for several pages of each status.
const PETS: usize = 120;

/// The part of a bound by which a count may rise. Smaller changes are for the benchmark to judge.
const TOLERANCE: f64 = 0.1;

/// The functions of the allocator that allocate.
const ALLOCATING: [&str; 6] =
    ["mi_malloc", "mi_malloc_aligned", "mi_zalloc", "mi_zalloc_aligned", "mi_realloc", "mi_realloc_aligned"];

/// Name, method, paths in turn, and body of each operation.
const OPERATIONS: [(&str, &str, &[&str], &str); 3] = [
    ("list", "GET", &[FIRST_PAGE, "/v1/pets?status=available&limit=20&after=1"], ""),
    ("get", "GET", &["/v1/pets/60"], ""),
    ("create", "POST", &["/v1/pets"], PET),
];
const FIRST_PAGE: &str = "/v1/pets?status=available&limit=20";

/// Set and never reached, as in the benchmark against the peers.
const FLAGS: [&str; 2] = ["--rate-limit", "1000000/s"];

const PET: &str = r#"{"name":"Rex","categoryId":7,"status":"available"}"#;

/// What one request costs.
#[derive(Debug, Clone, Copy)]
struct Cost {
    instructions: f64,
    allocations: f64,
}

fn main() -> ExitCode {
    let costs = OPERATIONS.map(|(name, method, paths, body)| (name, cost(method, paths, body)));
    // Cargo adds arguments.
    if env::args().any(|argument| argument == "--record") {
        return record(&costs);
    }
    compare(&costs, &Bounds::read())
}

fn compare(costs: &[(&str, Cost)], bounds: &Bounds) -> ExitCode {
    if bounds.compiler != compiler() {
        eprintln!(
            "the bounds are those of {}, and this is {}: run tests/instructions --record on the commit before your change",
            bounds.compiler,
            compiler()
        );
        return ExitCode::from(2);
    }
    println!("{:<8} {:>24} {:>24}", "", "instructions per request", "allocations per request");
    let mut risen = Vec::new();
    for (name, cost) in costs {
        let bound = bounds.costs[*name];
        let change = |count: f64, bound: f64| {
            let change = count / bound - 1.0;
            (change, format!("{count:.1} ({:+.2} %)", change * 100.0))
        };
        let (more_instructions, instructions) = change(cost.instructions, bound.instructions);
        let (more_allocations, allocations) = change(cost.allocations, bound.allocations);
        println!("{name:<8} {instructions:>24} {allocations:>24}");
        if more_instructions.max(more_allocations) > TOLERANCE {
            risen.push(*name);
        }
    }
    if risen.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!(
        "more than {} % above the bounds: {}; if the cost is intended, record new bounds with `tests/instructions --record`",
        TOLERANCE * 100.0,
        risen.join(", ")
    );
    ExitCode::FAILURE
}

fn record(costs: &[(&str, Cost)]) -> ExitCode {
    let head = format!("{}\n{:<8} {:>12} {:>12}\n", compiler(), "", "instructions", "allocations");
    let line = |(name, cost): &(&str, Cost)| {
        format!("{name:<8} {:>12.1} {:>12.1}\n", cost.instructions, cost.allocations)
    };
    let text: String = iter::once(head).chain(costs.iter().map(line)).collect();
    fs::write(Bounds::file(), &text).expect("the bounds can be written");
    print!("{text}");
    ExitCode::SUCCESS
}

/// The costs that are not to be exceeded, as `--record` wrote them down.
struct Bounds {
    /// Other compilers make other code.
    compiler: String,
    costs: HashMap<String, Cost>,
}

impl Bounds {
    fn file() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/instructions.txt")
    }

    fn read() -> Self {
        let text = fs::read_to_string(Self::file()).expect("the bounds are kept in the repository");
        let mut lines = text.lines();
        let compiler = lines.next().expect("the compiler comes first").to_owned();
        let cost = |line: &str| {
            let mut words = line.split_ascii_whitespace();
            let name = words.next()?.to_owned();
            let mut count = || words.next()?.parse().ok();
            Some((name, Cost { instructions: count()?, allocations: count()? }))
        };
        let costs = lines.skip(1).map(|line| cost(line).expect("name, instructions, allocations")).collect();
        Self { compiler, costs }
    }
}

fn compiler() -> String {
    let version = Command::new("rustc").arg("--version").output().expect("rustc runs").stdout;
    String::from_utf8(version).expect("a version is text").trim().to_owned()
}

fn cost(method: &str, paths: &[&str], body: &str) -> Cost {
    let (few, many) = REQUESTS;
    let least = |requests| {
        let runs = (0..RUNS).map(|_| run(method, paths, body, requests));
        runs.reduce(Counts::least).expect("there is more than one run")
    };
    let (less, more) = (least(few), least(many));
    #[expect(clippy::cast_precision_loss, reason = "counts of some seconds are far below 2^52")]
    let per_request = |less: u64, more: u64| (more - less) as f64 / (many - few) as f64;
    Cost {
        instructions: per_request(less.instructions, more.instructions),
        allocations: per_request(less.allocations, more.allocations),
    }
}

/// What callgrind counted in one thread, from the start of the program to its end.
#[derive(Debug, Clone, Copy)]
struct Counts {
    instructions: u64,
    allocations: u64,
}

/// Starts the program, adds some pets, sends so many requests one after the other, and stops the program.
fn run(method: &str, paths: &[&str], body: &str, requests: usize) -> Counts {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let profiles = directory.path().join("profiles");
    fs::create_dir(&profiles).expect("the directory is new");
    let mut app = App::stopped_on(program(), "memory:", directory, &FLAGS);
    // One thread serves every request: with two, tasks would move between them or not, as it happens. It is counted
    // apart from the others, which look after the key file every so many seconds.
    let file = format!("--callgrind-out-file={}", profiles.join("thread").display());
    let callgrind = ["valgrind", "--quiet", "--tool=callgrind", "--separate-threads=yes", &file];
    app.run_by(
        &["env", "TOKIO_WORKER_THREADS=1"]
            .into_iter()
            .chain(callgrind)
            .map(str::to_owned)
            .collect::<Vec<_>>(),
    );
    app.begin();
    app.wait_until_listening().expect("the program starts");
    // Asking the service itself would count, and the number of attempts varies.
    wait_until("the store is open", || app.printed().1.contains(" ready pets="));
    let mut client = Connection::open(app.address(), &app.key);
    let mut send = |method: &str, path: &str, body: &str| {
        let response = client.send(request(&app.key, method, path, body).as_bytes());
        response.expect("the service keeps the connection open")
    };
    for number in 0..PETS {
        let status = ["available", "pending", "sold"][number % 3];
        let pet = PET.replace("available", status);
        assert_eq!(send("POST", "/v1/pets", &pet).status, 201, "a pet is added");
    }
    for path in paths.iter().cycle().take(requests) {
        let response = send(method, path, body);
        assert!((200..300).contains(&response.status), "{method} {path}: {}", response.text());
    }
    drop(client);
    assert!(app.terminate().success(), "the service stops on a signal");
    let threads = fs::read_dir(profiles).expect("callgrind leaves its counts");
    let threads = threads.map(|file| {
        Counts::read(&fs::read_to_string(file.expect("a readable directory").path()).expect("a text"))
    });
    threads.max_by_key(|counts| counts.instructions).expect("there is a thread that serves")
}

impl Counts {
    fn least(self, other: Self) -> Self {
        Self {
            instructions: self.instructions.min(other.instructions),
            allocations: self.allocations.min(other.allocations),
        }
    }

    /// Reads callgrind's file. Functions come as `fn=(number) name`, those they call as `cfn=(number) name`, the name
    /// only the first time; then `calls=count …`, and what these calls cost is the last number of the next line.
    fn read(profile: &str) -> Self {
        let mut names = HashMap::new();
        let (mut all, mut in_the_allocator, mut allocations) = (0, 0, 0);
        let (mut inside, mut called) = ("", "");
        let mut lines = profile.lines();
        while let Some(line) = lines.next() {
            let (key, value) = line.split_once(['=', ' ']).unwrap_or_default();
            match key {
                "fn" => inside = name(&mut names, value),
                "cfn" => called = name(&mut names, value),
                "totals:" => all = number(value),
                "calls" if is_allocator(called) && !is_allocator(inside) => {
                    let cost = lines.next().and_then(|line| line.rsplit(' ').next());
                    in_the_allocator += number(cost.expect("calls have a cost"));
                    if ALLOCATING.contains(&called) {
                        allocations += value.split(' ').next().map_or(0, number);
                    }
                }
                _ => {}
            }
        }
        Self { instructions: all - in_the_allocator, allocations }
    }
}

fn is_allocator(function: &str) -> bool {
    function == "mi_free" || ALLOCATING.contains(&function)
}

/// The name of a function that is given as a number, and as a name too the first time.
fn name<'a>(names: &mut HashMap<&'a str, &'a str>, function: &'a str) -> &'a str {
    match function.split_once(' ') {
        Some((number, name)) => names.entry(number).insert_entry(name).get(),
        None => names[function],
    }
}

fn number(text: &str) -> u64 {
    text.parse().expect("callgrind counts in whole numbers")
}

fn request(key: &str, method: &str, path: &str, body: &str) -> String {
    let content = if body.is_empty() {
        String::new()
    } else {
        format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len())
    };
    format!(
        "{method} {path} HTTP/1.1\r\nhost: petstore\r\nauthorization: Bearer {key}\r\n{content}\r\n{body}"
    )
}
