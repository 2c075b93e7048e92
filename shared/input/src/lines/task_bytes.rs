//! The bytes of a task: runs of whole lines, decompressed, in bounded memory.
//!
//! A task has the lines whose *first byte* is in its range. A task that does not start at the beginning of the file
//! therefore begins one byte early and drops everything up to the first line feed. Every line of a file belongs to exactly
//! one task, wherever the ranges are cut.

use std::sync::Arc;

use bytes::{Buf, Bytes};
use heddle_protocol::job_spec::DataFormat;
use heddle_protocol::manifest::{InputFile, TaskRange};
use heddle_storage::{
    FileVersion, OfVersion, Reader, Storage, StorageError, StorageUrl, StorePath, connect,
};

use crate::error::ReadError;
use crate::packing::{Packing, UnpackError, Unpacker, packing_of, packing_of_start, packings};
use crate::storage_wait::{ReaderWait, Watched};

/// Longest line that is read, without its line feed.
pub const LINE_BYTES_MAX: usize = 10 << 20;
/// At the start of files of text in UTF-8.
pub const BYTE_ORDER_MARK: &[u8] = &[0xef, 0xbb, 0xbf];
/// First bytes of files that cannot be read, and the names of their formats.
const MAGIC: [(&[u8], &str); 11] = [
    (&[0xfd, b'7', b'z', b'X', b'Z', 0], "an xz file"),
    (&[0x04, 0x22, 0x4d, 0x18], "an lz4 file"),
    (
        &[0xff, 0x06, 0, 0, b's', b'N', b'a', b'P'],
        "a snappy file with frames, not of Hadoop's codec",
    ),
    (b"PAR1", "a Parquet file"),
    (b"ORC", "an ORC file"),
    (b"Obj\x01", "an Avro file"),
    (b"PK\x03\x04", "a zip file"),
    (&[0xff, 0xfe, 0, 0], "UTF-32"),
    (&[0, 0, 0xfe, 0xff], "UTF-32"),
    (&[0xff, 0xfe], "UTF-16"),
    (&[0xfe, 0xff], "UTF-16"),
];

/// Files that are not text and are read.
const FORMATS: [(&str, DataFormat); 2] =
    [("a Parquet file", DataFormat::Parquet), ("an Avro file", DataFormat::Avro)];

/// The format of a file by its first bytes, if it cannot be read.
fn kind_of(start: &[u8]) -> Option<&'static str> {
    let known = MAGIC.iter().find(|(magic, _)| start.starts_with(magic)).map(|(_, name)| *name);
    // Without a mark: a record begins with characters of ASCII.
    known.or(match start.first_chunk::<4>()?.map(|byte| byte != 0) {
        [true, false, true, false] | [false, true, false, true] => Some("UTF-16"),
        [true, false, false, false] | [false, false, false, true] => Some("UTF-32"),
        _ => None,
    })
}

/// Why a file that begins with these bytes is not text, and the next step. `outer`: they were packed with it.
pub fn refusal(start: &[u8], outer: Option<&Packing>) -> Option<String> {
    match (packing_of_start(start), outer) {
        (Some(Packing { name, suffix, .. }), None) => Some(format!(
            "the file is packed with {name}, but its name does not end in {suffix}: rename it"
        )),
        (Some(Packing { name, .. }), Some(outer)) => Some(format!(
            "the file is packed twice, with {name} and then with {}: unpack it once",
            outer.name
        )),
        (None, _) => kind_of(start).map(|kind| {
            if kind.starts_with("UTF") {
                return format!(
                    "this is {kind}, and data is UTF-8: convert it (iconv -f {kind} -t UTF-8)"
                );
            }
            if let Some((_, format)) = FORMATS.iter().find(|(known, _)| *known == kind) {
                return format!("this is {kind}: state data.format = {:?}", format.name());
            }
            let formats = DataFormat::names().join(" or ");
            let packings = packings();
            format!(
                "this is {kind}, which cannot be read: data is {formats} text, plain or packed: {packings}"
            )
        }),
    }
}

