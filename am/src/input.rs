//! Finds the job's input files and plans the tasks, once, when the job starts.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use heddle_am_core::{InputHost, Locality};
use heddle_input::{
    Head, ReadError, TaskLength, TextHead, TypedFormat, TypedHead, input_files, plan_parts,
    typed_format, unpack_beginning, workers,
};
use heddle_protocol::job_spec::{JobSpec, Location, TaskSize};
use heddle_protocol::manifest::{InputFile, InputPlan, TaskRange};
use heddle_protocol::plan_file::{self, PlanFileError};
use heddle_storage::{
    BlockHost, BlockPlace, Reason, StorageError, chain, connect, folders_left_out,
};
use tracing::warn;

use crate::known_parts::KnownParts;

/// Files whose blocks are asked for at once.
const FILES_ASKED_AT_ONCE: usize = 16;
/// Files up to which anything is asked: some ten seconds of the NameNode's time.
const FILES_ASKED_MAX: usize = 20_000;
/// Bytes at the beginning of data by which automatic values are decided.
const SAMPLE_BYTES: u64 = 256 << 10;
/// Read if less lacks text. A block of bzip2 has up to 900 kB, one of snappy 256 KiB as a rule.
const SAMPLE_BYTES_MAX: u64 = 16 << 20;
/// Files whose beginning is read, while they begin with comments alone.
const HEADS_MAX: usize = 100;
/// Hosts that are remembered of a task: as many as a block has copies, as a rule.
const HOSTS_OF_A_TASK: usize = 3;

/// Why the input cannot be planned. Ends the job with exit code 7, or 6 where storage cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// A place that no storage of ours reaches.
    #[error("{key} = {location}")]
    Location {
        /// The key of the job file.
        key: &'static str,
        /// The configured location.
        location: String,
        /// Why not.
        source: heddle_storage::StorageUrlError,
    },
    /// Nothing there, or not readable.
    #[error("{key} = {location}")]
    Storage {
        /// The key of the job file.
        key: &'static str,
        /// The configured location.
        location: String,
        /// Why not.
        source: StorageError,
    },
    /// A file cannot be used.
    #[error("{key}")]
    File {
        /// The key of the job file.
        key: &'static str,
        /// Why not.
        source: ReadError,
    },
    /// There are more of them than a job can have.
    #[error("data.train, data.test: {0}")]
    TooMany(#[from] PlanFileError),
    /// Files are there and hold nothing.
    #[error("{key}: the files have no byte of data")]
    Empty {
        /// The key of the job file.
        key: &'static str,
    },
}

/// Result of [`plan`].
pub struct PlannedInput {
    /// Files and tasks.
    pub plan: InputPlan,
    /// Records of the training data, where files say how many they have.
    pub records: Option<u64>,
    /// Parts of the files, if they have parts that were read.
    pub parts: Option<KnownParts>,
    /// A sentence for the user about each folder that is not read.
    pub warnings: Vec<String>,
}

/// The files and tasks of a job. `known`: the parts of its files, if they were read before.
///
/// # Errors
/// Names the key, the path and what is wrong with it.
pub async fn plan(spec: &JobSpec, known: Option<&KnownParts>) -> Result<PlannedInput, InputError> {
    let mut warnings = Vec::new();
    let train = files("data.train", &spec.data.train, &mut warnings).await?;
    let test = files("data.test", &spec.data.test, &mut warnings).await?;
    let known = known.and_then(|known| known.by_url(&[&train[..], &test].concat()));
    let mut heads = Vec::new();
    if let (None, Some(format)) = (&known, typed_format(spec.data.format)) {
        heads.push(heads_of("data.train", format, &train).await?);
        heads.push(heads_of("data.test", format, &test).await?);
    }
    let records = heads.first().and_then(|heads| records_of(heads, &train));
    let of_head = |(url, head): (String, TypedHead)| (url, head.parts);
    let parts = known.unwrap_or_else(|| heads.into_iter().flatten().map(of_head).collect());
    let plan = plan_parts(spec.data.format, train, test, length_of(spec), &parts);
    if plan.train.is_empty() {
        return Err(InputError::Empty { key: "data.train" });
    }
    if plan.test.is_empty() && !spec.data.test.is_empty() {
        return Err(InputError::Empty { key: "data.test" });
    }
    plan_file::check_size(&plan, spec.pservers.shards)?;
    let parts = if parts.is_empty() { None } else { KnownParts::from_files(&plan.files, &parts) };
    Ok(PlannedInput { plan, records, parts, warnings })
}

