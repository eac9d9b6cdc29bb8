//! Output that neither blocks nor fails the writing thread: a bounded queue and a thread that drains it.
//!
//! stderr may be a full disk, a pipe whose reader is gone, or a pipe that is not read. A server that wrote to it
//! directly would panic or hang. Lines that do not fit into the queue, or that the sink does not accept, are dropped
//! and counted.
//!
//! `tracing-appender` has a similar queue, but it bounds lines and not bytes, does not count lines lost by a broken
//! sink, and does not report the loss later.

use parking_lot::{Condvar, Mutex};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;
use tracing_subscriber::fmt::MakeWriter;

/// The maximum number of queued bytes: some thousand lines. As many again may be in the sink's buffer.
const MAX_QUEUED_BYTES: usize = 1024 * 1024;
/// The capacity that an empty queue keeps.
const KEPT_BYTES: usize = 64 * 1024;

/// A queue of lines for one sink. Clones share the queue.
#[derive(Clone, Debug)]
pub(super) struct Output(Arc<OutputInner>);

#[derive(Debug)]
struct OutputInner {
    queue: Mutex<LineQueue>,
    changed: Condvar,
    dropped: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct LineQueue {
    bytes: Vec<u8>,
    /// No more lines are expected: the thread exits once the queue is empty.
    is_closed: bool,
    /// The thread has exited.
    is_done: bool,
}

impl Output {
    /// Starts the thread that writes to `sink`. When a write succeeds after lines were dropped, `report` is called with
    /// their number. It may push to this output.
    ///
    /// # Errors
    /// If the thread can't be started.
    pub(super) fn start(
        name: &str,
        sink: impl Write + Send + 'static,
        report: impl Fn(u64) + Send + 'static,
    ) -> io::Result<Output> {
        let output = Output(Arc::new(OutputInner {
            queue: Mutex::default(),
            changed: Condvar::new(),
            dropped: Arc::default(),
        }));
        let shared = Arc::clone(&output.0);
        let sink = Sink { out: sink, is_within_line: false };
        thread::Builder::new().name(name.to_owned()).spawn(move || shared.drain(sink, report))?;
        Ok(output)
    }

    /// Appends whole lines, or drops them if the queue is full.
    pub(super) fn push(&self, lines: &[u8]) {
        let mut queue = self.0.queue.lock();
        if queue.bytes.len() + lines.len() > MAX_QUEUED_BYTES || queue.is_done {
            drop(queue);
            self.0.dropped.fetch_add(count_lines(lines), Relaxed);
        } else {
            queue.bytes.extend_from_slice(lines);
            drop(queue);
            self.0.changed.notify_all();
        }
    }

    /// The number of lines dropped so far.
    pub(super) fn dropped(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.0.dropped)
    }

    /// Closes the queue and waits up to `timeout` for the thread to write it and exit.
    pub(super) fn close(&self, timeout: Duration) {
        let mut queue = self.0.queue.lock();
        queue.is_closed = true;
        self.0.changed.notify_all();
        self.0.changed.wait_while_for(&mut queue, |queue| !queue.is_done, timeout);
    }
}

impl OutputInner {
    /// Writes queued lines until the queue is closed and empty.
    fn drain(&self, mut sink: Sink<impl Write>, report: impl Fn(u64)) {
        let (mut lines, mut is_working, mut reported) = (Vec::new(), false, 0);
        let mut report_if_due = |is_working: bool| {
            let dropped = self.dropped.load(Relaxed);
            // A full queue would drop the report too.
            if is_working && dropped > reported && self.queue.lock().bytes.len() <= MAX_QUEUED_BYTES / 2 {
                report(dropped - reported);
                reported = dropped;
            }
        };
        while self.take(&mut lines) {
            // The queue was just emptied.
            report_if_due(is_working);
            let failed_lines = sink.write(&lines);
            lines.clear();
            lines.shrink_to(KEPT_BYTES);
            self.dropped.fetch_add(failed_lines, Relaxed);
            is_working = failed_lines == 0;
            report_if_due(is_working);
        }
    }

    /// Waits for lines and swaps them into `lines`, which must be empty. Returns `false` once the queue is closed and
    /// empty.
    fn take(&self, lines: &mut Vec<u8>) -> bool {
        let mut queue = self.queue.lock();
        self.changed.wait_while(&mut queue, |queue| queue.bytes.is_empty() && !queue.is_closed);
        if queue.bytes.is_empty() {
            queue.is_done = true;
            self.changed.notify_all();
            return false;
        }
        std::mem::swap(&mut queue.bytes, lines);
        true
    }
}

/// The destination of the lines.
#[derive(Debug)]
struct Sink<W> {
    out: W,
    /// Whether the last write failed in the middle of a line, so that the next one must start a new line.
    is_within_line: bool,
}