/// A run of a file's lines, being read from start to end.
#[derive(Debug)]
pub struct TaskBytes {
    /// As a user types it.
    name: String,
    /// Missing in a stream, which is packed if it begins with the magic of a packing.
    file: Option<StoredText>,
    reader: Watched,
    unpacking: Option<Unpacking>,
    /// Length of the file; of a stream it is not known.
    bytes: u64,
    /// Offsets of the file below which lines of the task start; compressed files lack such a limit.
    end: u64,
    /// Decompressed offset of `buffer[0]` in the file.
    base: u64,
    buffer: Vec<u8>,
    /// Bytes of the buffer already consumed.
    at: usize,
    /// Position after the last line feed in the buffer.
    complete: usize,
    /// Position of the first whole line in the buffer that is too long; `complete` without one.
    long: usize,
    /// The end of the file was read.
    ended: bool,
    /// Bytes up to the next line feed are skipped: they belong to the task before, or the line is too long.
    dropping: bool,
    /// Bytes of the mark of the byte order that the file begins with.
    mark: u64,
    /// Offset of the first line of the task, once known.
    first: Option<u64>,
}

/// A file, which can be opened again.
#[derive(Debug)]
struct StoredText {
    storage: Arc<dyn Storage>,
    path: StorePath,
    /// On this machine.
    local: bool,
}

impl StoredText {
    async fn reopen(&self) -> Result<Box<dyn Reader>, StorageError> {
        self.storage.open(&self.path, 0).await
    }
}

/// Result of [`TaskBytes::lines`].
#[derive(Debug, PartialEq, Eq)]
pub enum NextLines {
    /// [`TaskBytes::text`] has whole lines.
    Some,
    /// The line is longer than [`LINE_BYTES_MAX`]; it is dropped, the next call returns the one after it.
    TooLong,
    /// The end of the task was read.
    End,
}

/// The first line with its line feed; all of a text without one.
#[must_use]
pub fn line_of(text: &[u8]) -> &[u8] {
    let feed = memchr::memchr(b'\n', text);
    &text[..feed.map_or(text.len(), |feed| feed + 1)]
}

/// Whether a line is blank. Tabs may separate the fields of a record.
#[must_use]
pub fn is_blank(line: &[u8]) -> bool {
    line.iter().all(|byte| matches!(byte, b' ' | b'\r' | b'\n'))
}

/// The text from the first line that is not blank.
#[must_use]
pub fn text_of_records(mut text: &[u8]) -> &[u8] {
    loop {
        let line = line_of(text);
        if line.len() == text.len() || !is_blank(line) {
            return text;
        }
        text = &text[line.len()..];
    }
}

/// The first line of a file that is not blank, of those that are read at once.
///
/// # Errors
/// See [`TaskBytes::lines`].
pub async fn first_line(file: &InputFile) -> Result<Vec<u8>, ReadError> {
    let mut bytes = TaskBytes::open(file, TaskRange { file: 0, start: 0, end: 1 }).await?;
    match bytes.lines().await? {
        NextLines::Some => Ok(line_of(text_of_records(bytes.text())).to_vec()),
        NextLines::TooLong | NextLines::End => Ok(Vec::new()),
    }
}

/// A packed file.
#[derive(Debug)]
struct Unpacking {
    packing: &'static Packing,
    unpacker: Box<dyn Unpacker>,
    /// Bytes that were read of it.
    packed: Bytes,
    /// The text of these bytes is in the buffer.
    is_unpacked: bool,
}

impl Unpacking {
    fn new(packing: &'static Packing, packed: Bytes) -> Self {
        let is_unpacked = packed.is_empty();
        Self { packing, unpacker: (packing.unpacker)(), packed, is_unpacked }
    }
}

impl TaskBytes {
    /// Opens a task, after a check that the file is still as the plan has it.
    ///
    /// # Errors
    /// Errors of the storage; [`ReadError::Changed`].
    pub async fn open(file: &InputFile, range: TaskRange) -> Result<Self, ReadError> {
        let location =
            StorageUrl::parse(&file.url).map_err(|_| ReadError::Url { url: file.url.clone() })?;
        let (storage, path) = (connect(&location)?, location.path().clone());
        let packing = packing_of(file.compression);
        let early = if packing.is_some() { 0 } else { range.start.saturating_sub(1) };
        let version = FileVersion { bytes: file.bytes, modified_ms: file.modified_ms };
        let reader = match storage.open_version(&path, version, early).await? {
            OfVersion::Same(reader) => reader,
            OfVersion::Changed { bytes } => {
                return Err(ReadError::Changed {
                    file: storage.show(&path),
                    planned: file.bytes,
                    found: bytes,
                });
            }
        };
        let local = matches!(location, StorageUrl::Local(_));
        Ok(Self {
            unpacking: packing.map(|packing| Unpacking::new(packing, Bytes::new())),
            bytes: file.bytes,
            end: if packing.is_some() { u64::MAX } else { range.end },
            base: early,
            dropping: packing.is_none() && range.start > 0,
            ..Self::at_start(storage.show(&path), Some(StoredText { storage, path, local }), reader)
        })
    }