/// The heads of files with types by their URLs; empty if there are too many files.
async fn heads_of(
    key: &'static str,
    format: &'static dyn TypedFormat,
    files: &[InputFile],
) -> Result<BTreeMap<String, TypedHead>, InputError> {
    let mut heads = BTreeMap::new();
    if files.len() > FILES_ASKED_MAX {
        return Ok(heads);
    }
    // Some writers leave empty files where they had a part without records.
    let files: Vec<_> = files.iter().filter(|file| file.bytes > 0).collect();
    for some in files.chunks(FILES_ASKED_AT_ONCE) {
        let calls: Vec<_> = some
            .iter()
            .map(|&file| file.clone())
            .map(|file| tokio::spawn(async move { format.head(&file).await }))
            .collect();
        for (file, call) in some.iter().zip(calls) {
            // The runtime ends only with the process.
            let Ok(head) = call.await else { continue };
            let head = head.map_err(|source| InputError::File { key, source })?;
            heads.insert(file.url.clone(), head);
        }
    }
    Ok(heads)
}

/// The number of records, if it is known of each file.
fn records_of(heads: &BTreeMap<String, TypedHead>, files: &[InputFile]) -> Option<u64> {
    let files = files.iter().filter(|file| file.bytes > 0);
    files.map(|file| heads.get(&file.url).map(|head| head.rows)).sum()
}

/// Reads the beginning of the first training file that begins with more than comments.
///
/// # Errors
/// It cannot be read.
pub async fn head(spec: &JobSpec, planned: &PlannedInput) -> Result<Head, InputError> {
    let plan = &planned.plan;
    let mut files: Vec<_> = plan.train.iter().map(|task| task.file).collect();
    files.dedup();
    let files = files.into_iter().filter_map(|file| plan.files.get(file as usize));
    let files: Vec<_> = files.collect();
    if let Some(format) = typed_format(spec.data.format) {
        return head_of_tables("data.train", format, &files, planned.records).await;
    }
    let shown = spec.data.train.first().map_or_else(String::new, ToString::to_string);
    let bytes = plan.train_bytes();
    first_head("data.train", &shown, &files, bytes).await.map(Head::Text)
}

/// Reads the beginning of text without a job, as [`head`] reads training data.
///
/// # Errors
/// It cannot be read, or there are only empty files.
pub async fn head_of_place(place: &Location) -> Result<TextHead, InputError> {
    let key = "DATA";
    let files = files(key, std::slice::from_ref(place), &mut Vec::new()).await?;
    let files: Vec<_> = files.iter().filter(|file| file.bytes > 0).collect();
    if files.is_empty() {
        return Err(InputError::Empty { key });
    }
    let bytes = files.iter().map(|file| file.bytes).sum();
    first_head(key, &place.to_string(), &files, bytes).await
}

/// The first file of those with types that has a record, or the last one. `records`: of all, if it is known.
async fn head_of_tables(
    key: &'static str,
    format: &'static dyn TypedFormat,
    files: &[&InputFile],
    records: Option<u64>,
) -> Result<Head, InputError> {
    let bytes = files.iter().map(|file| file.bytes).sum::<u64>() as f64;
    let mut found = None;
    for &file in files.iter().take(HEADS_MAX) {
        let failed = |source| InputError::File { key, source };
        let TypedHead { columns, rows, .. } = format.head(file).await.map_err(failed)?;
        let about = (rows as f64 * bytes / file.bytes.max(1) as f64).round() as u64;
        let records = records.unwrap_or(about);
        found = Some(Head::Table { columns, file: file.clone(), records });
        if rows > 0 {
            break;
        }
    }
    found.ok_or(InputError::Empty { key })
}

/// The first beginning that is more than comments. `bytes`: of all data.
async fn first_head(
    key: &'static str,
    shown: &str,
    files: &[&InputFile],
    bytes: u64,
) -> Result<TextHead, InputError> {
    let mut head = TextHead::default();
    for file in files.iter().take(HEADS_MAX) {
        head = head_of(key, shown, file, bytes).await?;
        let is_record = |line: &[u8]| !matches!(line.trim_ascii().first(), None | Some(b'#'));
        if head.text.split(|byte| *byte == b'\n').any(is_record) {
            break;
        }
    }
    Ok(head)
}

async fn head_of(
    key: &'static str,
    shown: &str,
    file: &InputFile,
    bytes: u64,
) -> Result<TextHead, InputError> {
    let location = heddle_storage::StorageUrl::parse(&file.url)
        .map_err(|source| InputError::Location { key, location: shown.to_owned(), source })?;
    let failed = |source| InputError::Storage { key, location: shown.to_owned(), source };
    let storage = connect(&location).map_err(failed)?;
    let mut wanted = SAMPLE_BYTES;
    loop {
        let len = file.bytes.min(wanted);
        let packed = storage.read_range(location.path(), 0, len as usize).await.map_err(failed)?;
        let text = unpack_beginning(file.compression, &packed);
        // The text of a packed block comes when the block is whole.
        if !text.is_empty() || len == file.bytes || wanted >= SAMPLE_BYTES_MAX {
            let share = bytes as f64 / len.max(1) as f64;
            return Ok(TextHead {
                file: file.url.clone(),
                text,
                is_whole: len == file.bytes,
                share,
            });
        }
        wanted *= 8;
    }
}

