//! Real NATS servers on free ports, with a temporary directory, that a test can kill, stop and start.

use std::{
    fs::{self, File},
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
};

use async_nats::jetstream;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tempfile::TempDir;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::{
    http::Call,
    program::{INTERVAL, Running, eventually_ok, free_port},
    proxy::CutProxy,
    startup::{Startup, end_of},
    tools::{spawn_server, tell, tools},
};

/// The file with the output of a server.
const LOG: &str = "server.log";
/// The health report of a server that was killed while it created a stream: the directory exists, its description does
/// not. The server stays unhealthy until a client creates the stream again, which petstore does.
const INTERRUPTED_CREATION: &str = "could not be recovered";

/// Clusters that run at the same time. Each test keeps its cluster busy, and servers that get no processor time for
/// seconds elect other leaders.
static CLUSTERS: Semaphore = Semaphore::const_new(2);

/// When the servers bring to disk what they acknowledge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NatsSync {
    /// Their default: later.
    Default,
    /// Before they acknowledge.
    Always,
}

/// One server, or three that form a cluster, with JetStream. Killed when dropped.
#[derive(Debug)]
pub struct NatsCluster {
    /// The servers, to look at and to disturb.
    pub servers: Vec<NatsServer>,
    /// How the servers reach each other, if they can be divided.
    lines: Vec<Line>,
    _directory: TempDir,
    /// The right to run several servers.
    _permit: Option<SemaphorePermit<'static>>,
}

/// The way from one server to another.
#[derive(Debug)]
struct Line {
    ends: [usize; 2],
    line: CutProxy,
}

/// One server of a cluster.
#[derive(Debug)]
pub struct NatsServer {
    name: String,
    directory: PathBuf,
    client: SocketAddr,
    monitor: SocketAddr,
    child: Running,
}

impl NatsCluster {
    /// Starts `count` servers and waits until they work together.
    pub async fn start(count: usize, sync: NatsSync) -> Self {
        Self::start_with(count, sync, "").await
    }

    /// Starts servers with more lines in their configuration.
    pub async fn start_with(count: usize, sync: NatsSync, more: &str) -> Self {
        let ports = free_ports(3 * count);
        let routes: Vec<_> = ports[2 * count..].iter().map(|route| format!("nats://{route}")).collect();
        let peers = if count == 1 { String::new() } else { format!("routes: [{}]", routes.join(", ")) };
        Self::launch(&ports, &vec![peers; count], sync, more).await
    }

    /// Starts three servers that can be cut off from each other while clients reach all of them.
    pub async fn start_divisible(sync: NatsSync) -> Self {
        const COUNT: usize = 3;
        let ports = free_ports(3 * COUNT);
        let mut lines = Vec::new();
        let mut peers = Vec::new();
        for from in 0..COUNT {
            let mut routes = Vec::new();
            for to in (0..COUNT).filter(|to| *to != from) {
                let line = CutProxy::start(ports[2 * COUNT + to]).await;
                routes.push(format!("nats://{}", line.address()));
                lines.push(Line { ends: [from, to], line });
            }
            // Servers tell each other where they listen; nothing listens at these addresses, so that every connection passes a proxy.
            peers.push(format!("advertise: \"127.0.0.1:1\", routes: [{}]", routes.join(", ")));
        }
        let mut cluster = Self::launch(&ports, &peers, sync, "").await;
        cluster.lines = lines;
        cluster
    }

    /// Starts one server for each of `peers`, on addresses for clients, then for monitoring, then for routes.
    async fn launch(ports: &[SocketAddr], peers: &[String], sync: NatsSync, more: &str) -> Self {
        let count = peers.len();
        let permit = if count == 1 { None } else { CLUSTERS.acquire().await.ok() };
        let directory = tempfile::tempdir().expect("a temporary directory");
        let sync = match sync {
            NatsSync::Default => "",
            NatsSync::Always => "sync_interval: always",
        };
        let servers = peers.iter().enumerate().map(|(index, peers)| {
            let name = format!("n{}", index + 1);
            let directory = directory.path().join(&name);
            let (client, monitor, route) = (ports[index], ports[count + index], ports[2 * count + index]);
            let cluster = if peers.is_empty() {
                String::new()
            } else {
                format!("cluster {{ name: pets, listen: \"{route}\", {peers} }}")
            };
            let store = directory.join("store");
            let store = store.display();
            let config = format!(
                "server_name: {name}\nlisten: \"{client}\"\nhttp: \"{monitor}\"\n\
                 jetstream {{ store_dir: \"{store}\", {sync} }}\n{cluster}\n{more}\n"
            );
            fs::create_dir(&directory).expect("the temporary directory can be written");
            fs::write(directory.join("server.conf"), config).expect("the temporary directory can be written");
            let child = spawn(&directory);
            NatsServer { name, directory, client, monitor, child }
        });
        let mut cluster =
            Self { servers: servers.collect(), lines: vec![], _directory: directory, _permit: permit };
        for server in &mut cluster.servers {
            server.wait_until_ready().await;
        }
        cluster
    }

    /// Lets nothing pass between this server and the others, without a word to any of them.
    pub fn cut_off(&self, server: usize) {
        let lines = self.lines.iter().filter(|line| line.ends.contains(&server));
        assert_ne!(lines.clone().count(), 0, "only a divisible cluster can be divided");
        lines.for_each(|line| line.line.freeze());
    }

