//! The architecture, checked on the sources: dependencies point inward, and adapter modules do not use each
//! other.

use std::{
    fs,
    path::{Path, PathBuf},
};

use harness::{files_below, root};

/// Every Rust file below a directory, with its text.
fn sources(directory: &str) -> Vec<(PathBuf, String)> {
    let mut files = files_below(&root().join(directory));
    files.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    assert!(!files.is_empty(), "{directory} has sources");
    files.into_iter().map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

/// The crates that a crate needs at run time, from its manifest. Optional ones belong to features, which the bill of
/// materials covers.
fn dependencies(directory: &str) -> Vec<String> {
    let manifest = fs::read_to_string(root().join(directory).join("Cargo.toml")).unwrap();
    let section = manifest.split("\n[dependencies]\n").nth(1).expect("a section of dependencies");
    let lines = section.lines().take_while(|line| !line.starts_with('['));
    lines
        .filter(|line| !line.contains("optional = true"))
        .filter_map(|line| line.split(['.', ' ', '=']).next())
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_domain_depends_on_nothing_but_thiserror() {
    assert_eq!(dependencies("domain"), ["thiserror"]);
}

#[test]
fn dependencies_point_inward() {
    let ours = |directory| {
        let mut ours: Vec<_> = dependencies(directory);
        ours.retain(|name| ["domain", "application", "adapters", "bin"].contains(&name.as_str()));
        ours
    };
    assert_eq!(ours("application"), ["domain"]);
    assert_eq!(ours("adapters"), ["domain", "application"]);
    assert_eq!(ours("bin"), ["domain", "application", "adapters"]);
}

#[test]
fn the_application_depends_only_on_the_domain_the_runtime_and_small_data_crates() {
    let ours =
        "domain async-trait bytes chrono crc32c data-encoding parking_lot ring serde serde_json thiserror";
    let allowed: Vec<_> = ours.split(' ').chain(["tokio", "tokio-util", "tracing", "uuid"]).collect();
    for name in dependencies("application") {
        assert!(allowed.contains(&name.as_str()), "application depends on {name}");
    }
}

/// The module a file of `adapters` belongs to: each engine is a module.
fn module_of(path: &Path) -> String {
    let relative = path.strip_prefix(root().join("adapters/src")).unwrap().with_extension("");
    let mut parts = relative.iter().map(|part| part.to_str().unwrap());
    match (parts.next().unwrap(), parts.next()) {
        ("event_log", Some(engine)) => format!("event_log::{engine}"),
        (module, _) => module.to_owned(),
    }
}

/// Every path in the `use` declarations of a file that begins in this crate, written out and from its root.
fn used_paths(path: &Path, text: &str) -> Vec<String> {
    let file = path.strip_prefix(root().join("adapters/src")).unwrap().with_extension("");
    let parents: Vec<_> = file.iter().map(|part| part.to_str().unwrap()).collect();
    let declarations = text.split("use ").skip(1).filter_map(|rest| rest.split_once(';'));
    let trees = declarations.map(|(tree, _)| tree.split_whitespace().collect::<String>());
    let paths = trees.flat_map(|tree| written_out("", &tree));
    let from_root = paths.filter_map(|used| {
        let mut parts: Vec<_> = used.split("::").collect();
        let supers = parts.iter().take_while(|part| **part == "super").count();
        if supers > 0 {
            let above =
                ["crate"].into_iter().chain(parents[..parents.len().checked_sub(supers)?].iter().copied());
            parts.splice(..supers, above);
        }
        Some(parts.join("::")).filter(|used| used.starts_with("crate::"))
    });
    from_root.collect()
}

/// The paths of a `use` tree without white space.
fn written_out(prefix: &str, tree: &str) -> Vec<String> {
    let Some((head, rest)) = tree.split_once('{') else { return vec![format!("{prefix}{tree}")] };
    let mut depth = 0;
    let members = rest.strip_suffix('}').unwrap_or(rest).split(|sign| {
        match sign {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        sign == ',' && depth == 0
    });
    let prefix = format!("{prefix}{head}");
    members.filter(|member| !member.is_empty()).flat_map(|member| written_out(&prefix, member)).collect()
}

#[test]
fn a_module_in_a_group_is_seen_as_used() {
    let text = "use super::{\n    copy,\n    super::{memory::{MemoryLog, Other}, sled},\n};\nuse std::fs;\nuse crate::{http::x, event_log::{nats, sqlite::Sqlite}};";
    let file = root().join("adapters/src/event_log/remote/stream.rs");
    assert_eq!(
        used_paths(&file, text),
        [
            "crate::event_log::remote::copy",
            "crate::event_log::memory::MemoryLog",
            "crate::event_log::memory::Other",
            "crate::event_log::sled",
            "crate::http::x",
            "crate::event_log::nats",
            "crate::event_log::sqlite::Sqlite",
        ]
    );
}

#[test]
fn adapter_modules_never_use_each_other() {
    // Leaves that several adapters use and that use only leaves themselves, and parts that engines share.
    let leaves = ["access", "log_once", "loopback", "private_files", "root_certificates", "service_client"];
    let engine_parts = ["event_log::announced", "event_log::embedded"];
    let shared = [&leaves[..], &engine_parts[..]].concat();
    let files = sources("adapters/src");
    let mut modules: Vec<_> = files.iter().map(|(path, _)| module_of(path)).collect();
    modules.retain(|module| module != "lib" && module != "event_log");
    modules.sort();
    modules.dedup();
    for (path, text) in &files {
        let own = module_of(path);
        let allowed = if leaves.contains(&own.as_str()) { &leaves[..] } else { &shared[..] };
        let used = used_paths(path, text);
        for other in modules.iter().filter(|other| **other != own && !allowed.contains(&other.as_str())) {
            let other = format!("crate::{other}");
            let is_used = text.contains(&other)
                || used.iter().any(|used| {
                    used.strip_prefix(&other).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
                });
            assert!(!is_used, "{} uses {other}", path.display());
        }
    }
}

#[test]
fn only_the_engine_table_names_engines_and_only_the_wiring_other_adapters() {
    let in_file = |path: &Path, name| path.ends_with(Path::new("bin/src").join(name));
    for (path, text) in sources("bin/src") {
        let engines = ["Sled", "Sqlite", "MemoryLog", "PostgresLog", "NatsLog", "ObjectLog"];
        for concrete in engines.iter().filter(|_| !in_file(&path, "engines.rs")) {
            assert!(!text.contains(concrete), "{} names {concrete}", path.display());
        }
        let others = ["MemoryReadModel", "SystemClock", "RemoteLog"];
        for concrete in others.iter().filter(|_| !in_file(&path, "wire.rs")) {
            assert!(!text.contains(concrete), "{} names {concrete}", path.display());
        }
    }
}

#[test]
fn only_the_binary_knows_its_flags() {
    for (path, text) in ["domain/src", "application/src", "adapters/src"].into_iter().flat_map(sources) {
        if path.iter().any(|part| part == "tests") {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            let words = line.split(|c: char| c.is_whitespace() || "\"`(".contains(c));
            let flag = words.filter_map(|word| word.strip_prefix("--"));
            let flag = flag.into_iter().find(|flag| flag.starts_with(|c: char| c.is_ascii_lowercase()));
            assert_eq!(flag, None, "{}:{}", path.display(), number + 1);
        }
    }
}

#[test]
fn no_file_is_longer_than_600_lines() {
    for directory in ["domain", "application", "adapters", "bin", "tests"] {
        for (path, text) in sources(directory) {
            assert!(text.lines().count() <= 600, "{} has {} lines", path.display(), text.lines().count());
        }
    }
}

#[test]
fn every_file_says_what_it_is_for() {
    for directory in ["domain/src", "application/src", "adapters/src", "bin/src", "tests"] {
        for (path, text) in sources(directory) {
            assert!(text.starts_with("//!"), "{} opens without //!", path.display());
        }
    }
}
