//! The load generator: wrk with one thread, which sends randomly chosen requests on every connection.

use std::{io::Write as _, net::SocketAddr, process::Command};

use tempfile::NamedTempFile;

const STATUSES: [&str; 3] = ["available", "pending", "sold"];

/// The requests to choose from.
pub(crate) struct Load {
    /// Lua tables of method, path and body.
    requests: Vec<String>,
    connections: usize,
}

/// Throughput per second, and latencies in milliseconds.
#[derive(Clone, Copy)]
pub(crate) struct Measured {
    pub(crate) rate: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

impl Load {
    pub(crate) fn get(paths: impl Iterator<Item = String>, connections: usize) -> Self {
        Self { requests: paths.map(|path| format!("{{ 'GET', '{path}' }}")).collect(), connections }
    }

    pub(crate) fn create(connections: usize) -> Self {
        Self { requests: vec![create("available")], connections }
    }

    /// Creates pets with every status.
    pub(crate) fn fill() -> Self {
        Self { requests: STATUSES.map(create).into(), connections: 256 }
    }

    pub(crate) fn measure(&self, server: SocketAddr, key: &str) -> Measured {
        let mut script = NamedTempFile::new().expect("a temporary file");
        let requests = self.requests.join(", ");
        // All requests are formatted before the first is sent, so that choosing one takes almost no time.
        write!(
            script,
            r#"
            wrk.headers["Authorization"] = "Bearer {key}"
            wrk.headers["Content-Type"] = "application/json"
            local requests = {{ {requests} }}
            init = function()
              for number, parts in ipairs(requests) do
                requests[number] = wrk.format(parts[1], parts[2], nil, parts[3])
              end
            end
            request = function()
              return requests[math.random(#requests)]
            end
            done = function(summary, latency)
              local errors = summary.errors
              print(string.format("measured %d %d %d %d %d", summary.requests, summary.duration,
                errors.connect + errors.read + errors.write + errors.status + errors.timeout,
                latency:percentile(50), latency:percentile(99)))
            end
            "#
        )
        .expect("the script is written");
        // Short, so that the compared servers are measured at almost the same time.
        let output = Command::new("wrk")
            .args(["--threads", "1", "--connections", &self.connections.to_string(), "--timeout", "30s"])
            .args(["--duration", &format!("{}s", 1 + self.connections / 1_024), "--script"])
            .arg(script.path())
            .arg(format!("http://{server}"))
            .output()
            .expect("wrk runs: apt-get install wrk");
        let text = String::from_utf8_lossy(&output.stdout);
        let line =
            text.lines().find_map(|line| line.strip_prefix("measured ")).unwrap_or_else(|| panic!("{text}"));
        let [requests, microseconds, errors, p50, p99] =
            line.split(' ').map(|number| number.parse().expect("numbers")).collect::<Vec<f64>>()[..]
        else {
            panic!("five numbers, not {line}")
        };
        assert!(errors == 0.0, "every request of a benchmark succeeds: {text}");
        Measured { rate: requests / microseconds * 1e6, p50: p50 / 1e3, p99: p99 / 1e3 }
    }
}

fn create(status: &str) -> String {
    format!(r#"{{ 'POST', '/v1/pets', '{{"name":"Rex","categoryId":7,"status":"{status}"}}' }}"#)
}
