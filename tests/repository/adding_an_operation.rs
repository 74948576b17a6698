//! The worked example of `docs/adding-an-operation.md`: its patch still applies to the sources, and the page
//! explains every file that the patch changes. `tests/adding-an-operation` builds and tests it.

use std::fs;

use harness::root;

use super::test_lists::assert_applies;

const PATCH: &str = "docs/adding-an-operation.patch";

#[test]
fn the_example_operation_applies_to_the_sources() {
    assert_applies(&root().join(PATCH));
}

#[test]
fn the_page_explains_every_file_that_the_example_changes() {
    let patch = fs::read_to_string(root().join(PATCH)).unwrap();
    let page = fs::read_to_string(root().join("docs/adding-an-operation.md")).unwrap();
    let changed: Vec<_> = patch.lines().filter_map(|line| line.strip_prefix("+++ b/")).collect();
    assert!(changed.len() > 20, "the example goes through every crate: {changed:?}");
    for file in changed {
        assert!(page.contains(file), "the page does not mention {file}");
    }
}
