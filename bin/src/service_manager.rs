//! Notifies systemd that the service is ready, stopping or alive. Does nothing without systemd.

use std::slice;

use sd_notify::NotifyState;
use tokio::{task::spawn_blocking, time};

/// Sends a message. A failure is not fatal.
pub(crate) async fn notify(state: NotifyState<'static>) {
    // Sending blocks while the socket of the service manager is full.
    let sent =
        spawn_blocking(move || sd_notify::notify(slice::from_ref(&state)).map_err(|error| (state, error)))
            .await;
    if let Ok(Err((state, error))) = sent {
        tracing::warn!(
            target: "petstore::service",
            %state, %error,
            "cannot notify the service manager at NOTIFY_SOCKET"
        );
    }
}

/// Feeds the watchdog, if there is one, while the service is alive. A hanging runtime does not run this task, so the
/// service manager restarts the service.
pub(crate) async fn feed_watchdog(is_alive: impl Fn() -> bool) {
    let every = sd_notify::watchdog_enabled().map(|limit| limit / 2);
    let Some(every) = every.filter(|every| !every.is_zero()) else { return };
    while is_alive() {
        notify(NotifyState::Watchdog).await;
        time::sleep(every).await;
    }
}
