//! The terminal session in the README is a real one: its commands are run, and print what the page shows.
//!
//! `TEST_UPDATE_README=1 tests/run repository::readme` runs the commands and rewrites their output.

use std::{env, fs, process::Command};

use harness::{free_port, program, root, succeed};
use regex::Regex;

const DOCUMENTED: &str = "127.0.0.1:8080";
/// The program of a reader. Here it is on the path.
const BUILT: &str = "target/release/petstore";

#[test]
fn the_session_in_the_readme_prints_what_the_page_shows() {
    let path = root().join("README.md");
    let readme = fs::read_to_string(&path).unwrap();
    let (before, rest) = readme.split_once("```console\n").expect("a session");
    let (shown, after) = rest.split_once("```").expect("the end of the session");
    let printed = run(&shown.lines().filter_map(|line| line.strip_prefix("$ ")).collect::<Vec<_>>());
    if env::var_os("TEST_UPDATE_README").is_some() {
        fs::write(&path, format!("{before}```console\n{printed}```{after}")).unwrap();
        return;
    }
    assert_eq!(without_chance(&printed), without_chance(shown));
}

/// Runs the commands in one shell and returns them with their output. Like a reader, it waits until a service that it has
/// started is ready, and until one that it has killed has ended.
fn run(commands: &[&str]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let address = format!("127.0.0.1:{}", free_port());
    let ready = format!(
        "timeout 60 bash -c 'until petstore health http://{address}; do sleep 0.1; done' >/dev/null 2>&1"
    );
    let lines = commands.iter().map(|command| {
        let wait = match command {
            start if start.ends_with('&') => &ready,
            kill if kill.starts_with("kill ") => "wait || true",
            _ => "",
        };
        let command = command.replace(DOCUMENTED, &address).replace(BUILT, "petstore");
        format!("{command}\n{wait}\nprintf '\\0'\n")
    });
    let script = format!("set -e\ntrap 'kill -9 $(jobs -p) || true' EXIT\n{}", lines.collect::<String>());
    let tools = program().parent().expect("the program is in a directory").display();
    let path = format!("{tools}:{}", env::var("PATH").unwrap_or_default());
    let mut bash = Command::new("bash");
    bash.args(["-c", &script]).env("PATH", path).env("PETSTORE_LISTEN", &address);
    let printed = succeed(bash.current_dir(directory.path()));
    let lines = commands.iter().zip(printed.split('\0')).map(|(command, output)| {
        let end = if output.is_empty() || output.ends_with('\n') { "" } else { "\n" };
        format!("$ {command}\n{}{end}", output.replace(&address, DOCUMENTED))
    });
    lines.collect()
}

/// The text without times and random owners.
fn without_chance(text: &str) -> String {
    let values = Regex::new("[-0-9T:.]{23}Z  [0-9a-f]{12}").unwrap();
    values.replace_all(text, "…").into_owned()
}