/// The plan of a checkpoint, if the files are unchanged.
///
/// # Errors
/// Names the first file that is not, and the next step.
pub fn unchanged(planned: InputPlan, found: &InputPlan) -> Result<InputPlan, String> {
    let (before, now) = (&planned.files, &found.files);
    let same = before.len() == now.len()
        && before.iter().zip(now).all(|(a, b)| a.url == b.url && a.bytes == b.bytes);
    if same {
        return Ok(planned);
    }
    let changed = before
        .iter()
        .find(|file| !now.iter().any(|other| other.url == file.url && other.bytes == file.bytes))
        .or_else(|| now.iter().find(|file| !before.iter().any(|other| other.url == file.url)));
    let which = changed.map_or("a file", |file| file.url.as_str());
    Err(format!(
        "data.train, data.test: {which} was added, removed or has another length since the checkpoint was made: restore it, \
             or rerun with --fresh to start over"
    ))
}

/// Where the bytes of a plan's tasks are, so that tasks run near them. Files without known block
/// locations, and local files, are left out: locality is optional.
///
/// # Errors
/// The permission to read a file is missing: that is found before its first task is.
pub async fn locality(plan: &InputPlan) -> Result<Locality, InputError> {
    let mut found = Locality::default();
    if plan.files.len() > FILES_ASKED_MAX {
        return Ok(found);
    }
    let mut numbers = HashMap::new();
    let mut wanted: Vec<bool> = vec![false; plan.files.len()];
    for task in plan.train.iter().chain(&plan.test) {
        if let Some(wanted) = wanted.get_mut(task.file as usize) {
            *wanted = true;
        }
    }
    let mut blocks: Vec<Vec<BlockPlace>> = Vec::with_capacity(plan.files.len());
    let asked: Vec<_> = plan.files.iter().zip(wanted).collect();
    for some in asked.chunks(FILES_ASKED_AT_ONCE) {
        let answers: Vec<_> = some
            .iter()
            .map(|(file, wanted)| {
                let url = file.url.clone();
                wanted.then(|| tokio::spawn(async move { blocks_of(&url).await }))
            })
            .collect();
        for answer in answers {
            let answer = match answer {
                Some(answer) => answer.await.unwrap_or_else(|_| Ok(Vec::new())),
                None => Ok(Vec::new()),
            };
            blocks.push(answer?);
        }
    }
    if blocks.iter().all(Vec::is_empty) {
        return Ok(found);
    }
    let mut number = |host: &BlockHost| {
        *numbers.entry(host.name.clone()).or_insert_with(|| {
            found.hosts.push(InputHost { name: host.name.clone(), rack: host.rack.clone() });
            u32::try_from(found.hosts.len() - 1).unwrap_or(u32::MAX)
        })
    };
    let mut hosts_of = |task: &TaskRange| {
        let blocks = blocks.get(task.file as usize).map_or(&[][..], Vec::as_slice);
        let hosts = hosts_of(task, blocks);
        hosts.into_iter().map(&mut number).collect()
    };
    let train = plan.train.iter().map(&mut hosts_of).collect();
    let test = plan.test.iter().map(&mut hosts_of).collect();
    found.train = train;
    found.test = test;
    Ok(found)
}

async fn blocks_of(url: &str) -> Result<Vec<BlockPlace>, InputError> {
    let Ok(location) = heddle_storage::StorageUrl::parse(url) else {
        return Ok(Vec::new());
    };
    let found = match connect(&location) {
        Ok(storage) => storage.blocks(location.path()).await,
        Err(error) => Err(error),
    };
    match found {
        Err(source) if source.reason == Reason::Denied => {
            let key = "data.train, data.test";
            Err(InputError::Storage { key, location: url.to_owned(), source })
        }
        Err(error) => {
            warn!(url, error = chain(&error), "block_locations_unknown");
            Ok(Vec::new())
        }
        Ok(blocks) => Ok(blocks),
    }
}

/// The hosts that store a task's bytes, most bytes first; equal hosts in the order of their names, so that
/// every attempt finds the same.
fn hosts_of<'b>(task: &TaskRange, blocks: &'b [BlockPlace]) -> Vec<&'b BlockHost> {
    let mut held: BTreeMap<&str, (u64, &BlockHost)> = BTreeMap::new();
    for block in blocks {
        let end = task.end.min(block.offset.saturating_add(block.bytes));
        let bytes = end.saturating_sub(task.start.max(block.offset));
        if bytes > 0 {
            for host in &block.hosts {
                held.entry(&host.name).or_insert((0, host)).0 += bytes;
            }
        }
    }
    let mut hosts: Vec<_> = held.into_values().collect();
    hosts.sort_by_key(|(bytes, _)| Reverse(*bytes));
    hosts.into_iter().take(HOSTS_OF_A_TASK).map(|(_, host)| host).collect()
}

