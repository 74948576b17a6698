//! `petstore serve`: runs the service until it receives a signal, then shuts it down gracefully.

use std::{io, net::SocketAddr, panic, path::Path, pin::Pin, process::ExitCode, sync::Arc, time::Duration};

use adapters::{
    access::api_keys::ApiKeys,
    http::{self, AppState, HttpSettings, ListenerSettings, Tls},
    log_once::LogOnce,
};
use anyhow::{Context as _, anyhow, bail};
use application::{Health, LogAccess, ports::Fault};
use sd_notify::NotifyState;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::{oneshot, watch},
    task::{JoinHandle, spawn_blocking},
};
use tracing_appender::non_blocking::NonBlocking;
use tracing_subscriber::{Layer as _, layer::SubscriberExt as _, util::SubscriberInitExt as _};

use crate::{
    config::{LogFormat, ServeArguments, VERSION},
    descriptors,
    output::{self, shell_quoted},
    service_manager,
    service_output::{self, ServiceOutput},
    state_recorder,
    stop_signals::StopSignals,
    store_url::StoreUrl,
    wire,
};

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// How long hanging threads may delay the exit of the process.
const THREADS_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the log may take to finish its last commit and to close, after the last request.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) fn run(arguments: ServeArguments) -> ExitCode {
    let output = ServiceOutput::start(arguments.log_format);
    let code = match run_until_signal(arguments, &output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output.print_error(format_args!("{error:#}"));
            ExitCode::FAILURE
        }
    };
    output.flush();
    code
}

fn run_until_signal(arguments: ServeArguments, output: &ServiceOutput) -> anyhow::Result<()> {
    arguments.check_listeners()?;
    start_logging(&arguments, &output.stderr);
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    let outcome = runtime.block_on(serve(arguments, output));
    runtime.shutdown_timeout(THREADS_TIMEOUT);
    outcome
}

