//! Phrases to avoid in documentation, comments and string literals, each with its replacement.

use std::{fs, path::Path};

use harness::{files_below, root};

/// Forms of a phrase in lower case, and what to write instead.
const AVOID: [(&str, &str); 24] = [
    ("all the same", "still"),
    ("anew", "again"),
    ("answer|answers|answered|answering", "response, reply, responds, acknowledged, served"),
    ("anybody|everybody|nobody|somebody|whoever", "the actor: a client, an operator, a user"),
    ("beside", "next to"),
    ("by itself|by themselves", "automatically"),
    ("folder|folders", "directory"),
    ("for ever|for good", "permanently"),
    ("go on|goes on|went on", "continue"),
    ("has news", "has changed"),
    ("in force", "active"),
    ("in vain", "without success"),
    ("meanwhile", "a clause with \"while\""),
    ("of its own|of their own", "its, their, separate, new"),
    ("of our own", "of petstore"),
    ("one more is", "further ones are"),
    ("one too many", "over the limit"),
    ("operators' listener", "admin listener"),
    ("patience", "timeout"),
    ("pause|pauses", "delay, interval"),
    ("refusal|refusals", "rejection"),
    ("refuse|refuses|refused", "reject"),
    ("stranger|strangers", "unauthenticated client"),
    ("told", "the event: gets, is notified"),
];

/// A file, a phrase that it may contain, and the reason.
const EXCEPTIONS: [(&str, &str, &str); 5] = [
    ("CONTRIBUTING.md", "nobody", "an example of what to avoid"),
    ("CONTRIBUTING.md", "one more is", "an example of what to avoid"),
    ("CONTRIBUTING.md", "told", "an example of what to avoid"),
    ("tests/harness/postgres.rs", "nobody", "a user of the operating system"),
    ("tests/pages/admin.rs", "pause", "a button"),
];

#[test]
fn no_text_contains_a_phrase_to_avoid() {
    let mut found = Vec::new();
    for path in ["adapters", "application", "bin", "docs", "domain", "tests"]
        .iter()
        .flat_map(|directory| files_below(&root().join(directory)))
        .chain(["CHANGELOG.md", "CONTRIBUTING.md", "README.md", "SECURITY.md"].map(|file| root().join(file)))
        .filter(|path| !path.ends_with(file!()))
    {
        let Some(text) = text_of(&path) else { continue };
        for (forms, replacement) in AVOID {
            for phrase in forms.split('|').filter(|phrase| contains(&text, phrase)) {
                let is_known =
                    |(file, known, _): &(&str, &str, &str)| path == root().join(file) && *known == phrase;
                if !EXCEPTIONS.iter().any(is_known) {
                    found.push(format!("{}: \"{phrase}\"; write: {replacement}", path.display()));
                }
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn every_exception_is_needed() {
    for (file, phrase, reason) in EXCEPTIONS {
        let text = text_of(&root().join(file)).expect("the file has text");
        assert!(contains(&text, phrase), "{file} does not contain \"{phrase}\" ({reason})");
    }
}

/// The text of a document, or the comments and string literals of a source file, in lower case and with single spaces.
fn text_of(path: &Path) -> Option<String> {
    let text = match path.extension()?.to_str()? {
        "md" => fs::read_to_string(path).unwrap(),
        "rs" => comments_and_strings(&fs::read_to_string(path).unwrap()),
        _ => return None,
    };
    Some(text.to_lowercase().split_whitespace().collect::<Vec<_>>().join(" "))
}

fn comments_and_strings(source: &str) -> String {
    let mut found = String::new();
    let mut in_string = false;
    for line in source.replace("'\"'", "''").lines() {
        let mut rest = line.trim_start();
        while !rest.is_empty() {
            let (part, after) = rest.split_at(rest.find(['"', '/']).unwrap_or(rest.len()));
            if in_string {
                found.push_str(part);
            }
            if !in_string && after.starts_with("//") {
                found.push_str(after.trim_start_matches(['/', '!']));
                break;
            }
            if after.starts_with('"') && !(in_string && part.ends_with('\\')) {
                in_string = !in_string;
                found.push(' ');
            }
            rest = after.get(1..).unwrap_or_default();
        }
        found.push(' ');
    }
    found
}

/// Whether the text contains the phrase as whole words. An underscore is part of a word, so names of tests and metrics
/// do not count.
fn contains(text: &str, phrase: &str) -> bool {
    let is_word = |character: char| character.is_alphanumeric() || character == '_';
    text.match_indices(phrase).any(|(start, _)| {
        !text[..start].ends_with(is_word) && !text[start + phrase.len()..].starts_with(is_word)
    })
}
