//! Writes the output of the service on a separate thread. A stalled reader delays only that thread: lines that no
//! longer fit into its queue are dropped and counted.

use std::{
    fmt::Display,
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Duration,
};

/// The maximum size of the queue, in bytes. With `--log debug` that is a burst of a few thousand requests.
const WAITING_MAX: usize = 1024 * 1024;

/// The cost of a queued line besides its bytes, which also limits the number of short lines.
const LINE_COST: usize = 64;

/// The queue of the thread. Each call of its `Write` implementation takes a whole line.
pub(crate) struct BackgroundWriter {
    queue: Sender<Message>,
    /// The cost of all lines in the queue.
    waiting: Arc<AtomicUsize>,
    /// The number of dropped lines.
    pub(crate) dropped: Arc<AtomicU64>,
}

enum Message {
    Line(Vec<u8>),
    /// Confirms that everything before it has been written.
    Flush(Sender<()>),
}

impl BackgroundWriter {
    pub(crate) fn start(stream: impl Write + Send + 'static) -> io::Result<Self> {
        let (queue, messages) = channel();
        let (waiting, dropped) = (Arc::<AtomicUsize>::default(), Arc::<AtomicU64>::default());
        let (queued, lost) = (waiting.clone(), dropped.clone());
        let worker = Worker { messages, stream, waiting: queued, dropped: lost, reported: 0 };
        thread::Builder::new().name("output".into()).spawn(move || worker.run())?;
        Ok(Self { queue, waiting, dropped })
    }

    pub(crate) fn print_line(&self, line: impl Display) {
        self.send(format!("{line}\n").into());
    }

    /// Waits until everything has been written, or for `timeout`. The rest is lost.
    pub(crate) fn flush(&self, timeout: Duration) {
        let (done, flushed) = channel();
        if self.queue.send(Message::Flush(done)).is_ok() {
            let _ = flushed.recv_timeout(timeout);
        }
    }

    fn send(&self, line: Vec<u8>) {
        let cost = cost(&line);
        if self.waiting.fetch_add(cost, Relaxed) + cost > WAITING_MAX {
            self.waiting.fetch_sub(cost, Relaxed);
            self.dropped.fetch_add(1, Relaxed);
        } else if self.queue.send(Message::Line(line)).is_err() {
            self.dropped.fetch_add(1, Relaxed);
        }
    }
}

impl Write for &BackgroundWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.send(line.into());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn cost(line: &[u8]) -> usize {
    line.len() + LINE_COST
}

/// The thread's side of the queue.
struct Worker<S> {
    messages: Receiver<Message>,
    stream: S,
    waiting: Arc<AtomicUsize>,
    dropped: Arc<AtomicU64>,
    reported: u64,
}

impl<S: Write> Worker<S> {
    fn run(mut self) {
        while let Ok(message) = self.messages.recv() {
            match message {
                Message::Line(line) => self.write(&line),
                // The caller may have stopped waiting.
                Message::Flush(done) => drop(done.send(())),
            }
        }
    }

    fn write(&mut self, line: &[u8]) {
        let written = self.stream.write_all(line).and_then(|()| self.stream.flush());
        let waiting = self.waiting.fetch_sub(cost(line), Relaxed) - cost(line);
        if written.is_err() {
            self.dropped.fetch_add(1, Relaxed);
            return;
        }
        let dropped = self.dropped.load(Relaxed);
        // The report is queued like any other line, so it waits for room.
        if dropped > self.reported && waiting <= WAITING_MAX / 2 {
            self.reported = dropped;
            tracing::warn!(
                target: "petstore::service",
                dropped,
                "log lines dropped: standard error is read too slowly"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A reader that takes nothing until it is released.
    struct Stalled {
        released: Receiver<()>,
        read: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Stalled {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // The sender is dropped to release everything.
            let _ = self.released.recv();
            self.read.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_stalled_reader_loses_lines_and_delays_no_writer() {
        let (release, released) = channel();
        let read = Arc::<Mutex<Vec<u8>>>::default();
        let output = BackgroundWriter::start(Stalled { released, read: read.clone() }).unwrap();
        let line = "x".repeat(1023);
        let fit = WAITING_MAX / (1024 + LINE_COST);
        for _ in 0..fit + 100 {
            output.print_line(&line);
        }
        output.flush(Duration::from_millis(20));
        assert_eq!(output.dropped.load(Relaxed), 100);
        assert!(read.lock().unwrap().is_empty());

        drop(release);
        output.flush(Duration::from_mins(1));
        assert_eq!(read.lock().unwrap().len(), fit * 1024, "the others are written, each of them once");
    }

    #[test]
    fn lines_for_a_reader_that_has_gone_are_counted() {
        let (reader, stream) = io::pipe().unwrap();
        let output = BackgroundWriter::start(stream).unwrap();
        drop(reader);
        output.print_line("a");
        output.print_line("b");
        output.flush(Duration::from_mins(1));
        assert_eq!(output.dropped.load(Relaxed), 2);
    }
}