async fn serve(arguments: ServeArguments, output: &ServiceOutput) -> anyhow::Result<()> {
    let mut signals = StopSignals::of_service()?;
    let arguments = Arc::new(arguments);
    arguments.log();
    let keys = wire::open_keys(&arguments)?;
    let tls = open_tls(&arguments)?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    reload_on_hangup(keys.clone(), tls.clone())?;

    let dropped_lines = output.stderr.error_counter();
    tokio::spawn(service_output::report_dropped_lines(dropped_lines.clone()));
    let (clients_max, admin_max) = descriptors::share(arguments.max_connections as usize);
    let public = ListenerSettings {
        connections_max: clients_max,
        connections_per_address: arguments.connections_per_address.map(|most| most as usize),
        drain: arguments.drain,
    };
    let admin = ListenerSettings { connections_max: admin_max, connections_per_address: None, ..public };
    let settings = HttpSettings { public, admin, ..arguments.http_settings() };
    let dropped_log_lines = move || dropped_lines.dropped_lines() as u64;
    let state = Arc::new(AppState::new(keys.clone(), settings, tls.as_ref(), dropped_log_lines));
    let listen_to_clients = || listen(arguments.listen, "--listen");
    let serve_clients = |listener| {
        let server = Server::start(listener, |listener, stop| http::serve(listener, state.clone(), stop))?;
        output.print_line(format_args!("petstore {VERSION} listens on {scheme}://{}", server.address));
        anyhow::Ok(server)
    };
    let early = (!arguments.listen_when_ready).then(|| serve_clients(listen_to_clients()?)).transpose()?;
    let serve_admin = |address| {
        let serve = |listener, stopped| http::serve_admin(listener, state.clone(), stopped);
        let server = Server::start(listen(address, "--admin-listen")?, serve)?;
        output.print_line(format_args!("probes, metrics and the log on {scheme}://{}", server.address));
        anyhow::Ok(server)
    };
    let admin = arguments.admin_listen.map(serve_admin).transpose()?;

    // A separate task, so that a hanging close after a cancelled opening cannot block this one.
    let (options, loaded, progress) = (arguments.clone(), keys.clone(), state.replay.clone());
    let opening = tokio::spawn(async move { wire::open_store(&options, &loaded, &progress).await });
    let (store, state_file) = tokio::select! {
        opened = opening => opened.context("the store could not be opened")??,
        () = signals.received() => {
            tracing::info!(target: "petstore::service", "stopped");
            return Ok(());
        }
    };
    let store = Arc::new(store);
    let late = early.is_none().then(listen_to_clients).transpose()?;
    // Nothing can fail any more: a failed start leaves no key file. A ready service has one.
    let first_key = wire::issue_first_key(&arguments, &keys)?;
    state.open(store.clone());
    let server = early.or(late.map(serve_clients).transpose()?).expect("one of them listens");
    if first_key.is_none() && store.identity().is_none() && arguments.store.log_name().is_some() {
        // A wrong URL looks like this, and there is no state file that could reject such a log.
        tracing::warn!(
            target: "petstore::service", store = %arguments.store,
            "the log is empty: if it should hold pets, stop the service and check --store"
        );
    }
    if let Some(file) = &state_file {
        tokio::spawn(state_recorder::run(file.clone(), store.clone()));
    }
    tokio::spawn(advise_if_files_missing(store.health_changes(), arguments.clone()));
    tracing::info!(
        target: "petstore::service",
        pets = store.count(), position = store.log_position().position.0,
        durability = store.log().durability().promise,
        "ready"
    );
    let address = format!("{scheme}://{}", server.address);
    output.print_greeting(greeting(&arguments.store, &address, store.count(), first_key.as_deref()));
    service_manager::notify(NotifyState::Ready).await;
    let listener = server.ended.abort_handle();
    tokio::spawn(service_manager::feed_watchdog(move || !listener.is_finished()));

    signals.received().await;
    service_manager::notify(NotifyState::Stopping).await;
    tracing::info!(
        target: "petstore::service",
        drain_delay = ?arguments.drain_delay, drain = ?arguments.drain,
        "stopping: draining requests in flight"
    );
    state.drain();
    let shutdown = async {
        tokio::time::sleep(arguments.drain_delay).await;
        server.stop().await?;
        // The admin listener stays open until the last response.
        if let Some(admin) = admin {
            admin.stop().await?;
        }
        let close = async {
            if let Some(file) = &state_file {
                state_recorder::record(file, &store, &mut LogOnce::default()).await;
            }
            store.close().await;
        };
        tokio::time::timeout(CLOSE_TIMEOUT, close).await.map_err(|_| {
            anyhow!("the log could not be closed within {CLOSE_TIMEOUT:?}: a commit that was not acknowledged may be lost")
        })
    };
    tokio::select! {
        ended = shutdown => ended?,
        () = signals.received_again() => bail!("received a second signal: stopped immediately"),
    }
    tracing::info!(target: "petstore::service", "stopped");
    Ok(())
}

/// Logs what to do once files of an embedded log are missing. Other logs have no open files.
async fn advise_if_files_missing(mut health: watch::Receiver<Health>, arguments: Arc<ServeArguments>) {
    let files_missing =
        |health: &Health| health.not_ready().is_some_and(|error| error.fault == Fault::FilesMissing);
    let access = arguments.store.access();
    if access == LogAccess::Exclusive && health.wait_for(files_missing).await.is_ok() {
        let advice = if arguments.admin_listen.is_some() {
            "export the log from the running service before you stop it: its open files still hold every acknowledged commit, \
             and a backup may be older; then stop the service, move the remaining files of the store away and import the export"
        } else {
            "save the pets with GET /v1/pets before you stop the service: a backup may be older, and without --admin-listen \
             the log cannot be exported; then stop the service, and put the files back or salvage what remains (petstore log \
             salvage); restore the newest backup only if it holds more"
        };
        tracing::error!(
            target: "petstore::service",
            "{advice}; if all files but the lock are in place and no other process uses the store, a restart is enough"
        );
    }
}

