//! Reads a task as a sequence of minibatches, with a policy for malformed records.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use heddle_protocol::job_spec::BatchFeatures;
use heddle_protocol::manifest::{InputFile, TaskRange};
use heddle_protocol::metrics::BAD_EXAMPLES_MAX;

use crate::batch::Batch;
use crate::error::ReadError;
use crate::formats::input_format;
use crate::record_format::RecordFormat;
use crate::source::{BatchLimit, Filled, RecordSource};
use crate::storage_wait::ReaderWait;
use crate::stream::StreamReader;

/// Policy for a malformed record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadPolicy {
    /// End the task with an error.
    Fail,
    /// Skip and count it; more than this number in one task are an error. (The ApplicationMaster checks the sum over the
    /// tasks of a pass.)
    Skip(u64),
    /// Skip it, count it, and write it to this file, each line after a comment with its place and the error. Each reading
    /// of the task replaces the file; without malformed records it does not exist.
    Quarantine(PathBuf),
}

/// Malformed records skipped so far, and spellings of the negative class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BadCount {
    /// Their number.
    pub records: u64,
    /// Places of the first few, as `file:line:column: what`.
    pub examples: Vec<String>,
    /// Where the task first uses each spelling of the negative class, `0` and `-1`.
    pub negatives: BTreeMap<String, String>,
}

/// Reads one task from its start. Steps are consecutive runs of records, so (task, step) identifies the same records for
/// every reader.
#[derive(Debug)]
pub struct TaskReader {
    source: Box<dyn RecordSource>,
    policy: BadPolicy,
    limit: BatchFeatures,
    quarantine: Option<BufWriter<File>>,
    bad: BadCount,
}

impl TaskReader {
    /// Opens a task.
    ///
    /// # Errors
    /// See [`InputFormat::open`](crate::InputFormat::open).
    pub async fn open(
        file: &InputFile,
        task: TaskRange,
        format: RecordFormat,
        policy: BadPolicy,
    ) -> Result<Self, ReadError> {
        let source = input_format(format.format).open(format, file, task).await?;
        Ok(Self::of_source(source, policy))
    }

    /// Reads a stream of this process, such as standard input, as one task. A batch ends early where the stream's
    /// next record is still to come. `name` stands for it in messages.
    pub fn of_stream(
        name: &str,
        input: impl Read + Debug + Send + 'static,
        format: RecordFormat,
        policy: BadPolicy,
    ) -> Self {
        let input = Box::new(StreamReader::new(name, input));
        Self::of_source(input_format(format.format).stream(format, name, input), policy)
    }

    fn of_source(source: Box<dyn RecordSource>, policy: BadPolicy) -> Self {
        let (limit, bad) = Default::default();
        Self { source, policy, limit, quarantine: None, bad }
    }

    /// The same, with its reads recorded in `wait`.
    #[must_use]
    pub fn watched(mut self, wait: &Arc<ReaderWait>) -> Self {
        self.source.watch(wait);
        self
    }

    /// The same, with batches and records of at most this number of features.
    #[must_use]
    pub fn limited(mut self, limit: BatchFeatures) -> Self {
        self.limit = limit;
        self
    }

    /// Fills `batch` with the next records, `rows_max` unless the task ends or it has too many features. An empty batch is the end of the task.
    ///
    /// # Errors
    /// See [`ReadError`]; the task cannot be read further after one.
    pub async fn next_batch(
        &mut self,
        rows_max: usize,
        batch: &mut Batch,
    ) -> Result<(), ReadError> {
        let most = BatchLimit { rows: rows_max, features: self.limit };
        batch.clear();
        loop {
            match self.source.fill(batch, most).await? {
                Filled::Full | Filled::End | Filled::Waits => break,
                Filled::Bad(what) => self.bad(&what).await?,
                Filled::FirstOf { label, place } => {
                    self.bad.negatives.insert(label.to_owned(), place);
                }
            }
        }
        if batch.is_empty() {
            self.end_quarantine()?;
        }
        Ok(())
    }

