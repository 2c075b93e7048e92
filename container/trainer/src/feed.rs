//! Parser threads: each reads the tasks of one lane (or one task of a queue) ahead of the training loop.
//!
//! A feed owns a fixed number of [`StepWork`]s. Its thread fills an empty one with the next minibatch and sends it to the
//! training loop through a channel that all feeds share. Without an empty one it waits until the loop returns one. This
//! bounds how far reading is ahead, and batches are reused. When the loop drops the feed, the return channel closes and the
//! thread ends at its next batch.
//!
//! While a task is read, the input of the next task is opened and its first bytes are fetched. A storage outage that is
//! shorter than the rest of the present task does not stop training; a longer one is recorded in the status.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, OnceLock};

use crossbeam::channel::{Receiver, Sender, bounded};
use heddle_backoff::Backoff;
use heddle_input::{BadCount, BadPolicy, ReadError, ReaderWait, TaskReader};
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::ids::TaskId;
use heddle_storage::chain;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::algorithm::{KeyIndex, StepWork};
use crate::cache::{KeptKey, TaskRecords};
pub use crate::feed_settings::FeedSettings;
use crate::feed_settings::TaskPlace;
use crate::first_bad::first_bad_before;

/// Steps of one feed: one that is being read, one that is held until it is known whether another follows, and two for the
/// training loop (one in progress, one that waits).
const WORKS: usize = 4;
/// With large batches: one that is read and one that is held. The training loop gets the latter before the next is read.
const WORKS_MIN: usize = 2;
/// Waits before a task is opened again after the storage failed.
const RETRY: Backoff = Backoff::new(100, 10_000);
/// Retries of a task, which take some five minutes: longer than DataNodes or a NameNode take to restart.
const RETRIES_MAX: u32 = 36;

/// Advice to the user about a malformed record.
const BAD_RECORD_ADVICE: &str = "; data.bad-records = \"skip:N\" leaves out up to N such records \
    in a pass, \"quarantine\" writes them to files; if many are like it, see data.format";

/// Id of a feed. It identifies items that an abandoned feed has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FeedId(pub u64);

/// An item of a feed, in the order of the data.
#[derive(Debug)]
pub enum FeedItem {
    /// A minibatch.
    Step {
        /// Number over all tasks of the feed from 0, including skipped steps.
        step: u64,
        /// `work.batch` is filled; its other fields are empty.
        work: Box<StepWork>,
        /// No step follows.
        end: bool,
    },
    /// All steps of the task came before this.
    TaskEnd {
        /// The task.
        task: TaskId,
        /// Minibatches of the task, including skipped ones.
        steps: u64,
        /// Malformed records of the whole task.
        bad: BadCount,
    },
    /// The task cannot be read any further. No item follows.
    TaskFailed {
        /// The task.
        task: TaskId,
        /// Whether a retry may succeed.
        retryable: bool,
        /// The whole chain of causes.
        failure: Failure,
    },
    /// The feed has no step from the requested one on.
    Empty,
}

/// The training loop's handle of a feed. Dropping it ends the thread.
#[derive(Debug)]
pub struct Feed {
    id: FeedId,
    back: Sender<Box<StepWork>>,
}

