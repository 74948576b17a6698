//! `petstore serve`: runs the service from the first probe to the last answer.

use std::{
    io::{self, IsTerminal as _},
    path::Path,
    sync::Arc,
    time::Duration,
};

use adapters::http::{self, Service, Settings};
use anyhow::{Context as _, bail};
use application::PetStore;
use tokio::{
    net::TcpListener,
    signal::unix::{Signal, SignalKind, signal},
};
use tracing_subscriber::EnvFilter;

use crate::{
    config::{LogFormat, ServeArguments},
    wire::{self, Keys},
};

/// How long threads that hang may hold up the end of the program.
const LAST_WAIT: Duration = Duration::from_secs(1);

pub(crate) fn run(arguments: ServeArguments) -> anyhow::Result<()> {
    if !arguments.listen.ip().is_loopback() && !arguments.insecure_http {
        bail!(
            "{} is reachable from other machines and plain HTTP shows the API keys to the network: \
             listen on 127.0.0.1, or say --insecure-http if something in front does TLS",
            arguments.listen
        );
    }
    start_logging(&arguments)?;
    let runtime = tokio::runtime::Runtime::new().context("the runtime cannot start")?;
    let outcome = runtime.block_on(serve(arguments));
    runtime.shutdown_timeout(LAST_WAIT);
    outcome
}

async fn serve(arguments: ServeArguments) -> anyhow::Result<()> {
    let mut end = EndSignals::new()?;
    let keys = Keys::open(&arguments.keys)?;
    let listener = TcpListener::bind(arguments.listen).await.with_context(|| {
        format!("cannot listen on {}: choose another address with --listen", arguments.listen)
    })?;
    let address = listener.local_addr()?;
    println!("petstore {} listens on http://{address}", env!("CARGO_PKG_VERSION"));

    let service = Arc::new(Service::new(keys.authenticator()));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let connections_max = arguments.max_connections as usize;
    let settings = Settings { connections_max, drain: arguments.drain, ..Settings::default() };
    let server = tokio::spawn(http::serve(listener, service.clone(), settings, async {
        // A dropped sender means the same as a word: it is over.
        let _ = stopped.await;
    }));

    let store = tokio::select! {
        opened = wire::open_store(&arguments.store.store, arguments.require_durability.into()) => Arc::new(opened?),
        () = end.received() => return Ok(()),
    };
    service.open(store.clone());
    greet(&arguments, &store, &format!("http://{address}"), &keys);

    end.received().await;
    tracing::info!("stopping: requests in flight have {:?} to finish", arguments.drain);
    service.drain();
    let leave = async {
        tokio::time::sleep(arguments.drain_delay).await;
        drop(stop);
        server.await
    };
    tokio::select! {
        ended = leave => ended.context("the HTTP port failed")?,
        () = end.received() => bail!("told to stop twice: ended at once"),
    }
    drop(service);
    keys.close();
    if let Some(store) = Arc::into_inner(store) {
        store.close().await;
    }
    tracing::info!("stopped");
    Ok(())
}

/// Tells what is being served, and how to call it while the first key is still there.
fn greet(arguments: &ServeArguments, store: &PetStore, url: &str, keys: &Keys) {
    let promise = store.durability().promise;
    println!(
        "{}: {} pets at position {}; {promise}",
        arguments.store.store,
        store.count(),
        store.version().position
    );
    if let Some(file) = keys.first_key_in_force() {
        println!("\nTry it:\n  curl -H \"Authorization: Bearer $(cat {})\" {url}/v1/pets", quoted(&file));
    }
}

/// The path as a shell reads it inside double quotes and a substitution.
fn quoted(path: &Path) -> String {
    let path = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:@".contains(c);
    if path.chars().all(plain) { path } else { format!("'{}'", path.replace('\'', r"'\''")) }
}

fn start_logging(arguments: &ServeArguments) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&arguments.log)
        .with_context(|| format!("--log {} is no filter: write for example info or debug", arguments.log))?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    match arguments.log_format {
        LogFormat::Text => log.with_ansi(io::stderr().is_terminal()).init(),
        LogFormat::Json => log.json().init(),
    }
    Ok(())
}

/// SIGTERM and SIGINT, whichever comes first.
struct EndSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl EndSignals {
    fn new() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn received(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
