//! A minimal Ceph on free ports: one monitor, one store in a sparse file, and gateways that speak S3. One cluster serves
//! all tests of a run, each in its own bucket; a test that disturbs a gateway starts its own.

use std::{
    env,
    fs::{self, File},
    io::Write as _,
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use adapters::event_log::object_store::ObjectLog;
use tempfile::TempDir;

use crate::{
    program::{Finished, INTERVAL, Running, eventually_ok, finished, free_port, program, signal},
    startup::Startup,
    tools::spawn_server,
};

/// The only user of the gateways.
pub const ACCESS_KEY: &str = "petstore-test";
/// Its secret.
pub const SECRET_KEY: &str = "hunter2hunter2";

/// The variable that holds the configuration and the port of the cluster of a process that runs this one.
const CLUSTER: &str = "TEST_CEPH";

const STARTED_HERE: &str = "a test disturbs only a gateway that it has started";

/// The monitor and the store, which outlive every test of this process.
struct Cluster {
    config: PathBuf,
    gateway: Gateway,
    /// Kills the processes and removes the files when the process that has started them ends.
    _cleaner: Option<Child>,
}

/// A gateway that speaks S3. Killed when dropped.
#[derive(Debug)]
pub struct Gateway {
    /// `None` if another process has started it.
    child: Option<Running>,
    address: SocketAddr,
    config: PathBuf,
    frontend: String,
    /// The endpoint for clients, if they do not connect to the gateway directly.
    endpoint: String,
    /// A file with the certificates that clients trust.
    certificates: Option<PathBuf>,
}

impl Gateway {
    /// The gateway that all tests share.
    pub fn shared() -> &'static Self {
        &cluster().gateway
    }

    /// The variable with which a child process uses the same cluster.
    pub fn shared_with_child() -> (&'static str, String) {
        let cluster = cluster();
        (CLUSTER, format!("{}:{}", cluster.config.display(), cluster.gateway.address.port()))
    }

    /// Starts another gateway to the same objects.
    pub fn start() -> Self {
        Self::start_at(&cluster().config, free_port())
    }

    fn start_at(config: &Path, port: u16) -> Self {
        let frontend = format!("beast endpoint=127.0.0.1:{port} tcp_nodelay=1");
        Self::run(config, port, frontend, format!("http://127.0.0.1:{port}"), None)
    }

    fn started_elsewhere(config: &Path, port: u16) -> Self {
        Self {
            child: None,
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            config: config.to_owned(),
            frontend: String::new(),
            endpoint: format!("http://127.0.0.1:{port}"),
            certificates: None,
        }
    }

    /// Starts another gateway that speaks TLS as `localhost`, with a certificate that its own CA has issued.
    pub fn start_with_tls(directory: &Path) -> Self {
        let port = free_port();
        let openssl = |arguments: &str| {
            let run = Command::new("openssl").args(arguments.split(' ')).current_dir(directory).output();
            let run = run.expect("openssl runs");
            assert!(run.status.success(), "openssl: {}", String::from_utf8_lossy(&run.stderr));
        };
        let new_key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
        openssl(&format!("req -x509 {new_key} -days 2 -subj /CN=test-CA -keyout ca.key -out ca.pem"));
        openssl(&format!("req {new_key} -subj /CN=localhost -keyout server.key -out server.csr"));
        fs::write(directory.join("names"), "subjectAltName=DNS:localhost\n").expect("a temporary directory");
        openssl(
            "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out server.pem",
        );
        let file = |name: &str| directory.join(name).display().to_string();
        let frontend = format!(
            "beast ssl_endpoint=127.0.0.1:{port} ssl_certificate={} ssl_private_key={} tcp_nodelay=1",
            file("server.pem"),
            file("server.key")
        );
        let certificates = Some(directory.join("ca.pem"));
        Self::run(&cluster().config, port, frontend, format!("https://localhost:{port}"), certificates)
    }

    fn run(
        config: &Path,
        port: u16,
        frontend: String,
        endpoint: String,
        certificates: Option<PathBuf>,
    ) -> Self {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let child = Some(Running(spawn_gateway(config, address, &frontend)));
        let config = config.to_owned();
        let mut gateway = Self { child, address, config, frontend, endpoint, certificates };
        gateway.wait_until_ready();
        gateway
    }

    /// Where the gateway listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends the gateway without warning.
    pub fn kill(&mut self) {
        let Running(child) = self.child.as_mut().expect(STARTED_HERE);
        child.kill().expect("the gateway was running");
        child.wait().expect("a killed process ends");
    }

    /// Starts the gateway again, after it was killed.
    pub fn start_again(&mut self) {
        self.child = Some(Running(spawn_gateway(&self.config, self.address, &self.frontend)));
        self.wait_until_ready();
    }

    /// Stops the gateway where it stands: it keeps its connections and says nothing.
    pub fn freeze(&self) {
        signal(self.pid(), "STOP");
    }

    /// Resumes a frozen gateway.
    pub fn thaw(&self) {
        signal(self.pid(), "CONT");
    }

    fn pid(&self) -> u32 {
        self.child.as_ref().expect(STARTED_HERE).0.id()
    }

    fn wait_until_ready(&mut self) {
        let log = log_of(&self.config, &name(self.address));
        let mut startup = Startup::new("the gateway", &log);
        let listens = || TcpStream::connect(self.address).is_ok();
        let Running(child) = self.child.as_mut().expect(STARTED_HERE);
        startup.wait(child, listens, || health(&self.config));
    }

    /// A URL with a new prefix in a new bucket.
    pub fn url(&self) -> String {
        static BUCKETS: AtomicUsize = AtomicUsize::new(0);
        let bucket = format!("test-{}-{}", std::process::id(), BUCKETS.fetch_add(1, Ordering::Relaxed));
        self.request("PUT", &bucket, None);
        format!("s3://{bucket}/pets")
    }

    /// The URL of a new empty log. Its server is not probed when it is opened, which takes most of the time of a short test.
    pub fn log(&self) -> String {
        let url = self.url();
        let marker = format!("{{\"format\":1,\"log\":\"{}\"}}", uuid::Uuid::now_v7());
        let path = url.strip_prefix("s3://").expect("a URL of ours");
        self.request("PUT", &format!("{path}/log.json"), Some(marker.as_bytes()));
        url
    }

    /// The variables of a client.
    pub fn variables(&self) -> Vec<(String, String)> {
        self.variables_via(&self.endpoint)
    }

    /// The variables of a client that connects to this endpoint instead.
    pub fn variables_via(&self, endpoint: &str) -> Vec<(String, String)> {
        let mut variables = vec![
            ("AWS_ENDPOINT_URL".to_owned(), endpoint.to_owned()),
            ("AWS_REGION".to_owned(), "us-east-1".to_owned()),
            ("AWS_ACCESS_KEY_ID".to_owned(), ACCESS_KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY".to_owned(), SECRET_KEY.to_owned()),
        ];
        if let Some(file) = &self.certificates {
            variables.push(("SSL_CERT_FILE".to_owned(), file.display().to_string()));
        }
        variables
    }

    /// Opens a log in this process, and creates it if necessary.
    pub async fn open(&self, url: &str) -> ObjectLog {
        self.open_via(&self.endpoint, url).await
    }

    /// Opens a log that is reached through this endpoint. On a busy machine, the gateway may not respond in time at first.
    pub async fn open_via(&self, endpoint: &str, url: &str) -> ObjectLog {
        let variables = self.variables_via(endpoint);
        eventually_ok("the log is opened", || ObjectLog::open(url, &variables, None)).await
    }

    /// A command that runs a service with the variables of a client: see [`App::run_by`](crate::App::run_by).
    pub fn wrapper(&self) -> Vec<String> {
        wrapper(&self.variables())
    }

    /// Runs a command of the program to its end, as a client of the gateway.
    pub fn petstore(&self, arguments: &[&str]) -> Finished {
        finished(Command::new(program()).envs(self.variables()).args(arguments))
    }

    /// Sends a signed request for `BUCKET` or `BUCKET/KEY`, and returns the body of the response. Panics if it fails.
    pub fn request(&self, method: &str, path: &str, body: Option<&[u8]>) -> Vec<u8> {
        let mut curl = self.curl(path);
        curl.args(["--show-error", "--request", method]);
        let file = body.map(|body| {
            let file = tempfile::NamedTempFile::new().expect("a temporary file");
            fs::write(file.path(), body).expect("a temporary file can be written");
            file
        });
        if let Some(file) = &file {
            curl.arg("--data-binary").arg(format!("@{}", file.path().display()));
        }
        let response = curl.output().expect("curl runs: tests/run installs it");
        let text = String::from_utf8_lossy(&response.stdout);
        assert!(response.status.success(), "{method} {path}: {text}");
        response.stdout
    }

    /// Whether there is an object `BUCKET/KEY`.
    pub fn has(&self, path: &str) -> bool {
        self.curl(path).arg("--head").output().expect("curl runs: tests/run installs it").status.success()
    }

    fn curl(&self, path: &str) -> Command {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--fail-with-body", "--header", "x-amz-content-sha256: UNSIGNED-PAYLOAD"])
            .args(["--aws-sigv4", "aws:amz:us-east-1:s3", "--user", &format!("{ACCESS_KEY}:{SECRET_KEY}")])
            .arg(format!("{}/{path}", self.endpoint));
        if let Some(certificates) = &self.certificates {
            curl.arg("--cacert").arg(certificates);
        }
        curl
    }

    /// The keys of a bucket, in order.
    pub fn keys(&self, bucket: &str) -> Vec<String> {
        let mut keys = Vec::new();
        loop {
            let after = keys
                .last()
                .map_or(String::new(), |last: &String| format!("&start-after={}", last.replace('/', "%2F")));
            let listed = self.request("GET", &format!("{bucket}?list-type=2{after}"), None);
            let listed = String::from_utf8_lossy(&listed).into_owned();
            let found = listed.split("<Key>").skip(1).filter_map(|rest| rest.split("</Key>").next());
            keys.extend(found.map(str::to_owned));
            if !listed.contains("<IsTruncated>true") {
                return keys;
            }
        }
    }

    /// The objects of a bucket, to compare them or to restore them.
    pub fn objects(&self, bucket: &str) -> Vec<(String, Vec<u8>)> {
        let read = |key: String| {
            let bytes = self.request("GET", &format!("{bucket}/{key}"), None);
            (key, bytes)
        };
        self.keys(bucket).into_iter().map(read).collect()
    }
}

/// A command that runs another one with these variables.
pub fn wrapper(variables: &[(String, String)]) -> Vec<String> {
    let variables = variables.iter().map(|(name, value)| format!("{name}={value}"));
    ["env".to_owned()].into_iter().chain(variables).collect()
}

fn spawn_gateway(config: &Path, address: SocketAddr, frontend: &str) -> Child {
    let mut gateway = daemon(config, "radosgw");
    spawn_server(gateway.args(["-n", &name(address), "--rgw-frontends", frontend])).expect("radosgw starts")
}

/// The name of the gateway at this address.
fn name(address: SocketAddr) -> String {
    format!("client.rgw.{}", address.port())
}

/// The log of a daemon.
fn log_of(config: &Path, name: &str) -> PathBuf {
    config.with_file_name("run").join(format!("{name}.log"))
}

/// The monitor's report on the cluster.
fn health(config: &Path) -> String {
    let asked = ceph(config, "ceph", &["--connect-timeout", "10", "status"]).output().expect("ceph runs");
    String::from_utf8_lossy(&asked.stdout).into_owned()
}

fn cluster() -> &'static Cluster {
    static SHARED: OnceLock<Cluster> = OnceLock::new();
    SHARED.get_or_init(|| {
        let Ok(elsewhere) = env::var(CLUSTER) else { return start_cluster() };
        let (config, port) = elsewhere.rsplit_once(':').expect("the form of the variable");
        let config = PathBuf::from(config);
        let gateway = Gateway::started_elsewhere(&config, port.parse().expect("a port"));
        Cluster { config, gateway, _cleaner: None }
    })
}

