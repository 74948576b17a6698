//! The bill of materials that `docs/deploy/sbom` prints.

use std::process::Command;

use harness::{root, succeed};
use serde_json::Value;

#[test]
fn it_names_what_is_compiled_in_and_nothing_else() {
    let bill: Value =
        serde_json::from_str(&succeed(&mut Command::new(root().join("docs/deploy/sbom")))).unwrap();
    let components = bill["components"].as_array().unwrap();
    let names: Vec<_> = components.iter().map(|component| component["name"].as_str().unwrap()).collect();
    for (name, expected) in
        [("sled", true), ("axum", true), ("domain", true), ("proptest", false), ("cc", false)]
    {
        assert_eq!(names.contains(&name), expected, "{name}");
    }
    for component in components {
        assert!(component["licenses"][0]["expression"].is_string(), "{component}");
        assert!(
            component["hashes"][0]["content"].is_string() == component["purl"].is_string(),
            "{component}"
        );
    }
}
