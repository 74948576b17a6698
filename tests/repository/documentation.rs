//! README and docs name only what exists: files, functions, headings, tests.

use std::{
    fs,
    path::{Path, PathBuf},
};

use harness::{files_below, root};

/// Directories whose files the documentation refers to.
const DIRECTORIES: [&str; 6] = ["domain", "application", "adapters", "bin", "tests", "docs"];

/// A page of the documentation.
struct Page {
    path: PathBuf,
    text: String,
}

impl Page {
    fn read(path: PathBuf) -> Self {
        let text = fs::read_to_string(&path).unwrap();
        Self { path, text }
    }

    /// The page without its code blocks.
    fn prose(&self) -> String {
        let mut in_code = false;
        let outside = |line: &&str| {
            let is_fence = line.trim_start().starts_with("```");
            in_code ^= is_fence;
            !in_code && !is_fence
        };
        self.text.lines().filter(outside).collect::<Vec<_>>().join("\n")
    }

    /// The anchors that other pages can link to.
    fn anchors(&self) -> Vec<String> {
        let prose = self.prose();
        let headings = prose.lines().filter(|line| line.starts_with('#'));
        let anchor = |heading: &str| {
            let words = heading.trim_start_matches('#').trim().to_lowercase();
            words.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).collect::<String>()
        };
        headings.map(|heading| anchor(heading).replace(' ', "-")).collect()
    }
}

#[test]
fn no_file_contains_the_markers_of_a_merge() {
    let texts = files().into_iter().chain(pages().into_iter().map(|page| page.path));
    let texts = texts.filter_map(|path| Some((fs::read_to_string(&path).ok()?, path)));
    let is_marker = |line: &str| line.starts_with("<<<<<<< ") || line.starts_with(">>>>>>> ");
    let marked: Vec<_> =
        texts.filter(|(text, _)| text.lines().any(is_marker)).map(|(_, path)| path).collect();
    assert!(marked.is_empty(), "{marked:?}");
}

/// The pages in the root directory and everywhere below `docs`.
fn pages() -> Vec<Page> {
    let in_root = fs::read_dir(root()).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = in_root.chain(files_below(&root().join("docs"))).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    paths.into_iter().map(Page::read).collect()
}

/// Every file that a page can refer to.
fn files() -> Vec<PathBuf> {
    DIRECTORIES.iter().flat_map(|directory| files_below(&root().join(directory))).collect()
}

/// What stands between backticks.
fn code_spans(prose: &str) -> impl Iterator<Item = &str> {
    prose.split('`').skip(1).step_by(2)
}

/// Whether this is a path in the repository, or the end of one, rather than a command or a pattern.
fn is_path(code: &str) -> bool {
    let plain = code.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c));
    let in_a_directory = DIRECTORIES
        .iter()
        .any(|directory| code.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/')));
    let is_source = Path::new(code).extension().is_some_and(|extension| extension == "rs");
    plain && (in_a_directory || is_source)
}

/// The tests that commands in the documentation select by name.
pub(super) fn test_filters() -> Vec<String> {
    let commands = ["tests/run ", "cargo test -p tests -- "];
    let is_filter = |word: &&str| word.chars().all(|c| c.is_ascii_alphanumeric() || "_:".contains(c));
    let mut filters = Vec::new();
    for prose in pages().iter().map(Page::prose) {
        for command in
            code_spans(&prose).filter_map(|code| commands.iter().find_map(|run| code.split_once(run)))
        {
            filters.extend(command.1.split(' ').filter(is_filter).map(str::to_owned));
        }
    }
    filters
}

#[test]
fn every_file_and_function_that_the_documentation_names_exists() {
    let files = files();
    for page in pages() {
        for code in code_spans(&page.prose()) {
            let (path, function) = code.split_once("::").unwrap_or((code, ""));
            if !is_path(path) {
                continue;
            }
            let place = page.path.display();
            let mut named = files.iter().filter(|file| file.ends_with(path)).peekable();
            assert!(named.peek().is_some() || root().join(path).is_dir(), "{place} names {code}");
            let defines =
                |file: &PathBuf| fs::read_to_string(file).unwrap().contains(&format!("fn {function}"));
            assert!(function.is_empty() || named.any(defines), "{place} names {code}");
        }
    }
}

#[test]
fn every_link_in_the_documentation_leads_somewhere() {
    for page in pages() {
        let prose = page.prose();
        let targets = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|target| !target.starts_with("http")) {
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = if path.is_empty() { page.path.clone() } else { page.path.with_file_name(path) };
            assert!(file.exists(), "{} links to {target}", page.path.display());
            let found = anchor.is_empty() || Page::read(file).anchors().iter().any(|known| known == anchor);
            assert!(found, "{} links to {target}", page.path.display());
        }
    }
}

