//! What fuzzing has found to reach new code, tried again. `tests/fuzz-parsers` looks for more.

use std::fs;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use harness::root;

#[path = "../fuzz/targets.rs"]
mod targets;

/// Every corpus is a text file, one input per line in base64.
#[test]
fn every_parser_keeps_its_word_on_the_kept_inputs() {
    for (name, target) in targets::TARGETS {
        let file = root().join("tests/fuzz/corpus").join(name);
        let corpus = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let inputs: Vec<_> = corpus.lines().map(|line| BASE64_STANDARD.decode(line).unwrap()).collect();
        assert!(!inputs.is_empty(), "{name} has no inputs");
        for input in inputs {
            target(&input);
        }
    }
}