impl Feed {
    /// Starts a thread that reads `tasks` one after the other, from step `start` of all their steps on. `known` has the
    /// number of steps of some tasks; such a task before `start` is not opened.
    ///
    /// # Errors
    /// The system provides no thread.
    pub fn start(
        id: FeedId,
        settings: FeedSettings,
        tasks: Vec<TaskId>,
        start: u64,
        known: BTreeMap<TaskId, u64>,
        items: Sender<(FeedId, FeedItem)>,
    ) -> io::Result<Self> {
        let (back, empty) = bounded(WORKS);
        for _ in 0..WORKS {
            // There is room for exactly these.
            let _ = back.try_send(Box::default());
        }
        let thread = FeedThread {
            id,
            wait: settings.waits.reader(),
            index: settings.index_features.then(|| KeyIndex::new(settings.format.features)),
            settings,
            empty,
            spare: None,
            works: WORKS,
            largest: 0,
            items,
            ahead: None,
            held: VecDeque::new(),
            start,
            step: 0,
        };
        let span = tracing::Span::current();
        std::thread::Builder::new().name("reader".to_owned()).spawn(move || {
            let _entered = span.entered();
            // It ends early only when the training loop has dropped the feed.
            let _ended = thread.run(tasks, &known);
        })?;
        Ok(Self { id, back })
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> FeedId {
        self.id
    }

    /// Returns the memory of a step, to be filled again.
    pub fn give_back(&self, mut work: Box<StepWork>) {
        work.clear();
        // The channel is full if the memory is not of this feed, and closed if the thread has ended. Both free the memory.
        let _ = self.back.try_send(work);
    }
}

/// The training loop has dropped the feed.
struct Abandoned;

/// Why reading of a task stopped early.
enum TaskStop {
    Abandoned,
    Failed(ReadError),
}

impl From<Abandoned> for TaskStop {
    fn from(_: Abandoned) -> Self {
        Self::Abandoned
    }
}

impl From<ReadError> for TaskStop {
    fn from(error: ReadError) -> Self {
        Self::Failed(error)
    }
}

/// A task that is opened before it is read.
struct Ahead {
    task: TaskId,
    opening: JoinHandle<Result<TaskRecords, ReadError>>,
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.opening.abort();
    }
}

/// Runtime that opens tasks ahead, while parser threads read their present tasks.
fn openings() -> Option<&'static Runtime> {
    static RUNTIME: OnceLock<Option<Runtime>> = OnceLock::new();
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("open-ahead")
            .enable_all()
            .build()
            .ok()
    };
    RUNTIME.get_or_init(runtime).as_ref()
}

struct FeedThread {
    id: FeedId,
    wait: Arc<ReaderWait>,
    settings: FeedSettings,
    empty: Receiver<Box<StepWork>>,
    /// Finds the distinct features of a batch, if steps need them.
    index: Option<KeyIndex>,
    /// Taken from `empty` and not used, since the task ended.
    spare: Option<Box<StepWork>>,
    /// Works that exist.
    works: usize,
    /// Bytes of the largest batch so far.
    largest: usize,
    items: Sender<(FeedId, FeedItem)>,
    /// The task after the present one.
    ahead: Option<Ahead>,
    /// A step that may be the last, and what came after it.
    held: VecDeque<FeedItem>,
    /// First step to send.
    start: u64,
    /// The next step to be read.
    step: u64,
}

