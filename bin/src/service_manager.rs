//! Messages to systemd, by the protocol of `sd_notify`: the service is ready, is stopping, or is still alive. Without
//! systemd they go nowhere.

use std::{
    env, io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            ffi::OsStrExt as _,
            net::{SocketAddr, UnixDatagram as StdUnixDatagram},
        },
    },
    process,
    time::Duration,
};

use tokio::{
    net::UnixDatagram,
    time::{self, MissedTickBehavior},
};

/// The service manager that started this process.
pub(crate) struct ServiceManager {
    /// `None` if it expects no messages.
    socket: Option<UnixDatagram>,
}

impl ServiceManager {
    /// The service manager that the environment names. One that cannot be reached is not worth refusing to serve.
    pub(crate) fn from_environment() -> Self {
        let connected = connect();
        if let Err(error) = &connected {
            tracing::warn!("cannot send messages to the service manager at NOTIFY_SOCKET: {error}");
        }
        Self { socket: connected.ok().flatten() }
    }

    /// The service takes requests.
    pub(crate) async fn ready(&self) {
        self.send("READY=1").await;
    }

    /// The service has begun to stop.
    pub(crate) async fn stopping(&self) {
        self.send("STOPPING=1").await;
    }

    /// Feeds the watchdog, if there is one, for as long as the service is alive. A runtime that hangs runs this task no
    /// more than any other, so that the service manager restarts the service.
    pub(crate) async fn feed_watchdog(&self, is_alive: impl Fn() -> bool) {
        let Some(every) = watchdog_interval() else { return };
        let mut interval = time::interval(every);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while is_alive() {
            self.send("WATCHDOG=1").await;
            interval.tick().await;
        }
    }

    async fn send(&self, message: &str) {
        if let Some(socket) = &self.socket
            && let Err(error) = socket.send(message.as_bytes()).await
        {
            tracing::warn!("the service manager did not take {message}: {error}");
        }
    }
}

fn connect() -> io::Result<Option<UnixDatagram>> {
    let Some(name) = env::var_os("NOTIFY_SOCKET") else { return Ok(None) };
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(&name)?,
    };
    let socket = StdUnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    socket.set_nonblocking(true)?;
    UnixDatagram::from_std(socket).map(Some)
}

/// Half of the time after which this process counts as hanging.
fn watchdog_interval() -> Option<Duration> {
    let number = |name| env::var(name).ok()?.parse::<u64>().ok();
    let meant = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(process::id()));
    let limit = number("WATCHDOG_USEC").filter(|&limit| meant && limit > 1)?;
    Some(Duration::from_micros(limit / 2))
}
