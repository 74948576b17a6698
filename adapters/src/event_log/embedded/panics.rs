//! Turns panics of an engine into errors of one sentence.

use std::{
    any::Any,
    cell::Cell,
    panic::{self, AssertUnwindSafe},
    sync::Once,
};

use application::ports::{Fault, LogError};

thread_local! {
    static CATCHING: Cell<bool> = const { Cell::new(false) };
}

const PROBABLY_DAMAGED: &str = "its files are probably damaged";

/// Calls an engine that reads or opens its files. A panic then almost always means damaged files.
pub(crate) fn reading<T>(doing: &str, call: impl FnOnce() -> Result<T, LogError>) -> Result<T, LogError> {
    catch(doing, Fault::Damaged, PROBABLY_DAMAGED, call)
}

/// Calls an engine that writes or syncs its files. Reopening shows whether they are intact.
pub(crate) fn writing<T>(doing: &str, call: impl FnOnce() -> Result<T, LogError>) -> Result<T, LogError> {
    catch(doing, Fault::WriteFailed, "check the disk", call)
}

fn catch<T>(
    doing: &str,
    fault: Fault,
    what_to_do: &str,
    call: impl FnOnce() -> Result<T, LogError>,
) -> Result<T, LogError> {
    static SILENCED: Once = Once::new();
    SILENCED.call_once(|| silence_panics(|| CATCHING.get()));
    let outer = CATCHING.replace(true);
    // Unwind-safe, because the engine is closed and reopened after a panic.
    let outcome = panic::catch_unwind(AssertUnwindSafe(call));
    CATCHING.set(outer);
    outcome.unwrap_or_else(|panic| Err(failed(doing, fault, what_to_do, &*panic)))
}

/// The error of a read whose task panicked, which [`reading`] could not prevent.
pub(crate) fn read_panicked(panic: &(dyn Any + Send)) -> LogError {
    failed("reading the log", Fault::Damaged, PROBABLY_DAMAGED, panic)
}

fn failed(doing: &str, fault: Fault, what_to_do: &str, panic: &(dyn Any + Send)) -> LogError {
    let message = message(panic);
    fault.error(format!("{doing} failed inside the storage engine ({message}): {what_to_do}"))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let message = panic.downcast_ref::<String>().map(String::as_str);
    one_line(message.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message"))
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
