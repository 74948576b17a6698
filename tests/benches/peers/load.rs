//! The load generator: wrk with one thread, which sends the same request on every connection over and over, or several in
//! turn.

use std::{
    fs,
    io::Write as _,
    net::SocketAddr,
    process::{Child, Command, Stdio},
};

use harness::App;
use tempfile::NamedTempFile;

/// Short, so that what is compared is measured at almost the same time.
const SECONDS: u32 = 1;
const PET: &str = r#"{"name":"Rex","categoryId":7,"status":"available"}"#;

/// What wrk sends.
pub(crate) struct Load {
    method: &'static str,
    /// Requested in turn.
    paths: Vec<String>,
    body: &'static str,
    pub(crate) connections: usize,
}

/// What wrk saw. Latencies in milliseconds.
#[derive(Clone, Copy)]
pub(crate) struct Measured {
    pub(crate) rate: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

/// Load that is being sent.
pub(crate) struct Running {
    wrk: Child,
    /// Kept until wrk has ended.
    _script: NamedTempFile,
}

impl Load {
    pub(crate) fn get(path: String, connections: usize) -> Self {
        Self::get_each(vec![path], connections)
    }

    pub(crate) fn get_each(paths: Vec<String>, connections: usize) -> Self {
        Self { method: "GET", paths, body: "", connections }
    }

    pub(crate) fn create(connections: usize) -> Self {
        Self { method: "POST", paths: vec!["/v1/pets".into()], body: PET, connections }
    }

    pub(crate) fn ceiling(connections: usize) -> Self {
        Self::get("/v1/pets".into(), connections)
    }

    pub(crate) fn begin(&self, server: SocketAddr, key: &str) -> Running {
        let mut script = NamedTempFile::new().expect("a temporary file");
        let Self { method, body, .. } = self;
        write!(
            script,
            r#"
            wrk.method = "{method}"
            wrk.body = '{body}'
            wrk.headers["Authorization"] = "Bearer {key}"
            wrk.headers["Content-Type"] = "application/json"
            done = function(summary, latency)
              local errors = summary.errors
              print(string.format("measured %d %d %d %d %d", summary.requests, summary.duration,
                errors.connect + errors.read + errors.write + errors.status + errors.timeout,
                latency:percentile(50), latency:percentile(99)))
            end
            "#
        )
        .expect("the script is written");
        if let [_, _, ..] = &self.paths[..] {
            self.request_in_turn(&mut script);
        }
        let wrk = Command::new("wrk")
            .args(["--threads", "1", "--connections", &self.connections.to_string()])
            .args(["--duration", &format!("{SECONDS}s"), "--script"])
            .arg(script.path())
            .arg(format!("http://{server}{}", self.paths[0]))
            .stdout(Stdio::piped())
            .spawn()
            .expect("wrk runs: apt-get install wrk");
        Running { wrk, _script: script }
    }

    /// Has wrk make all requests before it begins, so that choosing one takes no time.
    fn request_in_turn(&self, script: &mut NamedTempFile) {
        let paths = self.paths.join("\", \"");
        write!(
            script,
            r#"
            local number, requests, paths = 0, {{}}, {{ "{paths}" }}
            init = function()
              for place, path in ipairs(paths) do
                requests[place] = wrk.format(nil, path)
              end
            end
            request = function()
              number = number % #requests + 1
              return requests[number]
            end
            "#
        )
        .expect("the script is written");
    }
}

impl Running {
    pub(crate) fn finish(self) -> Measured {
        let output = self.wrk.wait_with_output().expect("wrk ends");
        let text = String::from_utf8_lossy(&output.stdout);
        let line =
            text.lines().find_map(|line| line.strip_prefix("measured ")).unwrap_or_else(|| panic!("{text}"));
        let [requests, microseconds, errors, p50, p99] =
            line.split(' ').map(|number| number.parse().expect("numbers")).collect::<Vec<f64>>()[..]
        else {
            panic!("five numbers, not {line}")
        };
        assert!(errors == 0.0 && requests > 0.0, "every request of a benchmark succeeds: {text}");
        Measured { rate: requests / microseconds * 1e6, p50: p50 / 1e3, p99: p99 / 1e3 }
    }
}

/// Adds this many pets, with every status in turn, and waits until they are there.
pub(crate) fn fill(app: &App, pets: usize) {
    let script = tempfile::tempdir().expect("a temporary directory");
    let path = script.path().join("fill.lua");
    let text = r#"
        local number, requests, statuses = 0, {}, { "available", "pending", "sold" }
        init = function()
          for place, status in ipairs(statuses) do
            requests[place] = wrk.format("POST", "/v1/pets",
              { Authorization = "Bearer KEY", ["Content-Type"] = "application/json" },
              string.format('{"name":"Rex","categoryId":7,"status":"%s"}', status))
          end
        end
        request = function()
          number = number + 1
          return requests[number % 3 + 1]
        end
        "#;
    fs::write(&path, text.replace("KEY", &app.key)).expect("the script is written");
    while app.get(&format!("/v1/pets/{pets}")).status != 200 {
        let filled = Command::new("wrk")
            .args(["--threads", "1", "--connections", "256", "--duration", "1s", "--script"])
            .arg(&path)
            .arg(format!("http://{}", app.address()))
            .stdout(Stdio::null())
            .status();
        assert!(filled.is_ok_and(|status| status.success()), "wrk runs: apt-get install wrk");
    }
}