/// Every block of Rust on the page on storage adapters is a part of a file that is compiled, whatever its indentation.
#[test]
fn the_page_on_storage_adapters_shows_code_that_is_compiled() {
    let page = fs::read_to_string(root().join("docs/storage-adapters.md")).unwrap();
    let plain = |text: &str| text.split_whitespace().collect::<String>();
    let files =
        files().into_iter().filter(|file| file.extension().is_some_and(|extension| extension == "rs"));
    let compiled: Vec<_> = files.map(|file| plain(&fs::read_to_string(file).unwrap())).collect();
    let blocks: Vec<_> =
        page.split("```rust").skip(1).map(|block| block.split("```").next().unwrap()).collect();
    assert!(blocks.len() >= 3);
    for block in blocks {
        assert!(compiled.iter().any(|file| file.contains(&plain(block))), "no source contains{block}");
    }
}

/// The rows of every table with this header.
fn rows<'a>(prose: &'a str, header: &str) -> Vec<&'a str> {
    let tables = prose.split(header).skip(1);
    tables.flat_map(|table| table.lines().skip(2).take_while(|line| line.starts_with('|'))).collect()
}

#[test]
fn every_guarantee_and_every_defence_names_files_with_tests() {
    for (page, header, range) in [
        ("README.md", "| guarantee |", 3..=3),
        ("docs/guarantees.md", "| guarantee |", 40..=100),
        ("docs/security.md", "| risk | what petstore does |", 10..=10),
        ("docs/security.md", "| threat | what petstore does |", 5..=20),
    ] {
        let prose = Page::read(root().join(page)).prose();
        let rows = rows(&prose, &format!("{header} tested by |"));
        assert!(range.contains(&rows.len()), "{page} has {} rows after {header}", rows.len());
        for row in rows {
            let tests = row.trim_end_matches(['|', ' ']).rsplit('|').next().unwrap();
            let paths: Vec<_> =
                code_spans(tests).filter(|code| is_path(code)).map(|path| root().join(path)).collect();
            assert!(!paths.is_empty(), "{row}");
            for path in paths.iter().filter(|path| path.extension().is_some()) {
                let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{row}: {error}"));
                assert!(text.contains("test]") || text.contains("mod "), "{row}");
            }
        }
    }
}

/// The lines of a file and of the modules below it, without tests.
fn lines_of(module: &str) -> usize {
    let (file, directory) = (root().join(module), root().join(module.trim_end_matches(".rs")));
    let below = if directory.is_dir() { files_below(&directory) } else { vec![] };
    let sources = below.into_iter().filter(|path| {
        let is_test = path.components().any(|part| {
            ["contract", "contract.rs", "tests", "tests.rs"].iter().any(|name| part.as_os_str() == *name)
        });
        path.extension().is_some_and(|extension| extension == "rs") && !is_test
    });
    let shipped = |path: PathBuf| {
        let text = fs::read_to_string(path).unwrap();
        text.split("\n#[cfg(test)]\nmod tests {").next().unwrap().lines().count()
    };
    sources.chain([file]).map(shipped).sum()
}

#[test]
fn the_lines_behind_each_promise_are_counted() {
    let page = Page::read(root().join("docs/event-sourcing.md")).prose();
    let rows = rows(&page, "| promise | code | lines |");
    assert!(rows.len() > 10);
    for row in rows {
        let columns: Vec<_> = row.split('|').map(str::trim).collect();
        let counted: usize = code_spans(columns[2]).map(lines_of).sum();
        let shown: usize = columns[3].replace(',', "").parse().unwrap();
        assert!(shown.abs_diff(counted) * 10 <= counted, "{counted} lines: {row}");
    }
    assert!(page.contains(&format!("in {} lines", lines_of("bin/examples/one_file.rs"))));
}

/// The messages in the first column, where `…` stands for a value. The system's own words are in the second column.
#[test]
fn every_message_on_the_troubleshooting_page_is_in_the_sources() {
    let page = Page::read(root().join("docs/troubleshooting.md")).prose();
    let sources = ["application", "adapters", "bin"].map(|package| files_below(&root().join(package)));
    let sources: String = sources.iter().flatten().filter_map(|file| fs::read_to_string(file).ok()).collect();
    let plain =
        |text: &str| text.split_whitespace().filter(|word| *word != "\\").collect::<Vec<_>>().join(" ");
    let sources = plain(&sources);
    let mut messages = 0;
    for row in page.lines().filter(|line| line.starts_with("| ")) {
        let symptom = row.split('|').nth(1).unwrap();
        for message in code_spans(symptom).filter(|message| !message.starts_with('/')) {
            messages += 1;
            for part in message.split('…') {
                assert!(sources.contains(part.trim()), "no source contains {part:?} of {message:?}");
            }
        }
    }
    assert!(messages > 25, "{messages}");
}
