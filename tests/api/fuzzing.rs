//! The service against its own document: schemathesis generates valid and invalid requests, and every
//! response must be one that the document describes.
//!
//! `TEST_FUZZ_CASES=20000 tests/run fuzzing -- --nocapture` is the long run.

use std::{fmt::Write as _, fs, thread};

use harness::{App, number, petstore, python_tool, succeed};
use serde_json::Value;

/// How many cases at least; the variable asks for more.
const CASES: usize = 2_000;
const CASES_VARIABLE: &str = "TEST_FUZZ_CASES";

/// As many runs at a time as schemathesis can use of a small machine, each with its seed.
const SEEDS: [usize; 2] = [20_301_205, 41];

/// The path that is not called: its documented response is 501.
const RESERVED: &str = "/store/orders";

#[test]
fn every_response_to_a_generated_request_is_described() {
    let cases = number(CASES_VARIABLE).unwrap_or(CASES);
    let app = App::start();
    let document: Value = serde_json::from_str(&petstore(["openapi"]).stdout).unwrap();
    let paths = document["paths"].as_object().unwrap().iter().filter(|(path, _)| *path != RESERVED);
    let operations: usize = paths.map(|(_, methods)| methods.as_object().unwrap().len()).sum();
    let run = |seed| {
        thread::spawn({
            let (url, key) = (format!("http://{}", app.address()), app.key.clone());
            move || fuzz(&url, &key, seed, cases.div_ceil(SEEDS.len() * operations))
        })
    };
    let summaries = SEEDS.map(run).map(|run| run.join().expect("schemathesis finds nothing"));
    let ran: usize = summaries.iter().map(|summary| passed(summary)).sum();
    for summary in summaries {
        println!("{}", &summary[summary.find("= SUMMARY =").unwrap_or(0)..]);
    }
    println!("{ran} cases, 0 failures");
    assert!(ran >= cases, "{ran} cases are fewer than {cases}");
}

/// Runs schemathesis, and returns what it printed. Any finding fails the test with its words.
fn fuzz(url: &str, key: &str, seed: usize, examples: usize) -> String {
    let directory = tempfile::tempdir().unwrap();
    let settings = directory.path().join("schemathesis.toml");
    fs::write(&settings, settings_for(examples)).unwrap();
    let schemathesis = &mut python_tool("schemathesis");
    schemathesis
        .current_dir(directory.path())
        .arg("--config-file")
        .arg(&settings)
        .args(["run", &format!("{url}/openapi.json"), "--url", &format!("{url}/v1")])
        .args(["--header", &format!("Authorization: Bearer {key}")])
        .args(["--checks", "all", "--exclude-path", RESERVED, "--no-color"])
        .args(["--seed", &seed.to_string(), "--max-examples", &examples.to_string()]);
    succeed(schemathesis)
}

/// Walks through several operations cost more than single calls, so they are fewer.
fn settings_for(examples: usize) -> String {
    // A valid request with an `Idempotency-Key` of another pet gets 422.
    let mut settings = String::from(
        "continue-on-failure = true\n[checks.positive_data_acceptance]\nexpected-statuses = [\"2xx\", \"304\", \"404\", \"412\", \"422\"]\n",
    );
    write!(settings, "[phases.stateful.generation]\nmax-examples = {}\n", examples.div_ceil(20)).unwrap();
    settings
}

/// How many cases the summary counts, all of them passed.
fn passed(summary: &str) -> usize {
    let line = summary.lines().find(|line| line.contains(" generated, ")).expect("the cases are counted");
    let number = |text: &str| text.trim().split(' ').next().unwrap().parse::<usize>().unwrap();
    let mut counts = line.split(',');
    let (generated, passed) = (number(counts.next().unwrap()), number(counts.next().unwrap()));
    assert_eq!(generated, passed, "{summary}");
    passed
}
