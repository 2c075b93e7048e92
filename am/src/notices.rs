//! Events in the log, and as lines on standard output for the command line that started a local run.
//!
//! The reader may stop reading at any time: Ctrl-Z, a terminal that is not read, a slow program behind a pipe. A pipe
//! holds 64 KiB; then a write blocks. So the driver queues lines, and a separate thread writes them. The queue is
//! bounded. A newer progress line replaces one that waits. Of the others the oldest are dropped when the queue is full,
//! and a warning in their place gives their number. The first and the last event of the job are never dropped. At the
//! end of the process [`flush`] waits for the reader, for a limited time; the run directory has the outcome too.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use heddle_protocol::view::{JobEvent, WarningCode};

use crate::report::event::{self, Weight};

/// Most bytes of waiting lines, besides those that are never dropped: some 3,000 passes.
const WAITING_BYTES_MAX: usize = 1 << 20;

#[derive(Default)]
struct LineQueue {
    lines: VecDeque<(Weight, String)>,
    /// Of the lines that may be dropped.
    bytes: usize,
    dropped: u64,
    /// A line is being written.
    writing: bool,
    /// The reader has closed its end: lines are discarded.
    gone: bool,
}

impl LineQueue {
    fn push(&mut self, weight: Weight, line: String) {
        if self.gone {
            return;
        }
        if weight == Weight::Progress {
            self.remove_first(Weight::Progress);
        }
        if weight != Weight::Kept {
            self.bytes += line.len();
        }
        self.lines.push_back((weight, line));
        while self.bytes > WAITING_BYTES_MAX && self.remove_first(Weight::Passing) {
            self.dropped += 1;
        }
    }

    fn remove_first(&mut self, weight: Weight) -> bool {
        let Some(at) = self.lines.iter().position(|(of, _)| *of == weight) else {
            return false;
        };
        if let Some((_, line)) = self.lines.remove(at) {
            self.bytes -= line.len();
        }
        true
    }

    fn pop(&mut self) -> Option<String> {
        // What was dropped stood behind the beginning and before everything else.
        let is_kept = matches!(self.lines.front(), Some((Weight::Kept, _)));
        if self.dropped > 0 && !is_kept {
            let text = format!(
                "{} events are not shown: the output was not read for a while",
                std::mem::take(&mut self.dropped)
            );
            return JobEvent::warning(WarningCode::EventsNotShown, text).to_json().ok();
        }
        let (weight, line) = self.lines.pop_front()?;
        if weight != Weight::Kept {
            self.bytes -= line.len();
        }
        Some(line)
    }
}

/// A queue and the thread that writes it.
struct Notices {
    queue: Mutex<LineQueue>,
    changed: Condvar,
}

impl Notices {
    fn start(out: impl Write + Send + 'static) -> Arc<Self> {
        let notices = Arc::new(Self { queue: Mutex::default(), changed: Condvar::new() });
        let writer = Arc::clone(&notices);
        let started = std::thread::Builder::new()
            .name("notices".into())
            .stack_size(128 * 1024)
            .spawn(move || writer.write(out));
        if let Err(error) = started {
            tracing::error!(%error, "event_writer_not_started");
            notices.lock().gone = true;
        }
        notices
    }

    fn lock(&self) -> MutexGuard<'_, LineQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, weight: Weight, line: String) {
        self.lock().push(weight, line);
        self.changed.notify_all();
    }

    fn write(&self, mut out: impl Write) {
        loop {
            let mut queue = self.lock();
            let line = loop {
                queue.writing = false;
                if let Some(line) = queue.pop() {
                    queue.writing = true;
                    break line;
                }
                self.changed.notify_all();
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            };
            drop(queue);
            // The command line may have ended; the job has not.
            if let Err(error) = writeln!(out, "{line}").and_then(|()| out.flush()) {
                tracing::debug!(%error, "standard_output_closed");
                *self.lock() = LineQueue { gone: true, ..LineQueue::default() };
                self.changed.notify_all();
                return;
            }
        }
    }

    /// Waits until everything is written or cannot be; false when the time is over before.
    fn flush(&self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        let mut queue = self.lock();
        while !queue.gone && (queue.writing || !queue.lines.is_empty()) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            (queue, _) =
                self.changed.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner);
        }
        true
    }
}

/// Of standard output.
static STDOUT: OnceLock<Arc<Notices>> = OnceLock::new();

/// Writes an event to the log and queues it as one line of JSON on standard output. Never blocks.
pub fn notice(event: &JobEvent) {
    let line = event::line(event);
    match event.to_json() {
        Ok(json) => {
            STDOUT.get_or_init(|| Notices::start(std::io::stdout())).push(line.weight, json)
        }
        Err(error) => tracing::error!(%error, "event_not_encoded"),
    }
    line.log();
}

/// Writes an event to the log alone. On YARN standard output is a file that nothing reads.
pub fn log(event: &JobEvent) {
    event::line(event).log();
}

/// Waits until standard output has everything, for `limit` at the most.
pub fn flush(limit: Duration) {
    if let Some(notices) = STDOUT.get()
        && !notices.flush(limit)
    {
        tracing::warn!(limit_s = limit.as_secs(), "last_events_dropped");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warning(n: usize) -> String {
        format!("{n:04} {}", "x".repeat(1019))
    }

    #[test]
    fn progress_lines_replace_each_other() {
        let mut queue = LineQueue::default();
        for n in 0..10_000 {
            queue.push(Weight::Progress, n.to_string());
        }
        assert_eq!(queue.pop().as_deref(), Some("9999"));
        assert_eq!(queue.pop(), None);
        assert_eq!(queue.bytes, 0);
    }

    #[test]
    fn oldest_lines_are_dropped_but_first_and_last_stay() {
        let mut queue = LineQueue::default();
        queue.push(Weight::Kept, "started".into());
        for n in 0..3000 {
            queue.push(Weight::Passing, warning(n));
        }
        queue.push(Weight::Kept, "ended".into());
        assert!(queue.bytes <= WAITING_BYTES_MAX);
        let lines: Vec<String> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(lines.first().map(String::as_str), Some("started"));
        assert_eq!(lines.last().map(String::as_str), Some("ended"));
        assert_eq!(lines.len(), 1 + 1 + 1024 + 1);
        assert!(lines[1].contains("1976 events are not shown"), "{}", lines[1]);
        assert!(lines[2].starts_with("1976 "));
    }

    #[test]
    fn reader_that_stops_blocks_no_writer_and_gets_the_end() {
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        let notices = Notices::start(writer);
        notices.push(Weight::Kept, "started".into());
        for n in 0..3000 {
            notices.push(Weight::Passing, warning(n));
        }
        notices.push(Weight::Kept, "ended".into());
        assert!(!notices.flush(Duration::from_millis(20)), "the reader does not read");
        let reading = std::thread::spawn(move || {
            let mut text = String::new();
            let mut byte = [0; 4096];
            while !text.ends_with("ended\n") {
                let read = std::io::Read::read(&mut reader, &mut byte).expect("read");
                text.push_str(&String::from_utf8_lossy(&byte[..read]));
            }
            text
        });
        let text = reading.join().expect("the end came");
        assert!(text.starts_with("started\n"));
        assert!(notices.flush(Duration::from_secs(20)));
    }

    #[test]
    fn closed_reader_ends_the_writing() {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let notices = Notices::start(writer);
        drop(reader);
        notices.push(Weight::Kept, "started".into());
        assert!(notices.flush(Duration::from_secs(20)));
        notices.push(Weight::Kept, "ended".into());
        assert!(notices.lock().lines.is_empty());
    }
}