    /// Lets everything pass between the servers again.
    pub fn heal(&self) {
        self.lines.iter().for_each(|line| line.line.heal());
    }

    /// The store URL for a stream on all servers.
    pub fn url(&self, stream: &str) -> String {
        format!("nats://{}/{stream}", self.addresses())
    }

    /// Where clients connect, separated by commas.
    pub fn addresses(&self) -> String {
        self.list(NatsServer::address)
    }

    /// Where the monitoring listens, separated by commas.
    pub fn monitors(&self) -> String {
        self.list(|server| server.monitor)
    }

    /// A client of the servers, to do what petstore does not.
    pub async fn jetstream(&self) -> jetstream::Context {
        let addresses: Vec<_> = self.servers.iter().map(|server| server.client.to_string()).collect();
        jetstream::new(async_nats::connect(addresses).await.expect("the servers accept connections"))
    }

    /// Which server leads the stream.
    pub async fn leader_of(&self, stream: &str) -> usize {
        let jetstream = self.jetstream().await;
        let leader = async || {
            let info = jetstream.get_stream(stream).await.ok()?.get_info().await.ok()?;
            let leader = info.cluster?.leader?;
            self.servers.iter().position(|server| server.name == leader)
        };
        eventually_ok("the stream has a leader", async || leader().await.ok_or(())).await
    }

    fn list(&self, address: impl Fn(&NatsServer) -> SocketAddr) -> String {
        let addresses: Vec<_> = self.servers.iter().map(|server| address(server).to_string()).collect();
        addresses.join(",")
    }
}

/// A failing test shows what the servers have logged.
impl Drop for NatsCluster {
    fn drop(&mut self) {
        if thread::panicking() {
            for server in &self.servers {
                eprintln!("{}", end_of(&server.directory.join(LOG)));
            }
        }
    }
}

impl NatsServer {
    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.client
    }

    /// Ends the process without warning.
    pub fn kill(&mut self) {
        self.child.0.kill().expect("the server was running");
        self.child.0.wait().expect("a killed process ends");
    }

    /// Starts the server again on the same files and ports, after it was killed.
    pub fn start_again(&mut self) {
        self.child = spawn(&self.directory);
    }

    /// The directory with its streams.
    pub fn store(&self) -> PathBuf {
        self.directory.join("store")
    }

    /// Leaves the files that a server has when it is killed while it creates this stream.
    pub fn leave_unfinished(&self, stream: &str) {
        let created = self.store().join("jetstream/$G/streams").join(stream).join("msgs");
        fs::create_dir_all(created).expect("the temporary directory can be written");
    }

    /// Replaces a part of the configuration and lets the running server read it again.
    pub fn reconfigure(&self, old: &str, new: &str) {
        self.replace_setting(old, new);
        self.signal(Signal::HUP);
    }

    /// Kills the server, replaces a part of its configuration, and starts it again.
    pub fn restart_with(&mut self, old: &str, new: &str) {
        self.kill();
        self.replace_setting(old, new);
        self.start_again();
    }

    fn replace_setting(&self, old: &str, new: &str) {
        let file = self.directory.join("server.conf");
        let config = fs::read_to_string(&file).expect("the configuration can be read");
        assert!(config.contains(old), "{old} is in the configuration: {config}");
        fs::write(&file, config.replace(old, new)).expect("the temporary directory can be written");
    }

    /// Stops the process where it stands: it keeps its connections and says nothing.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
        // Threads stop one by one; the parent is notified when the last one did.
        let stopped = waitpid(Some(self.pid()), WaitOptions::UNTRACED).expect("a child can be waited for");
        assert!(stopped.is_some_and(|(_, status)| status.stopped()), "the server stops");
    }

    /// Resumes a frozen process.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Waits until JetStream responds here.
    pub async fn wait_until_ready(&mut self) {
        let server = format!("server {}", self.name);
        let log = self.directory.join(LOG);
        let mut startup = Startup::new(&server, &log);
        while let Err(health) = self.health() {
            if health.contains(INTERRUPTED_CREATION) {
                tell(&format!("\n{server} was killed while it created a stream: {health}\n"));
                return;
            }
            startup.check(&mut self.child.0, || health);
            tokio::time::sleep(INTERVAL).await;
        }
    }

    /// The health report of a server that is not healthy.
    fn health(&self) -> Result<(), String> {
        match Call::new(self.monitor, "GET", "/healthz").try_send() {
            Some(health) if health.status == 200 => Ok(()),
            Some(health) => Err(health.text().to_owned()),
            None => Err("no response".to_owned()),
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("the server is running");
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child.0)
    }
}

/// Different free addresses.
fn free_ports(count: usize) -> Vec<SocketAddr> {
    (0..count).map(|_| SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()))).collect()
}

fn spawn(directory: &Path) -> Running {
    let log = File::options().create(true).append(true).open(directory.join(LOG));
    let mut command = Command::new(tools().join("python/bin/nats-server"));
    let log = log.expect("the temporary directory can be written");
    command.arg("-c").arg(directory.join("server.conf"));
    let server = spawn_server(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log));
    Running(server.expect("nats-server starts: tests/run installs it"))
}