    /// The place of a row of the last batch: in text the file, and the line in the task from 1.
    #[must_use]
    pub fn place_of(&self, row: usize) -> String {
        self.source.place_of(row)
    }

    /// Malformed records skipped so far; of the whole task once it has ended.
    #[must_use]
    pub fn bad_records(&self) -> &BadCount {
        &self.bad
    }

    /// What it does with malformed records.
    #[must_use]
    pub fn policy(&self) -> &BadPolicy {
        &self.policy
    }

    /// The source's last record is malformed.
    async fn bad(&mut self, what: &str) -> Result<(), ReadError> {
        self.bad.records += 1;
        let is_example = self.bad.examples.len() < BAD_EXAMPLES_MAX;
        match self.policy {
            BadPolicy::Skip(allowed) if self.bad.records > allowed => {
                let place = match self.bad.examples.first() {
                    Some(first) => first.clone(),
                    None => self.place(what).await?,
                };
                return Err(ReadError::TooManyBad { allowed, place });
            }
            BadPolicy::Skip(_) if !is_example => return Ok(()),
            BadPolicy::Fail | BadPolicy::Skip(_) | BadPolicy::Quarantine(_) => {}
        }
        let place = self.place(what).await?;
        match &self.policy {
            BadPolicy::Fail => return Err(ReadError::Record { place }),
            BadPolicy::Skip(_) => {}
            BadPolicy::Quarantine(path) => {
                set_apart(&mut self.quarantine, path, &place, self.source.rejected())
                    .map_err(|source| quarantine_error(path, source))?;
            }
        }
        if is_example {
            self.bad.examples.push(place);
        }
        Ok(())
    }

    /// `file:line:column: what` of the source's last record.
    async fn place(&mut self, what: &str) -> Result<String, ReadError> {
        Ok(format!("{}:{what}", self.source.place().await?))
    }

    fn end_quarantine(&mut self) -> Result<(), ReadError> {
        let BadPolicy::Quarantine(path) = &self.policy else {
            return Ok(());
        };
        match self.quarantine.take() {
            Some(mut file) => file.flush().map_err(|source| quarantine_error(path, source)),
            None => Ok(()),
        }
    }
}

/// Writes a malformed record to the file of a task, which begins with the first one.
fn set_apart(
    quarantine: &mut Option<BufWriter<File>>,
    path: &Path,
    place: &str,
    record: &[u8],
) -> io::Result<()> {
    let file = match quarantine {
        Some(file) => file,
        None => {
            if let Some(dir) = path.parent() {
                std::fs::create_dir_all(dir)?;
            }
            quarantine.insert(BufWriter::new(File::create(path)?))
        }
    };
    writeln!(file, "# {place}")?;
    file.write_all(record)
}

