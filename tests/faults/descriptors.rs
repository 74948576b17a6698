//! A low limit on open files, and idle unauthenticated connections that would use all of them.

use std::{
    io::{ErrorKind, Read as _},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use harness::{App, Connection, wait_until};

/// More than the service can have open.
const CONNECTIONS: usize = 400;

/// Connections that send nothing, and are opened again whenever they are closed.
struct IdleConnections {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl IdleConnections {
    fn keep_open(address: SocketAddr) -> Self {
        let connect = move || {
            let stream = TcpStream::connect_timeout(&address, Duration::from_secs(10)).ok()?;
            stream.set_nonblocking(true).ok()?;
            Some(stream)
        };
        let mut streams: Vec<_> = (0..CONNECTIONS).map(|_| connect()).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let output = stop.clone();
        let thread = thread::spawn(move || {
            while !output.load(Relaxed) {
                for stream in &mut streams {
                    let open = stream.as_mut().is_some_and(|stream| {
                        matches!(stream.read(&mut [0; 512]), Err(error) if error.kind() == ErrorKind::WouldBlock)
                    });
                    if !open {
                        *stream = connect();
                    }
                }
                thread::sleep(Duration::from_millis(20));
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for IdleConnections {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

#[test]
fn idle_connections_neither_keep_clients_out_nor_revoked_keys_active() {
    let mut app = App::stopped_on_engine("sled", &[]);
    app.run_by(&["prlimit", "--nofile=256:256"].map(str::to_owned));
    app.start_again();
    let other = app.issue_active_key(&["--name", "other"]);
    let mut open = Connection::open(app.address(), &other);
    assert_eq!(open.list().status, 200);

    let _idle = IdleConnections::keep_open(app.address());
    let status = |key: &str| {
        let call = app.anonymous("GET", "/v1/pets").key(key);
        call.try_send().map(|response| response.status)
    };
    wait_until("a client with a key is served", || status(&app.key) == Some(200));
    app.revoke(&other);
    wait_until("the revoked key is rejected", || open.list().status == 401);
    assert!(!app.printed().1.contains("Too many open files"), "{}", app.printed().1);
}

#[test]
fn the_soft_limit_is_raised_to_the_hard_one() {
    let mut app = App::stopped("memory:", &[]);
    app.run_by(&["prlimit", "--nofile=128:512"].map(str::to_owned));
    app.start_again();
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", app.pid())).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(files.split_ascii_whitespace().nth(3), Some("512"), "{files}");
}
