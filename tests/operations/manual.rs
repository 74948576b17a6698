//! Manual pages and completion scripts: made from the arguments themselves, so they name every command and flag.

use std::{
    fs,
    process::{Command, Stdio},
};

use harness::{petstore, program, succeed};

#[test]
fn every_command_has_a_manual_page() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    // What the environment holds while the pages are made must not end up in them.
    succeed(
        Command::new(program())
            .args(["man", "--dir", path])
            .env("PETSTORE_STORE", "nats://me:s3cret@host:4222/PETS"),
    );
    let mut pages: Vec<_> =
        fs::read_dir(path).unwrap().map(|page| page.unwrap().file_name().into_string().unwrap()).collect();
    pages.sort();
    for page in ["petstore.1", "petstore-serve.1", "petstore-log-verify.1", "petstore-keys-issue.1"] {
        assert!(pages.contains(&page.to_owned()), "{page} in {pages:?}");
    }
    for page in &pages {
        let text = fs::read_to_string(directory.path().join(page)).unwrap();
        assert!(!text.contains("s3cret"), "{page}");
        // The formatter warns about markup that it does not understand.
        let formatted = Command::new("man")
            .args(["--warnings", "--encoding=UTF-8", "--local-file"])
            .arg(directory.path().join(page))
            .env("MANWIDTH", "100")
            .output()
            .expect("man runs: tests/run installs it");
        assert!(formatted.status.success(), "{formatted:?}");
        assert_eq!(String::from_utf8_lossy(&formatted.stderr), "", "{page}");
        let shown = String::from_utf8_lossy(&formatted.stdout);
        let command = page.trim_end_matches(".1");
        assert!(shown.contains("NAME") && shown.contains(command), "{page}: {shown}");
    }
    assert_eq!(petstore(["man"]).stdout, fs::read_to_string(directory.path().join("petstore.1")).unwrap());
}

#[test]
fn bash_completes_commands_and_flags() {
    let complete = "source /dev/stdin
        COMP_WORDS=(petstore log v) COMP_CWORD=2; _petstore petstore v log; echo \"${COMPREPLY[*]}\"
        COMP_WORDS=(petstore serve --dr) COMP_CWORD=2; _petstore petstore --dr serve; echo \"${COMPREPLY[*]}\"";
    let mut bash = Command::new("bash")
        .args(["--norc", "-c", complete])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let script = petstore(["completions", "bash"]).exits_with(0);
    std::io::Write::write_all(&mut bash.stdin.take().unwrap(), script.stdout.as_bytes()).unwrap();
    let completed = bash.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(completed.stdout).unwrap(), "verify\n--drain-delay --drain\n");
}

#[test]
fn other_shells_get_a_script_too() {
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        petstore(["completions", shell]).exits_with(0).prints("require-durability");
    }
    assert_eq!(petstore(["completions", "tea"]).code, Some(2));
}
