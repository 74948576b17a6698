//! Turns panics of an engine into errors of one sentence.

use std::{
    any::Any,
    cell::Cell,
    panic::{self, AssertUnwindSafe},
    sync::Once,
    thread,
};

use application::ports::{Fault, LogError};

thread_local! {
    static CATCHING: Cell<bool> = const { Cell::new(false) };
}

/// Calls an engine that reads or opens its files. A panic then almost always means damaged files.
pub(crate) fn reading<T>(doing: &str, call: impl FnOnce() -> Result<T, LogError>) -> Result<T, LogError> {
    catch(call).unwrap_or_else(|panic| Err(read_panicked(doing, &*panic)))
}

/// Calls an engine that writes or syncs its files. Reopening shows whether they are intact.
pub(crate) fn writing<T>(doing: &str, call: impl FnOnce() -> Result<T, LogError>) -> Result<T, LogError> {
    catch(call).unwrap_or_else(|panic| Err(panicked(doing, &*panic, Fault::WriteFailed, "check the disk")))
}

/// The error of a read that panicked.
pub(crate) fn read_panicked(doing: &str, panic: &(dyn Any + Send)) -> LogError {
    panicked(doing, panic, Fault::Damaged, "its files are probably damaged")
}

fn panicked(doing: &str, panic: &(dyn Any + Send), fault: Fault, what_to_do: &str) -> LogError {
    let message = panic.downcast_ref::<String>().map(String::as_str);
    let message = message.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
    fault.error(format!("{doing} failed inside the storage engine ({}): {what_to_do}", one_line(message)))
}

fn catch<T>(call: impl FnOnce() -> T) -> thread::Result<T> {
    static SILENCED: Once = Once::new();
    SILENCED.call_once(|| silence_panics(|| CATCHING.get()));
    let outer = CATCHING.replace(true);
    // Unwind-safe, because the engine is closed and reopened after a panic.
    let outcome = panic::catch_unwind(AssertUnwindSafe(call));
    CATCHING.set(outer);
    outcome
}

/// Shortens a message to one line. Messages of engines can have several lines and hold whole buffers.
pub(crate) fn one_line(text: &str) -> String {
    const WORDS_MAX: usize = 20;
    text.split_whitespace().take(WORDS_MAX).collect::<Vec<_>>().join(" ")
}

/// Suppresses the report of panics that are caught. Other panics are reported as before.
pub(crate) fn silence_panics(caught: impl Fn() -> bool + Send + Sync + 'static) {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if caught() {
            tracing::debug!(target: "petstore::storage", %panic, "storage engine panicked");
        } else {
            report(panic);
        }
    }));
}