fn start_cluster() -> Cluster {
    let directory = tempfile::Builder::new().prefix("ceph-").tempdir().map(TempDir::keep);
    let directory = directory.expect("a temporary directory");
    for part in ["mon", "osd", "run"] {
        fs::create_dir(directory.join(part)).expect("the temporary directory can be written");
    }
    let config = directory.join("ceph.conf");
    let (fsid, osd) = (uuid::Uuid::now_v7(), uuid::Uuid::now_v7());
    let monitor = format!("v1:127.0.0.1:{}", free_port());
    fs::write(&config, settings(&directory, &fsid.to_string(), &monitor))
        .expect("the directory can be written");
    let map = directory.join("monmap").display().to_string();
    run(
        &config,
        "monmaptool",
        &["--create", "--addv", "a", &format!("[{monitor}]"), "--fsid", &fsid.to_string(), &map],
    );
    run(&config, "ceph-mon", &["-i", "a", "--mkfs", "--monmap", &map]);
    let mut cleaner = cleaner(&directory);
    let mut remember = |child: &Child| {
        let pids = cleaner.stdin.as_mut().expect("its input is a pipe");
        writeln!(pids, "{}", child.id()).expect("the cleaner runs");
    };
    let mut monitor = spawn_server(daemon(&config, "ceph-mon").args(["-i", "a"])).expect("ceph-mon starts");
    remember(&monitor);
    // A monitor that has only just started rejects commands.
    let log = log_of(&config, "mon.a");
    let mut startup = Startup::new("the monitor of Ceph", &log);
    let ask = |words: &[&str]| {
        ceph(&config, "timeout", &[&["20", "ceph", "osd"], words].concat()).output().expect("timeout runs")
    };
    while !ask(&["new", &osd.to_string()]).status.success() {
        startup.check(&mut monitor, || health(&config));
        thread::sleep(INTERVAL);
    }
    run(&config, "ceph-osd", &["-i", "0", "--mkfs", "--osd-uuid", &osd.to_string()]);
    let start_store =
        || spawn_server(daemon(&config, "ceph-osd").args(["-i", "0"])).expect("ceph-osd starts");
    let mut store = start_store();
    let log = log_of(&config, "osd.0");
    let mut startup = Startup::new("the store of Ceph", &log);
    loop {
        // A monitor that has only just started may reject it.
        if store.try_wait().expect("a child can be asked").is_some() {
            store = start_store();
        }
        if String::from_utf8_lossy(&ask(&["stat"]).stdout).contains("1 up") {
            break;
        }
        startup.check(&mut monitor, || health(&config));
        thread::sleep(INTERVAL);
    }
    remember(&store);
    // The store does this itself, unless it starts too early.
    let _ =
        ceph(&config, "ceph", &["osd", "crush", "add", "osd.0", "1.0", "host=h", "root=default"]).status();
    let gateway = Gateway::start_at(&config, free_port());
    let user = ["user", "create", "--uid=test", "--display-name=test"];
    let keys = [format!("--access-key={ACCESS_KEY}"), format!("--secret-key={SECRET_KEY}")];
    run(&config, "radosgw-admin", &[&user[..], &[&keys[0], &keys[1]]].concat());
    remember(&gateway.child.as_ref().expect(STARTED_HERE).0);
    // The first request that stores an object creates the pools for objects, which takes seconds.
    gateway.log();
    Cluster { config, gateway, _cleaner: Some(cleaner) }
}

