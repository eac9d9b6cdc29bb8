//! Output that neither blocks nor fails the thread that writes it: a bounded queue and a thread that empties it.
//!
//! stderr may be a full disk, a pipe whose reader is gone, or a pipe that is not read. A server that wrote to it directly
//! would panic or hang with it. Lines that find no room in the queue, or that the sink does not take, are dropped and counted.
//!
//! `tracing-appender` has a queue of this kind. It bounds lines and not bytes, does not count what a broken sink lost, and
//! does not tell later that something is missing.

use parking_lot::{Condvar, Mutex};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;
use tracing_subscriber::fmt::MakeWriter;

/// The most bytes that wait to be written: some thousand lines. As many again may be on their way to the sink.
const MAX_QUEUED_BYTES: usize = 1024 * 1024;
/// How much room the queue keeps when it is empty.
const KEPT_BYTES: usize = 64 * 1024;

/// A queue of lines for one sink. A clone is the same queue.
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
    /// No more lines are expected: the thread ends once the queue is empty.
    is_closed: bool,
    /// The thread has ended.
    is_done: bool,
}

impl Output {
    /// Starts the thread that writes to `sink`. When a write succeeds after lines were dropped, `report` is called with
    /// their number; it may push to this output.
    ///
    /// # Errors
    /// If no thread can be started.
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
        thread::Builder::new().name(name.to_owned()).spawn(move || shared.empty(sink, report))?;
        Ok(output)
    }

    /// Appends whole lines, or drops them if there is no room.
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

    /// How many lines were dropped so far.
    pub(super) fn dropped(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.0.dropped)
    }

    /// Has the thread write what is queued and end, and waits for it, but no longer than `timeout`.
    pub(super) fn close(&self, timeout: Duration) {
        let mut queue = self.0.queue.lock();
        queue.is_closed = true;
        self.0.changed.notify_all();
        self.0.changed.wait_while_for(&mut queue, |queue| !queue.is_done, timeout);
    }
}

impl OutputInner {
    /// Writes what is queued until the queue is closed and empty.
    fn empty(&self, mut sink: Sink<impl Write>, report: impl Fn(u64)) {
        let (mut lines, mut works, mut reported) = (Vec::new(), false, 0);
        let mut report_if_due = |works: bool| {
            let dropped = self.dropped.load(Relaxed);
            // In a full queue the report would be dropped, too.
            if works && dropped > reported && self.queue.lock().bytes.len() <= MAX_QUEUED_BYTES / 2 {
                report(dropped - reported);
                reported = dropped;
            }
        };
        while self.take(&mut lines) {
            // The queue was just emptied.
            report_if_due(works);
            let lost = sink.write(&lines);
            lines.clear();
            lines.shrink_to(KEPT_BYTES);
            self.dropped.fetch_add(lost, Relaxed);
            works = lost == 0;
            report_if_due(works);
        }
    }

    /// Waits for lines and swaps them into `lines`, which is empty. Returns `false` at the end.
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

/// Where lines end up.
#[derive(Debug)]
struct Sink<W> {
    out: W,
    /// The last write failed in the middle of a line, so the next one starts a new line.
    is_within_line: bool,
}

impl<W: Write> Sink<W> {
    /// Writes as much of `lines` as the sink takes, and returns how many lines it did not take.
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

/// stderr, for a thread that may block in it. Where that is possible it is a descriptor of its own: a thread that blocks in
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

    /// Takes as many bytes of each write as the test says, or fails.
    struct Script {
        turns: Receiver<Option<usize>>,
        written: Written,
    }

    impl Write for Script {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let turn = self.turns.recv().unwrap_or(Some(usize::MAX));
            let most = turn.ok_or(io::ErrorKind::StorageFull)?;
            let length = bytes.len().min(most);
            self.written.lock().extend_from_slice(&bytes[..length]);
            Ok(length)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    type Turns = SyncSender<Option<usize>>;
    type Written = Arc<Mutex<Vec<u8>>>;

    /// An output, what its writes do, and what was written.
    fn scripted() -> (Output, Turns, Written) {
        let (turn, turns) = sync_channel(16);
        let written = Arc::new(Mutex::new(Vec::new()));
        let sink = Script { turns, written: Arc::clone(&written) };
        let itself = Arc::new(Mutex::new(None::<Output>));
        let pushed_to = Arc::clone(&itself);
        let report = move |lines| {
            if let Some(output) = &*pushed_to.lock() {
                output.push(format!("{lines} dropped\n").as_bytes());
            }
        };
        let output = Output::start("test", sink, report).unwrap();
        *itself.lock() = Some(output.clone());
        (output, turn, written)
    }

    fn text(written: &Mutex<Vec<u8>>) -> String {
        String::from_utf8(written.lock().clone()).unwrap()
    }

    #[test]
    fn lines_that_a_sink_does_not_take_are_counted_and_told_when_it_works_again() {
        let (output, turn, written) = scripted();
        turn.send(None).unwrap();
        output.push(b"one\n");
        while output.dropped().load(Relaxed) == 0 {
            thread::yield_now();
        }
        drop(turn);
        output.push(b"two\n");
        output.close(LONG);
        assert_eq!(text(&written), "two\n1 dropped\n");
    }

    #[test]
    fn a_line_that_was_cut_off_does_not_run_into_the_next() {
        let written = Arc::new(Mutex::new(Vec::new()));
        let (turn, turns) = sync_channel(16);
        let mut sink = Sink { out: Script { turns, written: Arc::clone(&written) }, is_within_line: false };
        turn.send(Some(6)).unwrap();
        turn.send(None).unwrap();
        assert_eq!(sink.write(b"one\ntwo\nthree\n"), 2, "one whole line was written");
        turn.send(None).unwrap();
        assert_eq!(sink.write(b"four\n"), 1);
        drop(turn);
        assert_eq!(sink.write(b"five\n"), 0);
        assert_eq!(text(&written), "one\ntw\nfive\n");
    }

    #[test]
    fn a_sink_that_blocks_holds_up_nobody_and_costs_bounded_memory() {
        let (output, turn, written) = scripted();
        let line = [vec![b'x'; 1023], vec![b'\n']].concat();
        for _ in 0..5_000 {
            output.push(&line);
        }
        // What was queued, and what the thread may have taken before.
        let (room, dropped) = ((MAX_QUEUED_BYTES / line.len()) as u64, output.dropped().load(Relaxed));
        assert!((5_000 - 2 * room..=5_000 - room).contains(&dropped), "{dropped} were dropped");
        output.close(Duration::from_millis(1));
        assert_eq!(written.lock().len(), 0, "closing did not wait");
        drop(turn);
        output.close(LONG);
        assert!(text(&written).ends_with(&format!("{dropped} dropped\n")));
        output.push(b"late\n");
        assert_eq!(output.dropped().load(Relaxed), dropped + 1);
    }
}