fn length_of(spec: &JobSpec) -> TaskLength {
    match spec.data.task_size {
        TaskSize::Bytes(bytes) => TaskLength::Bytes(bytes.0),
        TaskSize::Auto => TaskLength::Auto { workers: workers(spec) },
    }
}

async fn files(
    key: &'static str,
    places: &[Location],
    warnings: &mut Vec<String>,
) -> Result<Vec<InputFile>, InputError> {
    let (mut found, mut folders) = (Vec::new(), Vec::new());
    for place in places {
        let shown = place.to_string();
        let location = heddle_storage::StorageUrl::parse(&place.url())
            .map_err(|source| InputError::Location { key, location: shown.clone(), source })?;
        let failed = |source| InputError::Storage { key, location: shown.clone(), source };
        let (here, left_out) = input_files(&location).await.map_err(failed)?;
        found.extend(here);
        folders.extend(left_out);
    }
    // Two patterns may name one file; it is read once.
    found.sort_by(|a, b| a.url.cmp(&b.url));
    found.dedup_by(|a, b| a.url == b.url);
    let urls = found.iter().map(|file: &InputFile| file.url.as_str());
    warnings.extend(folders_left_out(&folders, urls).map(|warning| format!("{warning} ({key})")));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use heddle_input::{compression_of, plan_input};
    use heddle_protocol::job_spec::DataFormat;
    use heddle_protocol::job_spec::file::{ReadContext, read};

    use super::*;

    fn block(offset: u64, bytes: u64, hosts: &[&str]) -> BlockPlace {
        let host = |name: &&str| BlockHost { name: (*name).into(), rack: "/r".into() };
        BlockPlace { offset, bytes, hosts: hosts.iter().map(host).collect() }
    }

    #[test]
    fn host_with_most_bytes_of_a_task_comes_first() {
        let blocks = [block(0, 100, &["a", "b"]), block(100, 100, &["c", "b"])];
        let hosts = |start, end| -> Vec<&str> {
            let hosts = hosts_of(&TaskRange { file: 0, start, end }, &blocks);
            hosts.into_iter().map(|host| host.name.as_str()).collect()
        };
        assert_eq!(hosts(0, 100), ["a", "b"]);
        assert_eq!(hosts(90, 130), ["b", "c", "a"]);
        assert_eq!(hosts(300, 400), Vec::<&str>::new());
    }

    /// Random digits: a block of bzip2 is longer than the sample.
    #[tokio::test]
    async fn head_is_read_until_a_packed_block_is_whole() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("train.libsvm.bz2");
        let digits = |n: u64| ((n * n + 7).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) % 999_983;
        let line = |n: u64| format!("1 {}:{}\n", digits(n) + 1, digits(n + 500_000));
        let text: String = (0..90_000).map(line).collect();
        let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::best());
        encoder.write_all(text.as_bytes()).expect("packed");
        let packed = encoder.finish().expect("packed");
        std::fs::write(&path, &packed).expect("written");
        let file = InputFile {
            url: format!("file://{}", path.display()),
            bytes: packed.len() as u64,
            modified_ms: 0,
            compression: compression_of("train.libsvm.bz2"),
        };
        let beginning = &packed[..SAMPLE_BYTES as usize];
        assert!(unpack_beginning(file.compression, beginning).is_empty(), "no whole block");
        let plan = plan_input(DataFormat::Libsvm, vec![file], vec![], TaskLength::Bytes(4));
        let job = "name = \"job\"\n[data]\ntrain = \"a\"\n[model]\nfeatures = 9\n";
        let (job_dir, working_dir) = (dir.path().to_owned(), dir.path().to_owned());
        let context = ReadContext { job_dir, working_dir, ..ReadContext::default() };
        let spec = read(job, &context).unwrap_or_else(|error| panic!("{error}")).spec;
        let planned = PlannedInput { plan, records: None, parts: None, warnings: Vec::new() };
        let head = head(&spec, &planned).await.expect("read");
        let Head::Text(head) = head else { panic!("it is text") };
        assert_eq!((head.text.len(), head.share), (text.len(), 1.0));
    }

    #[tokio::test]
    async fn files_of_this_machine_are_equally_far() {
        let file = InputFile {
            url: "/data/x".to_owned(),
            bytes: 10,
            modified_ms: 0,
            compression: compression_of("x"),
        };
        let plan = plan_input(DataFormat::Libsvm, vec![file], vec![], TaskLength::Bytes(4));
        assert_eq!(locality(&plan).await.expect("no denial"), Locality::default());
    }
}