/// Reads process ids until this process ends, however it ends. Then kills them and removes the directory.
fn cleaner(directory: &Path) -> Child {
    let script = "while read -r pid; do pids=\"$pids $pid\"; done; kill -9 $pids; sleep 1; rm -rf \"$1\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "cleaner"]).arg(directory);
    shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("sh runs")
}

fn ceph(config: &Path, program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.env("CEPH_CONF", config).args(arguments).stdin(Stdio::null()).stderr(Stdio::null());
    command
}

fn run(config: &Path, program: &str, arguments: &[&str]) {
    let mut command = Command::new("timeout");
    command.arg("60").arg(program).env("CEPH_CONF", config).args(arguments).stdin(Stdio::null());
    let run = command.output().expect("timeout runs");
    let error = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{program} {arguments:?} (tests/run installs Ceph): {error}");
}

fn daemon(config: &Path, program: &str) -> Command {
    let output = config.with_file_name("run").join(format!("{program}.out"));
    let output =
        File::options().create(true).append(true).open(output).expect("the directory can be written");
    let mut command = ceph(config, program, &["-f"]);
    command.stdout(output.try_clone().expect("a file can be cloned")).stderr(output);
    command
}

/// Settings for one small store. A gateway that was killed is a watcher of the others' caches until a timeout, and each
/// creation of a bucket waits for it.
fn settings(directory: &Path, fsid: &str, monitor: &str) -> String {
    let directory = directory.display();
    format!(
        "[global]
fsid = {fsid}
mon initial members = a
mon host = {monitor}
mon data = {directory}/mon
osd data = {directory}/osd
run dir = {directory}/run
admin socket = {directory}/run/$name.asok
log file = {directory}/run/$name.log
auth cluster required = none
auth service required = none
auth client required = none
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pgp num = 8
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
osd class update on start = false
osd client watch timeout = 3
client notify timeout = 1
osd objectstore = bluestore
osd memory target = 939524096
bluestore block create = true
bluestore block size = 17179869184
bluestore fsck on mount = false
mon allow pool size one = true
mon warn on pool no redundancy = false
mon data avail crit = 1
mon max pg per osd = 1000
rgw thread pool size = 64
rgw enable usage log = false
rgw enable gc threads = false
rgw enable lc threads = false
rgw run sync thread = false
"
    )
}