fn quarantine_error(path: &Path, source: io::Error) -> ReadError {
    ReadError::Quarantine { file: path.display().to_string(), source }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Write as _;

    use crate::packing::compression_of;
    use crate::packing::tests::pack;
    use crate::plan::{TaskLength, plan_tasks};
    use flate2::Compression as Level;
    use flate2::write::GzEncoder;
    use heddle_protocol::job_spec::{DataFormat, LabelRange};
    use heddle_storage::{LocalStorage, Storage as _, StorePath};
    use proptest::prelude::*;

    use super::*;
    use crate::lines::LINE_BYTES_MAX;
    use crate::record_format::Labels;

    const FORMAT: RecordFormat = RecordFormat {
        format: DataFormat::Libsvm,
        index_base: 1,
        features: 1000,
        labels: Labels::Within(LabelRange::TwoClasses),
        table: None,
    };

    /// A file of a test.
    pub(crate) struct Case {
        dir: tempfile::TempDir,
        pub(crate) file: InputFile,
    }

    pub(crate) fn case(name: &str, content: &[u8]) -> Case {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join(name);
        std::fs::write(&path, content).expect("written");
        let entry = wait(
            LocalStorage.stat(&StorePath::parse(path.to_str().expect("utf-8")).expect("a path")),
        )
        .expect("is there");
        let file = InputFile {
            url: format!("file://{}", path.display()),
            bytes: entry.bytes,
            modified_ms: entry.modified_ms,
            compression: compression_of(name),
        };
        Case { dir, file }
    }

    pub(crate) fn wait<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
    }

    /// All indices of the first feature, which tests use as the name of a record, by task.
    fn names(
        case: &Case,
        length: TaskLength,
        policy: BadPolicy,
    ) -> Result<(Vec<u32>, BadCount), ReadError> {
        wait(async {
            let (mut names, mut bad) = (Vec::new(), BadCount::default());
            for range in plan_tasks(DataFormat::Libsvm, std::slice::from_ref(&case.file), 0, length)
            {
                let mut reader =
                    TaskReader::open(&case.file, range, FORMAT, policy.clone()).await?;
                let mut batch = Batch::default();
                loop {
                    reader.next_batch(3, &mut batch).await?;
                    if batch.is_empty() {
                        break;
                    }
                    names.extend((0..batch.rows()).map(|row| batch.row(row).0[0]));
                }
                bad.records += reader.bad_records().records;
                for (label, place) in &reader.bad_records().negatives {
                    bad.negatives.entry(label.clone()).or_insert_with(|| place.clone());
                }
                bad.examples.extend_from_slice(&reader.bad_records().examples);
            }
            Ok((names, bad))
        })
    }

    fn whole(case: &Case) -> Result<Vec<u32>, ReadError> {
        names(case, TaskLength::Bytes(u64::MAX), BadPolicy::Fail).map(|(names, _)| names)
    }

    #[test]
    fn the_last_line_needs_no_line_feed() {
        for text in
            ["1 1:1\n0 2:1\n", "1 1:1\n0 2:1", "1 1:1\r\n0 2:1\r\n", "\n1 1:1\n\n# x\n0 2:1\n\n\n"]
        {
            assert_eq!(whole(&case("a", text.as_bytes())).expect("read"), [0, 1], "{text:?}");
        }
        assert_eq!(whole(&case("a", b"\xef\xbb\xbf1 1:1\n0 2:1")).expect("read"), [0, 1]);
        let marked = case("a", b"\xef\xbb\xbf1 1:1\n0 2:1\n1 3:1");
        for bytes in 1..30 {
            let (names, _) =
                names(&marked, TaskLength::Bytes(bytes), BadPolicy::Fail).expect("read");
            assert_eq!(names, [0, 1, 2], "in tasks of {bytes} bytes");
        }
        let error = whole(&case("a", b"\xef\xbb\xbfx 1:1\n")).expect_err("no label").to_string();
        assert!(error.contains("a:1:1: expected a label"), "{error}");
    }

    /// A few long lines of one small file would be a batch larger than the memory.
    #[test]
    fn batches_and_records_have_a_limit_of_features() {
        let line = |features: usize| format!("1{}\n", " 1:1".repeat(features));
        let text = [line(5), line(7).repeat(12), line(8), line(3)].concat();
        let case = case("a", text.as_bytes());
        // Of 48 features in a batch, and 6 in a record; then of 56 and 7.
        let read = |memory: u64, policy: BadPolicy| {
            let limit = BatchFeatures::of(heddle_protocol::job_spec::Bytes(memory));
            wait(async {
                let format = RecordFormat {
                    features: heddle_protocol::job_spec::limits::ANY_FEATURES,
                    ..FORMAT
                };
                let range = TaskRange { file: 0, start: 0, end: u64::MAX };
                let opened = TaskReader::open(&case.file, range, format, policy).await?;
                let (mut reader, mut batch) = (opened.limited(limit), Batch::default());
                let mut batches = Vec::new();
                while batches.is_empty() || !batch.is_empty() {
                    reader.next_batch(100, &mut batch).await?;
                    batches.push((batch.rows(), batch.values.len(), batch.positions.len()));
                }
                Ok::<_, ReadError>((batches, reader.bad_records().clone()))
            })
        };
        let error = read(40 * 48, BadPolicy::Fail).expect_err("7 are too many").to_string();
        assert!(error.contains("a:2:1: 7 features, more than the 6 of a record"), "{error}");
        let (batches, bad) = read(40 * 56, BadPolicy::Skip(1)).expect("one is too long");
        assert_eq!(batches, [(9, 61, 61), (5, 31, 31), (0, 0, 0)]);
        assert_eq!(bad.records, 1);
    }

    #[test]
    fn a_malformed_record_is_named_by_file_line_and_column() {
        let mut text: String = (0..100).map(|n| format!("1 {}:1\n", n + 1)).collect();
        text.push_str("1 7:x\n");
        let case = case("a.libsvm", text.as_bytes());
        for bytes in [20, 100, 1 << 20] {
            let error =
                names(&case, TaskLength::Bytes(bytes), BadPolicy::Fail).expect_err("is bad");
            let expected = format!(
                "{}:101:5: expected a finite number, found \"x\"",
                case.dir.path().join("a.libsvm").display()
            );
            assert_eq!(error.to_string(), expected);
            assert!(!error.is_retryable());
        }
    }

    #[test]
    fn first_places_of_both_negative_labels_are_recorded() {
        let case = case("a.libsvm", b"1 1:1\n0 1:1\n0 1:1\n-1 1:2\n-1 1:1\n");
        let file = case.dir.path().join("a.libsvm");
        let (rows, bad) = names(&case, TaskLength::Bytes(1 << 20), BadPolicy::Fail).expect("read");
        assert_eq!(rows.len(), 5);
        let expected: BTreeMap<_, _> = [("0", 2), ("-1", 4)]
            .map(|(label, line)| (label.to_owned(), format!("{}:{line}", file.display())))
            .into();
        assert_eq!(bad.negatives, expected);
        // For any split into tasks.
        let (_, bad) = names(&case, TaskLength::Bytes(6), BadPolicy::Fail).expect("read");
        assert_eq!(bad.negatives, expected);
    }

    #[test]
    fn skipped_records_are_counted_and_bounded() {
        let case = case("a", b"1 1:1\nx\n1 2:1\n1 0:1\n1 3:1\n");
        let length = TaskLength::Bytes(1 << 20);
        let (good, bad) = names(&case, length, BadPolicy::Skip(2)).expect("two are allowed");
        assert_eq!((good, bad.records), (vec![0, 1, 2], 2));
        assert!(
            bad.examples[1].ends_with("a:4:3: index 0, but indices start at 1 (data.index-base)")
        );
        let error = names(&case, length, BadPolicy::Skip(1)).expect_err("one is allowed");
        assert!(matches!(error, ReadError::TooManyBad { allowed: 1, .. }));
        assert!(error.to_string().contains("a:2:1: expected a label"), "the first: {error}");
    }

    #[test]
    fn quarantined_records_are_written_with_their_places() {
        let case = case("a", b"1 1:1\nx y\n1 2:1\n");
        let file = case.dir.path().join("bad/phase-0-task-0.txt");
        let policy = BadPolicy::Quarantine(file.clone());
        let (good, bad) = names(&case, TaskLength::Bytes(1 << 20), policy).expect("set apart");
        assert_eq!((good, bad.records), (vec![0, 1], 1));
        let text = std::fs::read_to_string(file).expect("written");
        assert!(
            text.starts_with("# ") && text.ends_with("a:2:1: expected a label, found \"x\"\nx y\n"),
            "{text}"
        );
    }

    #[test]
    fn a_line_beyond_the_bound_is_a_malformed_record() {
        let mut text = b"1 1:1\n1 2:1 #".to_vec();
        text.resize(text.len() + LINE_BYTES_MAX + (3 << 20), b'x');
        text.extend_from_slice(b"\n1 3:1\n");
        let case = case("a", &text);
        let error = whole(&case).expect_err("too long");
        assert!(
            error.to_string().contains("a:2:10485761: the line is longer than 10485760 bytes"),
            "{error}"
        );
        let (good, bad) =
            names(&case, TaskLength::Bytes(1 << 30), BadPolicy::Skip(1)).expect("left out");
        assert_eq!((good, bad.records), (vec![0, 2], 1));
    }

    #[test]
    fn longest_line_is_read_and_a_longer_one_is_not() {
        let line = |len: usize, name: u32| {
            let mut line = format!("1 {name}:1 #").into_bytes();
            line.resize(len, b'x');
            line.push(b'\n');
            line
        };
        let pack = |text: &[u8]| {
            let mut encoder = GzEncoder::new(Vec::new(), Level::best());
            encoder.write_all(text).expect("packed");
            encoder.finish().expect("packed")
        };
        for (len, feed) in [(0, true), (0, false), (1, true), (1, false), (300_000, true)] {
            let mut text = [line(20, 1), line(LINE_BYTES_MAX + len, 2)].concat();
            if feed {
                text.extend(line(20, 3));
            } else {
                text.pop();
            }
            let all = if feed { vec![0, 1, 2] } else { vec![0, 1] };
            for case in [case("a", &text), case("a.gz", &pack(&text))] {
                let (names, bad) =
                    names(&case, TaskLength::Bytes(6 << 20), BadPolicy::Skip(9)).expect("read");
                let kept: Vec<u32> = all.iter().copied().filter(|n| len == 0 || *n != 1).collect();
                assert_eq!((names, bad.records), (kept, u64::from(len > 0)), "{len} {feed}");
            }
        }
    }

    #[test]
    fn text_of_another_encoding_is_named_in_each_task() {
        let text: String = (0..50).map(|n| format!("1 {}:1\n", n + 1)).collect();
        let utf16 = |to: fn(u16) -> [u8; 2]| text.encode_utf16().flat_map(to).collect::<Vec<u8>>();
        let utf32: Vec<u8> = text.chars().flat_map(|c| u32::from(c).to_le_bytes()).collect();
        for (mark, text, name) in [
            (&b"\xff\xfe"[..], utf16(u16::to_le_bytes), "UTF-16"),
            (b"\xfe\xff", utf16(u16::to_be_bytes), "UTF-16"),
            (b"", utf16(u16::to_le_bytes), "UTF-16"),
            (b"", utf16(u16::to_be_bytes), "UTF-16"),
            (b"\xff\xfe\0\0", utf32, "UTF-32"),
        ] {
            let case = case("a", &[mark, &text].concat());
            for range in plan_tasks(
                DataFormat::Libsvm,
                std::slice::from_ref(&case.file),
                0,
                TaskLength::Bytes(100),
            ) {
                let error = wait(async {
                    let policy = BadPolicy::Skip(1);
                    let mut reader = TaskReader::open(&case.file, range, FORMAT, policy).await?;
                    reader.next_batch(3, &mut Batch::default()).await
                });
                let error = error.expect_err(name).to_string();
                assert!(error.contains(&format!("a: this is {name}")), "{range:?}: {error}");
            }
        }
        let joined = case("a", b"\xef\xbb\xbf1 1:1\n\xef\xbb\xbf0 2:1\n");
        let error = whole(&joined).expect_err("two marks").to_string();
        assert!(error.contains("a:2:1: a byte order mark within the file"), "{error}");
    }

    #[test]
    fn gzip_with_several_members_reads_as_one_text() {
        let pack = |text: &str| {
            let mut encoder = GzEncoder::new(Vec::new(), Level::best());
            encoder.write_all(text.as_bytes()).expect("packed");
            encoder.finish().expect("packed")
        };
        let mut packed = pack("1 1:1\n0 2");
        packed.extend(pack(":1\n1 3:1"));
        assert_eq!(whole(&case("a.gz", &packed)).expect("read"), [0, 1, 2]);
        let padded = [&packed[..], &[0; 512]].concat();
        assert_eq!(whole(&case("a.gz", &padded)).expect("read"), [0, 1, 2]);
        let error = whole(&case("a.gz", &[&packed[..], b"rubbish"].concat())).expect_err("rubbish");
        let words = format!("a.gz: 7 bytes after the last gzip member, at byte {}", packed.len());
        assert!(error.to_string().ends_with(&words), "{error}");

        let cut = &packed[..packed.len() - 9];
        let error = whole(&case("a.gz", cut)).expect_err("cut short");
        assert!(error.to_string().contains("not a sound gzip file"), "{error}");
        let error = whole(&case("a.gz", b"1 1:1\n")).expect_err("not packed");
        assert!(error.to_string().contains("not a sound gzip file"), "{error}");
        let error = whole(&case("a.txt", &packed)).expect_err("packed");
        assert!(error.to_string().contains("does not end in .gz"), "{error}");
        let error = whole(&case("a.txt", b"PAR1\x15")).expect_err("no text").to_string();
        assert!(error.ends_with("a Parquet file: state data.format = \"parquet\""), "{error}");
        let error = whole(&case("a.txt", b"ORC\x15")).expect_err("no text").to_string();
        let packings = "gzip (.gz), zstd (.zst), bzip2 (.bz2) or snappy (.snappy)";
        assert!(error.contains("an ORC file") && error.ends_with(packings), "{error}");
    }

    #[test]
    fn each_packing_gives_the_records_of_the_text() {
        let text: String = (0..999).map(|n| format!("1 {}:1\n", n + 1)).collect();
        let all: Vec<u32> = (0..999).collect();
        for name in ["a", "a.gz", "a.zst", "a.bz2", "a.snappy"] {
            let packed = pack(compression_of(name), text.as_bytes());
            assert_eq!(whole(&case(name, &packed)).expect(name), all, "{name}");
            let has_magic = !["a", "a.snappy"].contains(&name);
            if has_magic {
                let error = whole(&case("a", &packed)).expect_err(name).to_string();
                let suffix = &name[1..];
                assert!(error.ends_with(&format!("not end in {suffix}: rename it")), "{error}");
                let twice = pack(compression_of("a.snappy"), &packed);
                let error = whole(&case("a.snappy", &twice)).expect_err(name).to_string();
                assert!(error.ends_with("and then with snappy: unpack it once"), "{error}");
            }
            if has_magic || name == "a" {
                let stream = io::Cursor::new(packed);
                let mut reader =
                    TaskReader::of_stream("standard input", stream, FORMAT, BadPolicy::Fail);
                let mut batch = Batch::default();
                wait(reader.next_batch(1000, &mut batch)).expect(name);
                assert_eq!(batch.rows(), 999, "{name}");
            }
        }
    }

    #[test]
    fn a_file_that_has_changed_is_rejected() {
        let case = case("a", b"1 1:1\n");
        std::fs::write(case.dir.path().join("a"), b"1 1:1\n1 2:1\n").expect("written");
        assert!(matches!(whole(&case), Err(ReadError::Changed { planned: 6, found: 12, .. })));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn every_record_is_in_exactly_one_task_however_tasks_are_cut(
            lines in proptest::collection::vec((1u32..1000, 0usize..12, any::<bool>()), 0..60),
            bytes in 1u64..80,
        ) {
            let mut text = String::new();
            for (name, blanks, carriage) in &lines {
                text.push_str(&format!(
                    "1 {name}:1{}{}",
                    " ".repeat(*blanks),
                    if *carriage { "\r\n" } else { "\n" }
                ));
            }
            let expected: Vec<u32> = lines.iter().map(|line| line.0 - 1).collect();
            let (case, length) = (case("a", text.as_bytes()), TaskLength::Bytes(bytes));
            let (got, _) = names(&case, length, BadPolicy::Fail).expect("read");
            prop_assert_eq!(got, expected);
        }
    }
}
