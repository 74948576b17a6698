//! A wall around the engine: what it throws becomes one sentence, never a dead thread and never noise for
//! users.

use std::{
    any::Any,
    cell::Cell,
    io,
    panic::{self, AssertUnwindSafe},
    sync::Once,
    thread,
};

use application::ports::{Fault, LogError};

use crate::event_log::disk::io_trouble;

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Calls the engine. It panics where others return errors: a panic becomes `Damaged`, since what makes it
/// panic is nearly always a file that does not hold what was written.
pub(super) fn guarded<T>(doing: &str, call: impl FnOnce() -> ::sled::Result<T>) -> Result<T, LogError> {
    silence_engine_panics();
    GUARDED.set(true);
    // Whatever the panic left half done is dropped with the engine: a panic closes the log.
    let outcome = panic::catch_unwind(AssertUnwindSafe(call));
    GUARDED.set(false);
    match outcome {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(explain(doing, error)),
        Err(panic) => {
            let detail = format!(
                "{doing} failed inside the storage engine ({}): its files are probably damaged; restore the \
                 store from a backup, or salvage what is left into a new one",
                words_of(&*panic)
            );
            Err(LogError::new(Fault::Damaged, detail))
        }
    }
}

/// Keeps panics that end in [`guarded`], and those of the engine's own threads, which its callers hear of,
/// out of the standard error stream. All other panics are reported as before.
fn silence_engine_panics() {
    static SILENCED: Once = Once::new();
    SILENCED.call_once(|| {
        let report = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            let of_engine = thread::current().name().is_some_and(|name| name.starts_with("sled-io-"));
            if GUARDED.get() || of_engine {
                tracing::debug!("the storage engine panicked: {panic}");
            } else {
                report(panic);
            }
        }));
    });
}

fn explain(doing: &str, error: ::sled::Error) -> LogError {
    match error {
        ::sled::Error::Io(error) => io_trouble(doing, &original(error)),
        ::sled::Error::Corruption { .. } | ::sled::Error::CollectionNotFound(_) => LogError::new(
            Fault::Damaged,
            format!(
                "{doing} failed: the files of the storage engine are damaged; restore the store from a \
                 backup, or salvage what is left into a new one"
            ),
        ),
        ::sled::Error::Unsupported(reason) => {
            LogError::new(Fault::CannotOpen, format!("{doing} failed: {}", one_line(&reason)))
        }
        ::sled::Error::ReportableBug(reason) => {
            LogError::new(Fault::WriteFailed, format!("{doing} failed: {}", one_line(&reason)))
        }
    }
}

/// sled hands errors of the system on as text that shows their code; what they were says more to people.
fn original(error: io::Error) -> io::Error {
    let text = error.to_string();
    let code = text.split_once("code: ").and_then(|(_, rest)| rest.split(',').next()?.parse().ok());
    code.map_or(error, io::Error::from_raw_os_error)
}

fn words_of(panic: &(dyn Any + Send)) -> String {
    let words = panic.downcast_ref::<String>().map(String::as_str);
    one_line(words.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no words"))
}

/// The engine's messages run over several lines and may hold whole buffers.
fn one_line(text: &str) -> String {
    const WORDS_MAX: usize = 20;
    text.split_whitespace().take(WORDS_MAX).collect::<Vec<_>>().join(" ")
}