    /// All lines of a stream.
    pub fn of_stream(name: &str, input: Box<dyn Reader>) -> Self {
        Self::at_start(name.to_owned(), None, input)
    }

    fn at_start(name: String, file: Option<StoredText>, reader: Box<dyn Reader>) -> Self {
        Self {
            name,
            file,
            reader: Watched::new(reader),
            unpacking: None,
            bytes: 0,
            end: u64::MAX,
            base: 0,
            buffer: Vec::new(),
            at: 0,
            complete: 0,
            long: 0,
            ended: false,
            dropping: false,
            mark: 0,
            first: None,
        }
    }

    /// Records further reads in `wait`.
    pub fn watch(&mut self, wait: &Arc<ReaderWait>) {
        self.reader.watch(wait);
    }

    /// Whether the next line may come later, if at all: it has to be read from a stream.
    #[must_use]
    pub fn may_wait(&self) -> bool {
        let is_packed = self.unpacking.as_ref().is_some_and(|unpacking| !unpacking.is_unpacked);
        self.file.is_none() && !self.ended && !is_packed && self.at == self.complete
    }

    /// Ensures that [`TaskBytes::text`] starts with a line of the task; reads further if necessary.
    ///
    /// # Errors
    /// Errors of the storage; [`ReadError::Damaged`] for a file that is damaged, truncated or not packed.
    pub async fn lines(&mut self) -> Result<NextLines, ReadError> {
        loop {
            if self.dropping && self.at < self.complete {
                self.at += line_of(&self.buffer[self.at..]).len();
                self.dropping = false;
                self.long = self.next_long();
                continue;
            }
            if !self.dropping {
                let start = self.line_start();
                if start >= self.end {
                    return Ok(NextLines::End);
                }
                if self.at < self.long {
                    self.first.get_or_insert(start);
                    return Ok(NextLines::Some);
                }
                if self.at < self.complete || self.buffer.len() - self.at > LINE_BYTES_MAX {
                    self.first.get_or_insert(start);
                    self.dropping = true;
                    return Ok(NextLines::TooLong);
                }
            }
            if self.ended {
                return Ok(NextLines::End);
            }
            if self.dropping {
                self.at = self.buffer.len();
            }
            self.read_on().await?;
        }
    }

    /// Where the next line starts: the mark of the byte order belongs to the first one.
    fn line_start(&self) -> u64 {
        Some(self.position()).filter(|at| *at != self.mark).unwrap_or(0)
    }