impl FeedThread {
    fn run(mut self, tasks: Vec<TaskId>, known: &BTreeMap<TaskId, u64>) -> Result<(), Abandoned> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let Ok(runtime) = runtime else {
            let failure = Failure::new(ErrorClass::Internal, "the system provides no event queue");
            let task = tasks.first().copied().unwrap_or_default();
            return self.send(FeedItem::TaskFailed { task, retryable: true, failure });
        };
        for (n, task) in tasks.iter().copied().enumerate() {
            if let Some(steps) = known.get(&task)
                && self.step + steps <= self.start
            {
                self.step += steps;
                continue;
            }
            let next = tasks.get(n + 1).copied();
            if let Err(mut error) = self.task(&runtime, task, next)? {
                self.flush(false)?;
                if let ReadError::Record { place } | ReadError::TooManyBad { place, .. } =
                    &mut error
                {
                    *place = runtime.block_on(self.first_bad(task, std::mem::take(place)));
                }
                let retryable = error.is_retryable();
                let advice = match &error {
                    ReadError::Record { .. } => BAD_RECORD_ADVICE,
                    _ => "",
                };
                let failure = Failure::new(error.class(), format!("{}{advice}", chain(&error)));
                return self.send(FeedItem::TaskFailed { task, retryable, failure });
            }
        }
        let nothing = !matches!(self.held.front(), Some(FeedItem::Step { .. }));
        self.flush(true)?;
        if nothing { self.send(FeedItem::Empty) } else { Ok(()) }
    }

    /// Reads one task. After a retryable failure of the storage it reads the task again from its start.
    fn task(
        &mut self,
        runtime: &Runtime,
        task: TaskId,
        next: Option<TaskId>,
    ) -> Result<Result<(), ReadError>, Abandoned> {
        let first = self.step;
        let (mut backoff, mut retries) = (RETRY, 0..RETRIES_MAX);
        loop {
            let error = match runtime.block_on(self.read(task, next, first)) {
                Ok(()) => return Ok(Ok(())),
                Err(TaskStop::Abandoned) => return Err(Abandoned),
                Err(TaskStop::Failed(error)) => error,
            };
            if !error.is_retryable() || retries.next().is_none() {
                return Ok(Err(error));
            }
            let wait = backoff.next_wait();
            tracing::warn!(
                %task,
                error = chain(&error),
                wait_ms = wait.as_millis() as u64,
                "task_not_read"
            );
            // The wait begins here at the latest, also where the storage failed at once.
            self.wait.begin();
            self.wait.failed(chain(&error));
            std::thread::sleep(wait);
        }
    }

    /// Reads a task whose first step is `first`, and sends steps from [`Self::step`] or the wanted start on.
    /// Opens `next` at the same time.
    async fn read(
        &mut self,
        task: TaskId,
        next: Option<TaskId>,
        first: u64,
    ) -> Result<(), TaskStop> {
        let send_from = self.step.max(self.start);
        self.wait.begin();
        let reader = self.opened(task).await?;
        self.wait.over();
        self.ahead = next.and_then(|next| self.open_ahead(next));
        let mut reader = reader.watched(&self.wait);
        let mut at = first;
        // Of the task, before the batch that is read next.
        let mut records = 0;
        loop {
            let mut work = self.empty_work()?;
            // Skipped steps are read too: their ends depend on every line before.
            let read = loop {
                let read = reader.next_batch(self.settings.rows, &mut work.batch).await;
                work.first_record = records;
                records += work.batch.rows() as u64;
                if read.is_err() || work.batch.is_empty() || at >= send_from {
                    break read;
                }
                at += 1;
            };
            if read.is_err() || work.batch.is_empty() {
                self.spare = Some(work);
                read?;
                break;
            }
            // The loop gets the step before this one first.
            self.flush(false)?;
            work.task = task;
            self.settings.class_weights.apply(&mut work.batch);
            if let Some(index) = &mut self.index {
                work.index_features(index);
            }
            self.largest = self.largest.max(work.feature_bytes());
            self.held.push_back(FeedItem::Step { step: at, work, end: false });
            at += 1;
            self.step = at;
        }
        self.step = at;
        let mut bad = reader.bad_records().clone();
        if let Some(place) = bad.examples.first_mut() {
            *place = self.first_bad(task, std::mem::take(place)).await;
        }
        self.held.push_back(FeedItem::TaskEnd { task, steps: at - first, bad });
        Ok(())
    }

    /// The first bad record of the data, given that `place` is the first of `task`.
    async fn first_bad(&mut self, task: TaskId, place: String) -> String {
        let Some(first) = self.settings.first_bad.clone() else {
            return place;
        };
        let open = |task| self.open(task, BadPolicy::Fail);
        let look = async || first_bad_before(task, open).await.unwrap_or(place);
        first.get_or_init(look).await.clone()
    }

    /// A step to be filled. Frees those that would exceed the memory, with the buffers that they keep.
    fn empty_work(&mut self) -> Result<Box<StepWork>, Abandoned> {
        if let Some(work) = self.spare.take() {
            return Ok(work);
        }
        let fit = self.settings.ahead_bytes / self.largest.max(1);
        while self.works > fit.max(WORKS_MIN) {
            drop(self.empty.recv().map_err(|_| Abandoned)?);
            self.works -= 1;
        }
        self.empty.recv().map_err(|_| Abandoned)
    }

    /// Opens a task, unless it was opened ahead.
    async fn opened(&mut self, task: TaskId) -> Result<TaskRecords, ReadError> {
        self.wait.file(self.settings.place(task)?.file.url.clone());
        if let Some(mut ahead) = self.ahead.take()
            && ahead.task == task
            // A task that could not be opened ahead is opened again.
            && let Ok(Ok(reader)) = (&mut ahead.opening).await
        {
            return Ok(reader);
        }
        self.open_records(task)?.await
    }

    /// Begins to open a task beside the reading of another one.
    fn open_ahead(&mut self, task: TaskId) -> Option<Ahead> {
        let runtime = openings()?;
        // An error occurs again, and is reported, when the task is read.
        let opening = self.open_records(task).ok()?;
        Some(Ahead { task, opening: runtime.spawn(opening) })
    }

    /// The call that opens a task, or what is kept of it. It can run on any thread.
    fn open_records(
        &self,
        task: TaskId,
    ) -> Result<impl Future<Output = Result<TaskRecords, ReadError>> + Send + use<>, ReadError>
    {
        let FeedSettings { training, measures, phase, .. } = self.settings;
        let key = KeptKey { training, measures, task };
        let cache = self.settings.cache.clone();
        let kept = cache.as_ref().and_then(|cache| cache.find(key, phase));
        let file = self.settings.place(task)?.file.clone();
        let open = self.open(task, self.settings.policy(task))?;
        Ok(async move {
            match kept {
                Some(content) => TaskRecords::kept(key, content, &file).await,
                None => {
                    let recorder = cache.map(|cache| cache.record(key, phase));
                    Ok(TaskRecords::Read(Box::new(open.await?), recorder))
                }
            }
        })
    }

    /// The call that opens a task's file. It can run on any thread.
    fn open(
        &self,
        task: TaskId,
        policy: BadPolicy,
    ) -> Result<impl Future<Output = Result<TaskReader, ReadError>> + Send + use<>, ReadError> {
        let TaskPlace { range, file } = self.settings.place(task)?;
        let (file, format) = (file.clone(), self.settings.format.clone());
        let limit = self.settings.batch_features;
        Ok(async move {
            let reader = TaskReader::open(&file, range, format, policy).await?;
            Ok(reader.limited(limit))
        })
    }

    /// Sends the held items. `end`: the held step is the last one.
    fn flush(&mut self, end: bool) -> Result<(), Abandoned> {
        while let Some(mut item) = self.held.pop_front() {
            if let FeedItem::Step { end: last, .. } = &mut item {
                *last = end;
            }
            self.send(item)?;
        }
        Ok(())
    }

    fn send(&self, item: FeedItem) -> Result<(), Abandoned> {
        self.items.send((self.id, item)).map_err(|_| Abandoned)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crossbeam::channel::unbounded;
    use heddle_input::{Labels, RecordFormat, StorageWaits, TaskLength, plan_input};
    use heddle_protocol::ids::PhaseNo;
    use heddle_protocol::job_spec::{BadRecords, BatchFeatures, DataFormat, LabelRange};
    use heddle_protocol::manifest::InputFile;
    use heddle_storage::{LocalStorage, Storage as _, StorePath};

    use super::*;
    use crate::class_weights::ClassWeights;

    /// Files with these numbers of records, one task per file; record r of file f has feature 100·f + r.
    fn settings(dir: &std::path::Path, rows: &[usize]) -> FeedSettings {
        let files = rows.iter().enumerate().map(|(file, rows)| {
            let path = dir.join(format!("{file}.libsvm"));
            let text: String =
                (0..*rows).map(|row| format!("1 {}:1\n", 100 * file + row)).collect();
            // A blank line gives a file without records a task.
            std::fs::write(&path, format!("\n{text}")).expect("written");
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            let at = StorePath::parse(path.to_str().expect("utf-8")).expect("a path");
            let entry = runtime.block_on(LocalStorage.stat(&at)).expect("is there");
            InputFile {
                url: format!("file://{}", path.display()),
                bytes: entry.bytes,
                modified_ms: entry.modified_ms,
                compression: Default::default(),
            }
        });
        FeedSettings {
            plan: Arc::new(plan_input(
                DataFormat::Libsvm,
                files.collect(),
                vec![],
                TaskLength::Bytes(1 << 20),
            )),
            training: true,
            phase: PhaseNo(0),
            format: RecordFormat {
                format: DataFormat::Libsvm,
                index_base: 0,
                features: 10_000,
                labels: Labels::Within(LabelRange::TwoClasses),
                table: None,
            },
            index_features: false,
            rows: 2,
            batch_features: BatchFeatures::default(),
            ahead_bytes: usize::MAX,
            class_weights: ClassWeights::default(),
            bad_records: BadRecords::Fail,
            first_bad: Some(Arc::default()),
            quarantine: dir.join("bad"),
            waits: StorageWaits::default(),
            cache: None,
            measures: false,
        }
    }

    /// All items of a feed, as text: steps as `number:features`, `!` after the last.
    fn said(settings: &FeedSettings, start: u64, known: &[(u32, u64)]) -> String {
        let tasks = (0..settings.plan.train.len() as u32).map(TaskId).collect();
        let known = known.iter().map(|(task, steps)| (TaskId(*task), *steps)).collect();
        let (items, received) = unbounded();
        let feed =
            Feed::start(FeedId(1), settings.clone(), tasks, start, known, items).expect("a thread");
        let mut text = Vec::new();
        for (id, item) in received {
            assert_eq!(id, feed.id());
            text.push(match item {
                FeedItem::Step { step, work, end } => {
                    let features: Vec<String> =
                        work.batch.indices.iter().map(u32::to_string).collect();
                    feed.give_back(work);
                    format!("{step}:{}{}", features.join(","), if end { "!" } else { "" })
                }
                FeedItem::TaskEnd { task, steps, .. } => format!("end {task}={steps}"),
                FeedItem::TaskFailed { task, failure, .. } => format!("failed {task}: {failure}"),
                FeedItem::Empty => "empty".to_owned(),
            });
        }
        text.join(" ")
    }

    #[test]
    fn steps_are_numbered_over_tasks_and_the_last_is_marked() {
        let dir = tempfile::tempdir().expect("a directory");
        let settings = settings(dir.path(), &[3, 0, 2, 0]);
        assert_eq!(said(&settings, 0, &[]), "0:0,1 1:2 end 0=2 end 1=0 2:200,201! end 2=1 end 3=0");
    }

    #[test]
    fn a_later_feed_starts_at_a_step_with_and_without_known_counts() {
        let dir = tempfile::tempdir().expect("a directory");
        let settings = settings(dir.path(), &[3, 0, 5]);
        let rest = "3:202,203 4:204! end 2=3";
        assert_eq!(said(&settings, 3, &[]), format!("end 0=2 end 1=0 {rest}"));
        assert_eq!(said(&settings, 3, &[(0, 2)]), format!("end 1=0 {rest}"));
        assert_eq!(said(&settings, 3, &[(0, 2), (1, 0)]), rest);
        assert_eq!(said(&settings, 5, &[(0, 2), (1, 0), (2, 3)]), "empty");
        assert_eq!(said(&settings, 5, &[]), "end 0=2 end 1=0 end 2=3 empty");
    }

    #[test]
    fn a_feed_without_records_reports_no_steps() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(said(&settings(dir.path(), &[]), 0, &[]), "empty");
        assert_eq!(said(&settings(dir.path(), &[0]), 0, &[]), "end 0=0 empty");
    }

    #[test]
    fn a_failed_task_follows_the_steps_before_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let settings = settings(dir.path(), &[3, 1]);
        std::fs::write(dir.path().join("1.libsvm"), "1 0:1\nchanged").expect("written");
        let said = said(&settings, 0, &[]);
        assert!(said.starts_with("0:0,1 1:2 end 0=2 failed 1: "), "{said}");
    }

    #[test]
    fn messages_name_the_first_bad_record_of_the_data() {
        let dir = tempfile::tempdir().expect("a directory");
        let settings = settings(dir.path(), &[1, 4, 1, 3]);
        // The same length and time, so that they are the files of the plan.
        let spoil = |file: usize, rows: usize| {
            let path = dir.path().join(format!("{file}.libsvm"));
            let at = std::fs::metadata(&path).and_then(|file| file.modified()).expect("a time");
            let text = std::fs::read_to_string(&path).expect("read").replacen("1 ", "x ", rows);
            std::fs::write(&path, text).expect("written");
            let file = std::fs::File::options().write(true).open(&path).expect("opened");
            file.set_modified(at).expect("set");
        };
        spoil(1, 2);
        spoil(3, 3);
        let named = |task: u32, bad_records: BadRecords, sets_aside: bool| {
            let first_bad = (!sets_aside).then(Arc::default);
            let settings = FeedSettings { bad_records, first_bad, ..settings.clone() };
            let (items, received) = unbounded();
            let tasks = vec![TaskId(task)];
            let feed = Feed::start(FeedId(1), settings, tasks, 0, BTreeMap::new(), items);
            let feed = feed.expect("a thread");
            let named = received.into_iter().find_map(|(_, item)| match item {
                FeedItem::TaskFailed { failure, .. } => Some(failure.text),
                FeedItem::TaskEnd { bad, .. } => Some(bad.examples.join(" ")),
                FeedItem::Step { work, .. } => {
                    feed.give_back(work);
                    None
                }
                FeedItem::Empty => None,
            });
            named.expect("a task")
        };
        for (task, policy, sets_aside, place) in [
            (3, BadRecords::Fail, false, "1.libsvm:2:1"),
            (3, BadRecords::Skip(2), false, "1.libsvm:2:1"),
            (3, BadRecords::Skip(9), false, "1.libsvm:2:1"),
            (3, BadRecords::Quarantine, false, "1.libsvm:2:1"),
            (1, BadRecords::Fail, false, "1.libsvm:2:1"),
            (1, BadRecords::Skip(0), false, "1.libsvm:2:1"),
            (3, BadRecords::Fail, true, "3.libsvm:2:1"),
            (3, BadRecords::Skip(2), true, "3.libsvm:2:1"),
        ] {
            let named = named(task, policy, sets_aside);
            assert!(named.contains(place), "{task} {policy:?} {sets_aside}: {named}");
        }
    }

    /// Whether this process has the file open.
    fn is_open(path: &std::path::Path) -> bool {
        let open = std::fs::read_dir("/proc/self/fd").expect("Linux");
        open.flatten().any(|fd| std::fs::read_link(fd.path()).is_ok_and(|target| target == path))
    }

    #[test]
    fn the_next_input_is_opened_while_the_present_one_is_read() {
        let dir = tempfile::tempdir().expect("a directory");
        // Of 25 steps the feed reads four and waits until one is returned.
        let settings = settings(dir.path(), &[50, 1]);
        let (items, received) = unbounded();
        let tasks = vec![TaskId(0), TaskId(1)];
        let feed = Feed::start(FeedId(1), settings, tasks, 0, BTreeMap::new(), items);
        let feed = feed.expect("a thread");
        let next = dir.path().join("1.libsvm");
        let begun = std::time::Instant::now();
        while !is_open(&next) {
            assert!(begun.elapsed() < Duration::from_secs(30), "it is not open");
            std::thread::sleep(Duration::from_millis(1));
        }
        // From here on its storage is down.
        std::fs::remove_file(&next).expect("removed");
        let mut ends = Vec::new();
        for (_, item) in received {
            match item {
                FeedItem::Step { work, .. } => feed.give_back(work),
                FeedItem::TaskEnd { task, steps, .. } => ends.push((task.0, steps)),
                FeedItem::TaskFailed { failure, .. } => panic!("{failure}"),
                FeedItem::Empty => panic!("there are steps"),
            }
        }
        assert_eq!(ends, [(0, 25), (1, 1)]);
    }

    /// Each step has 16 bytes.
    #[test]
    fn fewer_large_batches_are_read_ahead() {
        let dir = tempfile::tempdir().expect("a directory");
        for (ahead_bytes, ahead) in [(64, 3), (63, 2), (48, 2), (47, 1), (0, 1)] {
            let settings = FeedSettings { ahead_bytes, ..settings(dir.path(), &[50]) };
            let (items, received) = unbounded();
            let tasks = vec![TaskId(0)];
            let feed = Feed::start(FeedId(1), settings, tasks, 0, BTreeMap::new(), items);
            let feed = feed.expect("a thread");
            let next = || received.recv_timeout(Duration::from_millis(200));
            let works: Vec<_> = (0..WORKS).map_while(|_| next().ok()).collect();
            // One more is held.
            assert_eq!(works.len(), ahead, "{ahead_bytes}");
            let mut steps = 0;
            for (_, item) in works.into_iter().chain(&received) {
                if let FeedItem::Step { work, .. } = item {
                    feed.give_back(work);
                    steps += 1;
                }
            }
            assert_eq!(steps, 25);
        }
    }

    #[test]
    fn a_dropped_feed_ends_its_thread() {
        let dir = tempfile::tempdir().expect("a directory");
        let settings = settings(dir.path(), &[50]);
        let (items, received) = unbounded();
        let feed = Feed::start(FeedId(7), settings, vec![TaskId(0)], 0, BTreeMap::new(), items);
        drop(feed.expect("a thread"));
        // The channel closes when the thread has dropped it.
        assert!(received.iter().count() <= WORKS);
    }
}
