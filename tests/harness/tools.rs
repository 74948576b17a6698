//! Strangers' programs that judge or use the service. `tests/run` installs them under `target/tools`.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

/// A program of the Python environment.
pub fn python_tool(name: &str) -> Command {
    let path = root().join("target/tools/python/bin").join(name);
    assert!(path.exists(), "{} is missing: tests/run installs it", path.display());
    let mut command = Command::new(path);
    command.env("PYTHONDONTWRITEBYTECODE", "1").env("PYTHONIOENCODING", "utf-8");
    command
}

/// A file of an npm package.
pub fn node_module(file: &str) -> PathBuf {
    let path = root().join("target/tools/node/node_modules").join(file);
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

/// The folder of the workspace.
pub fn root() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().expect("the workspace is the parent").to_path_buf()
}
