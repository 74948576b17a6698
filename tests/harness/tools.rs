//! Third-party programs that check or use the service. `tests/run` installs them in the target directory.

use std::{
    env,
    fs::File,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Output},
};

use rustix::process::{getpriority_process, setpriority_process};

/// The niceness of servers, if this user may choose it.
const SERVER_NICENESS: i32 = -10;

/// A program of the Python environment.
pub fn python_tool(name: &str) -> Command {
    let path = tools().join("python/bin").join(name);
    assert!(path.exists(), "{} is missing: tests/run installs it", path.display());
    let mut command = Command::new(path);
    command.env("PYTHONDONTWRITEBYTECODE", "1").env("PYTHONIOENCODING", "utf-8");
    command
}

/// A file of an npm package.
pub fn node_module(file: &str) -> PathBuf {
    let path = tools().join("node/node_modules").join(file);
    assert!(path.exists(), "{} is missing: tests/run installs it", path.display());
    path
}

/// Runs a command to its end, and returns what it printed. Anything but success fails the test with its words.
pub fn succeed(command: &mut Command) -> String {
    let Output { status, stdout, stderr } =
        command.output().unwrap_or_else(|error| panic!("{command:?} runs: {error}; tests/run installs it"));
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?} ended with {status}\n{stdout}\n{stderr}");
    stdout.into_owned()
}

/// Starts a server that petstore expects to respond within three seconds. On a busy machine, it is to get its processor time
/// before the many tests.
pub(crate) fn spawn_server(command: &mut Command) -> io::Result<Child> {
    let usual = getpriority_process(None)?;
    // The new process inherits the niceness of this thread. Only root may lower it.
    let raised = setpriority_process(None, SERVER_NICENESS);
    let server = command.spawn();
    if raised.is_ok() {
        setpriority_process(None, usual)?;
    }
    server
}

/// The start of a command that runs a program with a wrong clock; these variables of libfaketime say how wrong. Timers are
/// not affected.
pub fn with_wrong_clock(variables: &[String]) -> Vec<String> {
    let library = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"]
        .map(|directory| format!("{directory}/faketime/libfaketimeMT.so.1"))
        .into_iter()
        .find(|path| Path::new(path).exists())
        .expect("the package faketime is installed");
    let settings = [format!("LD_PRELOAD={library}"), "FAKETIME_DONT_FAKE_MONOTONIC=1".into()];
    ["env".into()].into_iter().chain(settings).chain(variables.iter().cloned()).collect()
}

/// The directory with the tools that `tests/run` has installed.
pub fn tools() -> PathBuf {
    target().join("tools")
}

/// The target directory of cargo.
fn target() -> PathBuf {
    root().join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// The directory of the workspace.
pub fn root() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().expect("the workspace is the parent").to_path_buf()
}

/// Every file below a directory.
pub fn files_below(directory: &Path) -> Vec<PathBuf> {
    let entries = directory.read_dir().unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let paths = entries.map(|entry| entry.expect("a directory can be listed").path());
    paths.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

/// Says loudly that this machine cannot run a test. In CI that is a failure.
pub fn not_run(name: &str, reason: &str) {
    assert!(!env::var("CI").is_ok_and(|ci| ci == "true"), "{name} must run here, but {reason}");
    tell(&format!("\n{name}: NOT RUN, {reason}\n"));
    let list = File::options().create(true).append(true).open(target().join("tmp/not-run"));
    // `tests/run` repeats the list at the end; a run of one test shows the line above.
    let _ = list.and_then(|mut list| writeln!(list, "{name}: {reason}"));
}

/// Writes to standard error past the test runner, which hides the output of a passing test.
pub fn tell(text: &str) {
    let mut stderr = io::stderr().lock();
    // Standard error may be closed; the assertions count.
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}
