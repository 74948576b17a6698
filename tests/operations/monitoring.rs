//! Metrics that monitoring can use: the alert rules, the dashboard, and a real Prometheus that scrapes.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use harness::{App, Call, REX, Running, eventually, free_port, root, succeed, value_of, wait_until};
use regex::Regex;
use serde_json::Value;

fn file(name: &str) -> PathBuf {
    root().join("docs/monitoring").join(name)
}

fn text(name: &str) -> String {
    fs::read_to_string(file(name)).unwrap()
}

/// A service with every optional metric except that of a certificate, after a little of everything.
fn busy_app(flags: &[&str]) -> App {
    let app = App::start_with(&[&["--max-pets", "100"], flags].concat());
    for name in ["Rex", "Bella"] {
        app.post(&format!(r#"{{"name":"{name}","categoryId":7}}"#));
    }
    app.get("/v1/pets");
    app.get("/v1/pets/1");
    app.get_as("nonsense", "/v1/pets");
    app.issue_active_key(&["--name", "expiring", "--expires-in", "30d"]);
    app
}

/// Every expression of the dashboard.
fn dashboard_expressions() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(&text("dashboard.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect()
}

/// Every expression of the dashboard and of the alert rules.
fn expressions() -> Vec<String> {
    let mut found = dashboard_expressions();
    let rules = text("alerts.yml");
    let mut lines = rules.lines();
    while let Some(line) = lines.next() {
        if let Some(expression) = line.trim_start().strip_prefix("expr: ") {
            let expression = if expression == ">-" { lines.next().unwrap() } else { expression };
            found.push(expression.trim().to_owned());
        }
    }
    assert!(found.len() > 60, "{}", found.len());
    found
}

#[test]
fn the_dashboard_and_the_alerts_name_only_metrics_that_exist_and_the_dashboard_all_of_them() {
    let app = busy_app(&["--admin-listen", "127.0.0.1:0"]);
    let metrics = app.metrics();
    let sample = Regex::new("^[a-z_]+").unwrap();
    let known: BTreeSet<_> = metrics.lines().filter_map(|line| Some(sample.find(line)?.as_str())).collect();
    let metric = Regex::new(r"\b(petstore|process)_[a-z_]+").unwrap();
    let mut names = BTreeSet::new();
    for expression in expressions() {
        names.extend(metric.find_iter(&expression).map(|name| name.as_str().to_owned()));
    }
    // This service has no certificate; tests/operations/tls.rs looks at one that has.
    names.remove("petstore_tls_certificate_expiry_timestamp_seconds");
    // Scripts write these; tests/operations/deployment.rs reads them.
    let of_scripts = [
        "petstore_backup_last_success_timestamp_seconds",
        "petstore_copy_last_success_timestamp_seconds",
        "petstore_copy_lag_commits",
        "petstore_verify_last_run_timestamp_seconds",
    ];
    names.retain(|name| !of_scripts.contains(&name.as_str()) && name != "petstore_verify_failed");
    assert!(names.len() > 30, "{names:?}");
    for name in names {
        assert!(known.contains(name.as_str()), "{name} in {metrics}");
    }
    let shown = dashboard_expressions().join("\n");
    let family = Regex::new("(?m)^# TYPE (petstore_[a-z_]+) ").unwrap();
    let families = family.captures_iter(&metrics).map(|found| found.get(1).unwrap().as_str());
    for name in families.chain(of_scripts) {
        assert!(shown.contains(name), "{name} is on no panel");
    }
}

#[test]
fn the_alerts_fire_when_they_should() {
    succeed(Command::new("promtool").args(["check", "rules"]).arg(file("alerts.yml")));
    succeed(Command::new("promtool").args(["test", "rules"]).arg(file("alerts-test.yml")));
    let (rules, tests) = (text("alerts.yml"), text("alerts-test.yml"));
    let alerts: Vec<_> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() > 15);
    for alert in alerts {
        assert!(tests.contains(&format!("- alertname: {alert}\n")), "{alert} has a test");
    }
}

#[test]
fn every_alert_names_its_entry_in_the_runbook() {
    let rules = text("alerts.yml");
    let runbook = fs::read_to_string(root().join("docs/runbook.md")).unwrap();
    let headings: BTreeSet<_> = runbook.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let alerts: Vec<_> = rules.split("- alert: ").skip(1).collect();
    for alert in &alerts {
        let name = alert.lines().next().unwrap();
        let link = format!("\n          runbook: \"docs/runbook.md#{}\"\n", name.to_lowercase());
        assert!(alert.contains(&link), "{name} lacks{link}");
        assert!(headings.contains(name), "{name} has no entry");
    }
    assert_eq!(headings.len(), alerts.len(), "an entry without an alert");
}

#[test]
fn operators_see_what_the_service_does() {
    let app = busy_app(&["--admin-listen", "127.0.0.1:0", "--failed-auth-limit", "100/s"]);
    let limited = app.issue_key(&["--name", "limited", "--rate-limit", "1/h"]);
    wait_until("the limit is reached", || app.get_as(&limited, "/v1/pets").status == 429);
    let revoked = app.issue_key(&["--name", "gone"]);
    app.revoke(&revoked);
    wait_until("a revoked key is rejected", || {
        app.get_as(&revoked, "/v1/pets");
        app.metric(r#"petstore_authentication_failures_total{reason="revoked"}"#) > 0.0
    });
    app.anonymous("GET", "/v1/pets").send();
    app.anonymous("GET", "/v1/pets").header("Authorization", "Bearer a b").send();
    let now = app.metrics();
    for (series, least) in [
        ("petstore_commit_events_count", 2.0),
        ("petstore_commit_events_sum", 2.0),
        ("petstore_commit_bytes_count", 2.0),
        ("petstore_log_append_duration_seconds_count", 2.0),
        ("petstore_log_append_duration_seconds_sum", 0.000_001),
        (r#"petstore_http_connections{listener="admin"}"#, 1.0),
        (r#"petstore_http_connections_limit{listener="public"}"#, 100.0),
        (r#"petstore_authentication_failures_total{reason="unknown"}"#, 1.0),
        (r#"petstore_authentication_failures_total{reason="revoked"}"#, 1.0),
        (r#"petstore_authentication_failures_total{reason="missing"}"#, 1.0),
        (r#"petstore_authentication_failures_total{reason="malformed"}"#, 1.0),
        ("petstore_key_file_usable", 1.0),
        ("process_resident_memory_bytes", 1_000_000.0),
        ("petstore_memory_limit_bytes", 10_000_000.0),
        ("process_open_fds", 10.0),
        ("process_max_fds", 100.0),
        ("process_start_time_seconds", 1_700_000_000.0),
        ("petstore_pets_limit", 100.0),
        (r#"petstore_not_ready{reason="full"}"#, 0.0),
    ] {
        assert!(value_of(series, &now) >= least, "{series} in {now}");
    }
    assert!(now.contains("petstore_store_info{engine=") && now.contains("petstore_build_info{version="));
    for (series, exactly) in [
        ("petstore_replica_lag_commits", 0.0),
        ("petstore_log_conflicts_total", 0.0),
        ("petstore_log_retries_total", 0.0),
        ("petstore_ready", 1.0),
    ] {
        assert!((value_of(series, &now) - exactly).abs() < f64::EPSILON, "{series} in {now}");
    }
    let of_limited = |name: &str| {
        let line = now.lines().find(|line| line.starts_with(&format!(r#"{name}{{key="limited","#)));
        line.unwrap_or_else(|| panic!("{name} in {now}")).rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    assert!(of_limited("petstore_key_requests_total") >= 2);
    assert_eq!(of_limited("petstore_key_requests_total") - of_limited("petstore_key_rate_limited_total"), 1);
    assert!(!now.contains(&app.key) && !now.contains(&limited));
}

#[test]
fn an_embedded_store_shows_its_syncs_and_its_disk() {
    let app = App::on_engine("sled", &["--admin-listen", "127.0.0.1:0"]);
    app.post(REX);
    // The files are measured every second.
    let now = eventually("the file of the log has grown", || {
        let now = app.metrics();
        (value_of("petstore_log_bytes", &now) >= 100.0).then_some(now)
    });
    assert!(value_of("petstore_log_sync_duration_seconds_count", &now) >= 1.0, "{now}");
    assert!(
        value_of("petstore_disk_free_bytes", &now) >= value_of("petstore_disk_reserved_bytes", &now),
        "{now}"
    );
}

/// A running Prometheus.
struct Prometheus {
    _process: Running,
    url: String,
}

impl Prometheus {
    fn start(directory: &Path) -> Self {
        let port = free_port();
        let process = Command::new("prometheus")
            .arg(format!("--config.file={}", directory.join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", directory.join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdout(Stdio::null())
            .stderr(fs::File::create(directory.join("log")).unwrap())
            .spawn();
        Self { _process: Running(process.unwrap()), url: format!("http://127.0.0.1:{port}") }
    }

    fn query(&self, expression: &str) -> Result<String, String> {
        let mut promtool = Command::new("promtool");
        let output = promtool.args(["query", "instant", &self.url, expression]).output().unwrap();
        let finished = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(finished(&output.stdout)) } else { Err(finished(&output.stderr)) }
    }
}

#[test]
fn a_real_prometheus_scrapes_a_reachable_listener_with_a_key_for_metrics() {
    let app = busy_app(&["--admin-listen", "0.0.0.0:0", "--admin-insecure-http"]);
    let key = app.issue_key(&["--name", "prometheus", "--scope", "metrics"]);
    let ops = format!("127.0.0.1:{}", app.admin().port()).parse().unwrap();
    let status = |key: &str| {
        let call = Call::new(ops, "GET", "/metrics").key(key);
        call.send().status
    };
    wait_until("the key for metrics is active", || status(&key) == 200);
    assert_eq!(status(&app.key), 403, "another scope is not enough");
    Call::new(ops, "GET", "/metrics").send().error(401, "unauthorized");
    assert_eq!(app.get_as(&key, "/v1/pets").status, 403, "it is for nothing else");
    assert_eq!(Call::new(ops, "GET", "/readyz").send().status, 200, "probes need no key");

    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("petstore-metrics-key"), format!("{key}\n")).unwrap();
    fs::copy(file("alerts.yml"), directory.path().join("alerts.yml")).unwrap();
    // This service in the place of the pods.
    let documented = text("prometheus-kubernetes.yml");
    let (before, _) = documented.split_once("    dns_sd_configs:").unwrap();
    let config = format!("{before}    static_configs: [{{targets: [\"{ops}\"]}}]\n");
    let config = config.replace("/etc/prometheus", directory.path().to_str().unwrap()).replace("15s", "1s");
    fs::write(directory.path().join("prometheus.yml"), config).unwrap();
    let prometheus = Prometheus::start(directory.path());
    eventually("Prometheus has scraped the service", || {
        let found = prometheus.query(r#"up{job="petstore"}"#).ok()?;
        found.contains("=> 1 ").then_some(())
    });
    for expression in expressions() {
        let expression = expression.replace("$instance", ".*").replace("$__rate_interval", "1m");
        if let Err(error) = prometheus.query(&expression) {
            panic!("{expression}: {error}");
        }
    }
    for (expression, expected) in [
        ("petstore_pets", 2),
        (r#"petstore_http_requests_total{method="POST",route="/v1/pets",status="201"}"#, 2),
        (r#"petstore_http_request_duration_seconds_bucket{method="POST",route="/v1/pets",le="+Inf"}"#, 2),
        (r#"petstore_http_request_duration_seconds_count{method="POST",route="/v1/pets"}"#, 2),
        ("petstore_build_info", 1),
        (r#"petstore_authentication_failures_total{reason="expired"}"#, 0),
    ] {
        let found = prometheus.query(expression).unwrap();
        assert!(found.contains(&format!("=> {expected} ")), "{expression}: {found}");
    }
}