    /// The text from the next line to the end of the last whole line in the buffer, or to one that is too long. Lines that start at
    /// [`TaskBytes::limit`] or later do not belong to the task.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        &self.buffer[self.at..self.long]
    }

    /// The position in [`TaskBytes::text`] below which lines of the task may start.
    #[must_use]
    pub fn limit(&self) -> usize {
        let left = usize::try_from(self.end.saturating_sub(self.position())).unwrap_or(usize::MAX);
        // The next line belongs to the task.
        left.clamp(1, self.long - self.at)
    }

    /// Advances by `bytes` of the text.
    pub fn take(&mut self, bytes: usize) {
        self.at += bytes;
        debug_assert!(self.at <= self.long, "took more than there is");
    }

    /// The last `bytes` that were taken, before anything else is read.
    #[must_use]
    pub fn taken(&self, bytes: usize) -> &[u8] {
        &self.buffer[self.at - bytes..self.at]
    }

    /// Bytes of the decompressed file before the next line.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.base + self.at as u64
    }

    /// The file, as a user types it.
    #[must_use]
    pub fn file(&self) -> String {
        self.name.clone()
    }

    /// Whether the file is on this machine.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.file.as_ref().is_some_and(|file| file.local)
    }

    /// Whether the task's first line is the file's; always in a compressed file.
    #[must_use]
    pub fn begins_file(&self) -> bool {
        self.unpacking.is_some() || self.first == Some(0)
    }

    /// Number of line feeds before the task's first line: reads the file up to there, which is done only for a message to
    /// the user.
    ///
    /// # Errors
    /// Errors of the storage.
    pub async fn lines_before(&mut self) -> Result<u64, ReadError> {
        let until = self.first.unwrap_or(0);
        let Some(file) = self.file.as_ref().filter(|_| until > 0 && !self.begins_file()) else {
            return Ok(0);
        };
        let (mut lines, mut seen) = (0, 0);
        let mut reader = file.reopen().await?;
        while seen < until {
            let Some(chunk) = reader.next().await? else {
                break;
            };
            let part =
                &chunk[..chunk.len().min(usize::try_from(until - seen).unwrap_or(usize::MAX))];
            lines += part.iter().filter(|byte| **byte == b'\n').count() as u64;
            seen += chunk.len() as u64;
        }
        Ok(lines)
    }

    /// Reads more of the file into the buffer.
    async fn read_on(&mut self) -> Result<(), ReadError> {
        self.base += self.at as u64;
        self.buffer.drain(..self.at);
        self.at = 0;
        let start_of_file = self.base == 0 && self.first.is_none() && !self.dropping;
        let before = self.buffer.len();
        match self.unpacking.take() {
            None => self.ended = self.reader.append_to(&mut self.buffer).await? == 0,
            Some(unpacking) => self.unpack_on(unpacking).await?,
        }
        let may_be_packed = self.file.is_none() && self.unpacking.is_none() && start_of_file;
        if let Some(packing) = packing_of_start(&self.buffer).filter(|_| may_be_packed) {
            let packed = std::mem::take(&mut self.buffer).into();
            self.unpacking = Some(Unpacking::new(packing, packed));
            return Ok(());
        }
        if start_of_file {
            self.start_of_file(before)?;
        }
        let fresh = self.buffer[before..].iter().rposition(|byte| *byte == b'\n');
        self.complete = fresh.map_or(0, |feed| before + feed + 1);
        if self.ended && self.complete < self.buffer.len() {
            // The last line has no line feed.
            self.buffer.push(b'\n');
            self.complete = self.buffer.len();
        }
        self.long = self.next_long();
        Ok(())
    }

    /// The first line from `at` on that is longer than [`LINE_BYTES_MAX`]. Buffers are shorter, as a rule.
    fn next_long(&self) -> usize {
        let mut at = self.at;
        while self.complete.saturating_sub(at) > LINE_BYTES_MAX {
            let line = line_of(&self.buffer[at..self.complete]);
            if line.len() > LINE_BYTES_MAX + 1 {
                return at;
            }
            at += line.len();
        }
        self.complete
    }

    /// Rejects a file that is not text, by its first bytes. The reader of the first task does so at once; in the middle of such
    /// a file nothing but a malformed record shows it.
    ///
    /// # Errors
    /// Errors of the storage; [`ReadError::Damaged`].
    pub async fn check_kind(&mut self) -> Result<(), ReadError> {
        let Some(file) = self.file.as_ref().filter(|_| !self.begins_file()) else {
            return Ok(());
        };
        let start = file.reopen().await?.next().await?;
        self.check_start(&start.unwrap_or_default())
    }

    fn check_start(&self, start: &[u8]) -> Result<(), ReadError> {
        let outer = self.unpacking.as_ref().map(|outer| outer.packing);
        match refusal(start, outer) {
            Some(what) => Err(ReadError::Damaged { file: self.file(), what }),
            None => Ok(()),
        }
    }

    /// Checks the first bytes of a file once they have arrived.
    fn start_of_file(&mut self, before: usize) -> Result<(), ReadError> {
        self.check_start(&self.buffer)?;
        if before < BYTE_ORDER_MARK.len() && self.buffer.starts_with(BYTE_ORDER_MARK) {
            self.at = BYTE_ORDER_MARK.len();
            self.mark = self.at as u64;
        }
        Ok(())
    }

    async fn unpack_on(&mut self, mut unpacking: Unpacking) -> Result<(), ReadError> {
        if unpacking.is_unpacked {
            match self.reader.next().await? {
                Some(chunk) => unpacking.packed = chunk,
                None => {
                    unpacking.unpacker.finish().map_err(|error| self.not_unpacked(&error))?;
                    self.ended = true;
                }
            }
        }
        let mut rest = &unpacking.packed[..];
        let step = unpacking.unpacker.step(&mut rest, &mut self.buffer);
        unpacking.is_unpacked = step.map_err(|error| self.not_unpacked(&error))?;
        unpacking.packed.advance(unpacking.packed.len() - rest.len());
        self.unpacking = Some(unpacking);
        Ok(())
    }

    fn not_unpacked(&self, error: &UnpackError) -> ReadError {
        let what = match error {
            UnpackError::Trailing { at, .. } if self.file.is_some() => {
                format!("{} {error}", self.bytes.saturating_sub(*at))
            }
            UnpackError::Trailing { .. } | UnpackError::Damaged { .. } => error.to_string(),
        };
        ReadError::Damaged { file: self.file(), what }
    }
}