/// Loads the certificate, if there is one, and reloads it when its files change.
fn open_tls(arguments: &ServeArguments) -> anyhow::Result<Option<Arc<Tls>>> {
    let (Some(certificate), Some(key)) = (&arguments.tls_cert, &arguments.tls_key) else { return Ok(None) };
    let tls = Arc::new(Tls::open(certificate, key)?);
    tokio::spawn(tls.clone().watch());
    Ok(Some(tls))
}

/// Reloads the key file and the certificate on SIGHUP, which would otherwise end the process.
fn reload_on_hangup(keys: Arc<ApiKeys>, tls: Option<Arc<Tls>>) -> io::Result<()> {
    let mut hangup = signal(SignalKind::hangup())?;
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            let (keys, tls) = (keys.clone(), tls.clone());
            // A hanging disk must delay only the next reload.
            let reload = spawn_blocking(move || {
                let (keys, tls) = (keys.reload(), tls.map_or(Ok(()), |tls| tls.reload()));
                keys?;
                anyhow::Ok(tls?)
            });
            match reload.await {
                Ok(Ok(())) => tracing::info!(
                    target: "petstore::service",
                    "SIGHUP: reloaded the key file and the certificate"
                ),
                Ok(Err(error)) => {
                    tracing::warn!(target: "petstore::service", %error, "SIGHUP: reload failed");
                }
                // A runtime that shuts down cancels the work.
                Err(_) => {}
            }
        }
    });
    Ok(())
}

/// What a person needs first: the addresses, and at the first start the key and two commands that use it.
fn greeting(store: &StoreUrl, url: &str, pets: usize, first_key: Option<&Path>) -> String {
    let count = if pets == 1 { "1 pet".to_owned() } else { format!("{pets} pets") };
    let commands = first_key.map(|file| {
        let key = shell_quoted(&file.display().to_string());
        let curl = format!("curl {url}/v1/pets -H \"Authorization: Bearer $(cat {key})\"");
        let pet = r#"-H "Content-Type: application/json" -d '{"name": "Rex", "categoryId": 7}'"#;
        format!("  key   in {}\n\nAdd a pet, then list all pets:\n  {curl} {pet}\n  {curl}\n", file.display())
    });
    let commands = commands.unwrap_or_default();
    format!(
        "\npetstore {VERSION} is ready: {count} in {store}\n  page  {url}/\n  API   {url}/docs\n{commands}"
    )
}

fn start_logging(arguments: &ServeArguments, stderr: &NonBlocking) {
    // Otherwise the formatter prints its errors directly to standard error, which may block.
    let lines = tracing_subscriber::fmt::layer().with_writer(stderr.clone()).log_internal_errors(false);
    let lines = match arguments.log_format {
        LogFormat::Text => lines.with_ansi(output::has_colours(&io::stderr())).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).with_span_list(false).boxed(),
    };
    tracing_subscriber::registry().with(lines).with(arguments.log_level.clone()).init();
    // The default report of a panic blocks on standard error.
    panic::set_hook(Box::new(|panic| {
        let panic = panic.to_string().replace('\n', " ");
        tracing::error!(target: "petstore::service", panic, "panicked");
    }));
}

fn listen(address: SocketAddr, flag: &str) -> anyhow::Result<TcpListener> {
    http::listen(address).map_err(|error| {
        anyhow!("cannot listen on {address}: {error}; choose another address or port with {flag}")
    })
}

/// A running server. Dropping `stop` also stops it.
struct Server {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<()>,
}

impl Server {
    fn start<F: Future<Output = ()> + Send + 'static>(
        listener: TcpListener,
        serve: impl FnOnce(TcpListener, Task) -> F,
    ) -> anyhow::Result<Self> {
        let (address, (stop, stopped)) = (listener.local_addr()?, oneshot::channel());
        let ended = tokio::spawn(serve(listener, Box::pin(async { drop(stopped.await) })));
        Ok(Self { address, stop, ended })
    }

    async fn stop(self) -> anyhow::Result<()> {
        drop(self.stop);
        self.ended.await.context("the HTTP server failed")
    }
}
