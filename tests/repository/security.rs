//! The tests for each risk and threat that `docs/security.md` names.

use std::fs;

use harness::root;

use super::documentation::{Page, rows};

/// How a row of the page begins, and tests of what it says.
const TESTS: [(&str, &[&str]); 17] = [
    (
        "API1",
        &[
            "api/authentication.rs::a_key_may_do_what_its_scopes_say",
            "api/idempotency.rs::keys_of_different_callers_are_independent",
        ],
    ),
    (
        "API2",
        &[
            "api/authentication.rs::only_a_single_bearer_key_is_accepted",
            "api/authentication.rs::a_revoked_key_stops_working_and_a_new_one_works_without_a_restart",
            "api/authentication.rs::a_key_that_expires_on_an_open_connection_is_rejected_there",
            "api/authentication.rs::the_key_file_holds_no_key_and_is_private",
            "operations/request_log.rs::every_kind_of_rejection_is_logged_and_the_client_does_not_learn_the_reason",
            "api/limits.rs::ten_thousand_wrong_keys_are_limited_and_good_keys_are_not_affected",
        ],
    ),
    (
        "API3",
        &[
            "api/create_pet.rs::unknown_fields_are_ignored",
            "api/create_pet.rs::invalid_bodies_are_rejected_and_change_nothing",
            "api/openapi.rs::every_kind_of_response_is_described",
        ],
    ),
    (
        "API4",
        &[
            "api/raw.rs::request_heads_have_a_size_limit",
            "api/create_pet.rs::a_body_may_have_at_most_64_kib",
            "api/errors.rs::a_peer_that_sends_nothing_or_half_a_header_is_disconnected",
            "api/errors.rs::at_the_limit_a_new_connection_replaces_one_without_a_key",
            "faults/slow_peers.rs::unread_responses_hold_little_memory_and_release_it",
            "storage/log_over_http.rs::a_reader_that_does_not_read_is_closed_and_can_resume",
            "api/limits.rs::a_key_that_has_used_up_its_limit_gets_429_and_others_do_not",
            "api/limits.rs::one_address_gets_so_many_connections_and_others_get_theirs",
            "api/limits.rs::behind_a_trusted_proxy_each_client_is_counted_alone",
        ],
    ),
    (
        "API5",
        &[
            "api/authentication.rs::a_key_may_do_what_its_scopes_say",
            "api/authentication.rs::without_a_valid_key_nothing_under_v1_is_revealed",
            "operations/metrics.rs::the_operators_listener_serves_probes_but_no_operations",
            "storage/log_over_http.rs::only_a_key_with_the_scope_log_may_read_the_log",
        ],
    ),
    (
        "API6",
        &[
            "storage/log_find.rs::events_are_found_by_pet_owner_request_key_and_time",
            "operations/key_rotation.rs::the_log_names_the_owner_and_not_the_key",
        ],
    ),
    (
        "API7",
        &[
            "operations/systemd.rs::a_service_on_its_own_disk_connects_to_no_host_and_makes_no_forbidden_system_call",
        ],
    ),
    (
        "API8",
        &[
            "operations/program.rs::plain_http_stays_on_this_machine_by_default",
            "api/cors.rs::no_page_is_allowed_by_default",
            "api/raw.rs::header_lines_that_other_parsers_read_differently_are_rejected",
            "api/errors.rs::probes_need_no_key_and_reveal_no_secrets",
            "operations/systemd.rs::the_unit_is_valid_and_well_confined",
        ],
    ),
    (
        "API9",
        &[
            "api/openapi.rs::the_routes_and_the_document_agree",
            "operations/metrics.rs::an_operator_sees_who_still_calls_what_will_be_removed",
        ],
    ),
    (
        "API10",
        &[
            "storage/postgres/network.rs::a_server_on_a_network_must_present_a_trusted_certificate",
            "storage/nats/network.rs::a_server_on_a_network_must_present_a_trusted_certificate",
            "storage/hash_chain.rs::an_old_record_that_was_rewritten_with_its_checksum_is_detected",
            "pages/inventory.rs::names_are_shown_as_text_and_large_numbers_stay_exact",
            "storage/log_find.rs::events_are_found_by_pet_owner_request_key_and_time",
        ],
    ),
    (
        "another user",
        &[
            "faults/planted_links.rs::links_next_to_the_key_file_are_not_followed",
            "faults/planted_links.rs::root_stops_with_one_sentence_at_files_of_another_user",
        ],
    ),
    (
        "a key or password",
        &[
            "operations/program.rs::no_password_is_printed",
            "operations/program.rs::the_first_start_creates_a_key_and_prints_a_command_that_works_when_pasted",
        ],
    ),
    (
        "an unnoticed attack",
        &[
            "operations/request_log.rs::every_kind_of_rejection_is_logged_and_the_client_does_not_learn_the_reason",
            "operations/request_log.rs::a_flood_of_rejections_is_counted_instead_of_logged",
        ],
    ),
    (
        "code from other hosts",
        &[
            "pages/docs.rs::the_page_runs_no_foreign_code_and_contacts_no_other_host",
            "pages/inventory.rs::the_page_is_small_and_contacts_no_other_host",
            "pages/admin.rs::the_page_is_small_and_contacts_no_other_host",
        ],
    ),
    (
        "a rewritten history",
        &["storage/hash_chain.rs::a_completely_rewritten_history_has_a_different_head_hash"],
    ),
    ("trailers", &["api/http2.rs::pseudo_headers_in_trailers_do_not_change_the_request"]),
    ("a full disk", &["faults/crash/full_disk.rs::a_full_disk_stops_writes_until_there_is_space_again"]),
];

/// Rows that a test of the tests directory cannot show: a setting of the compiler, and a command of CI.
const WITHOUT_TESTS: [&str; 2] = ["memory errors", "a vulnerable dependency"];

#[test]
fn every_risk_and_threat_on_the_security_page_has_tests() {
    let page = Page::read(root().join("docs/security.md")).prose();
    let risks = rows(&page, "| risk | what petstore does |");
    assert_eq!(risks.len(), 10, "{risks:?}");
    let threats = rows(&page, "| threat | what petstore does |");
    for row in risks.into_iter().chain(threats) {
        let begins = |name: &str| row.starts_with(&format!("| {name} "));
        let tested = TESTS.iter().any(|(name, tests)| begins(name) && !tests.is_empty());
        assert!(tested || WITHOUT_TESTS.into_iter().any(begins), "no tests for {row}");
    }
}

#[test]
fn every_test_of_a_risk_exists() {
    for test in TESTS.iter().flat_map(|(_, tests)| *tests) {
        let (file, function) = test.split_once("::").expect("a file and a function");
        let source = fs::read_to_string(root().join("tests").join(file)).expect(file);
        assert!(source.contains(&format!("fn {function}(")), "{test}");
    }
}