impl<W: Write> Sink<W> {
    /// Writes as much of `lines` as the sink accepts, and returns the number of lines that it did not.
    fn write(&mut self, lines: &[u8]) -> u64 {
        if self.is_within_line && self.out.write_all(b"\n").is_err() {
            return count_lines(lines);
        }
        self.is_within_line = false;
        let mut rest = lines;
        while !rest.is_empty() {
            match self.out.write(rest) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(written) if written > 0 => rest = &rest[written..],
                Ok(_) | Err(_) => break,
            }
        }
        let written = &lines[..lines.len() - rest.len()];
        self.is_within_line = !rest.is_empty() && written.last().is_some_and(|last| *last != b'\n');
        count_lines(rest)
    }
}

fn count_lines(lines: &[u8]) -> u64 {
    lines.iter().map(|byte| u64::from(*byte == b'\n')).sum()
}

/// Each event is written with one call, as a whole line.
impl Write for Output {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Output {
    type Writer = Output;

    fn make_writer(&'a self) -> Output {
        self.clone()
    }
}

/// stdout, for a thread that may block in it.
pub(super) fn stdout() -> Box<dyn Write + Send> {
    #[cfg(unix)]
    if let Ok(duplicate) = std::os::fd::AsFd::as_fd(&io::stdout()).try_clone_to_owned() {
        return Box::new(std::fs::File::from(duplicate));
    }
    Box::new(io::stdout())
}

/// stderr, for a thread that may block in it. Where possible it is a duplicated descriptor: a thread that blocks in
/// [`io::stderr`] holds a lock that every other user of stderr waits for.
pub(super) fn stderr() -> Box<dyn Write + Send> {
    #[cfg(unix)]
    if let Ok(duplicate) = std::os::fd::AsFd::as_fd(&io::stderr()).try_clone_to_owned() {
        return Box::new(std::fs::File::from(duplicate));
    }
    Box::new(io::stderr())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    const LONG: Duration = Duration::from_secs(60);

    /// Accepts as many bytes of each write as the test says, or fails.
    struct Script {
        turns: Receiver<Option<usize>>,
        written: Written,
    }

    impl Write for Script {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let step = self.turns.recv().unwrap_or(Some(usize::MAX));
            let max = step.ok_or(io::ErrorKind::StorageFull)?;
            let length = bytes.len().min(max);
            self.written.lock().extend_from_slice(&bytes[..length]);
            Ok(length)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    type Turns = SyncSender<Option<usize>>;
    type Written = Arc<Mutex<Vec<u8>>>;

    /// An output, a channel that scripts its writes, and the bytes written.
    fn scripted() -> (Output, Turns, Written) {
        let (step, script) = sync_channel(16);
        let written = Arc::new(Mutex::new(Vec::new()));
        let sink = Script { turns: script, written: Arc::clone(&written) };
        let own_output = Arc::new(Mutex::new(None::<Output>));
        let pushed_to = Arc::clone(&own_output);
        let report = move |lines| {
            if let Some(output) = &*pushed_to.lock() {
                output.push(format!("{lines} dropped\n").as_bytes());
            }
        };
        let output = Output::start("test", sink, report).unwrap();
        *own_output.lock() = Some(output.clone());
        (output, step, written)
    }

    fn text(written: &Mutex<Vec<u8>>) -> String {
        String::from_utf8(written.lock().clone()).unwrap()
    }

    #[test]
    fn dropped_lines_are_counted_and_reported_when_the_sink_recovers() {
        let (output, step, written) = scripted();
        step.send(None).unwrap();
        output.push(b"one\n");
        while output.dropped().load(Relaxed) == 0 {
            thread::yield_now();
        }
        drop(step);
        output.push(b"two\n");
        output.close(LONG);
        assert_eq!(text(&written), "two\n1 dropped\n");
    }

    #[test]
    fn a_truncated_line_does_not_run_into_the_next() {
        let written = Arc::new(Mutex::new(Vec::new()));
        let (step, script) = sync_channel(16);
        let mut sink =
            Sink { out: Script { turns: script, written: Arc::clone(&written) }, is_within_line: false };
        step.send(Some(6)).unwrap();
        step.send(None).unwrap();
        assert_eq!(sink.write(b"one\ntwo\nthree\n"), 2, "one whole line was written");
        step.send(None).unwrap();
        assert_eq!(sink.write(b"four\n"), 1);
        drop(step);
        assert_eq!(sink.write(b"five\n"), 0);
        assert_eq!(text(&written), "one\ntw\nfive\n");
    }

    #[test]
    fn a_blocked_sink_blocks_no_writer_and_costs_bounded_memory() {
        let (output, step, written) = scripted();
        let line = [vec![b'x'; 1023], vec![b'\n']].concat();
        for _ in 0..5_000 {
            output.push(&line);
        }
        // The queued lines, and those that the thread may have taken before.
        let (queued, dropped) = ((MAX_QUEUED_BYTES / line.len()) as u64, output.dropped().load(Relaxed));
        assert!((5_000 - 2 * queued..=5_000 - queued).contains(&dropped), "{dropped} were dropped");
        output.close(Duration::from_millis(1));
        assert_eq!(written.lock().len(), 0, "closing did not wait");
        drop(step);
        output.close(LONG);
        assert!(text(&written).ends_with(&format!("{dropped} dropped\n")));
        output.push(b"late\n");
        assert_eq!(output.dropped().load(Relaxed), dropped + 1);
    }
}
