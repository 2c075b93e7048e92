//! What the processes of a run of this machine wrote, file by file, or as it comes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use heddle_protocol::exit_code::ExitCode;

use super::{LocalRun, RunState};
use crate::failure::{CommandFailure, CommandResult, OrFail};
use crate::job::LogQuery;
use crate::output;

/// Poll interval of followed files.
const FOLLOW_EVERY: Duration = Duration::from_millis(200);
/// Bytes copied at a time.
const CHUNK: usize = 64 * 1024;

/// Prints the logs of a run.
///
/// # Errors
/// They cannot be read, or the output cannot be written.
pub async fn print(run: &LocalRun, wanted: &LogQuery) -> CommandResult {
    let mut reading = LogPrinter { json: wanted.json, read: BTreeMap::new(), last: None };
    loop {
        // Read before the poll, so that output up to the end is printed.
        let ended = run.state() != RunState::Running;
        for file in files(run, &wanted.slot)? {
            reading.copy_new(&file)?;
        }
        if ended || !wanted.follow {
            return Ok(ExitCode::Ok);
        }
        tokio::time::sleep(FOLLOW_EVERY).await;
    }
}

/// A file of the logs folder.
struct LogFile {
    /// Path below the logs folder, for display.
    name: String,
    path: PathBuf,
}

/// All log files, folder by folder, older (rotated) ones first.
fn files(run: &LocalRun, slot: &str) -> Result<Vec<LogFile>, CommandFailure> {
    let root = run.dir.logs();
    let fact = format!("{} cannot be read", root.display());
    let mut found = Vec::new();
    for folder in sorted(&root).or_fail(ExitCode::Input, &fact)? {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !name.starts_with(slot) || !folder.is_dir() {
            continue;
        }
        let mut inside = sorted(&folder).or_fail(ExitCode::Input, &fact)?;
        inside.sort_by_key(|path| {
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            // am.log.2 is older than am.log.1 is older than am.log.
            let age: u32 = file.rsplit('.').next().and_then(|n| n.parse().ok()).unwrap_or(0);
            (
                file.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.').to_owned(),
                u32::MAX - age,
            )
        });
        for path in inside.into_iter().filter(|path| path.is_file()) {
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            found.push(LogFile { name: format!("{name}/{file}"), path });
        }
    }
    Ok(found)
}

fn sorted(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder)?;
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    Ok(paths)
}

/// What was printed so far. The inode identifies a file, so that a rotated one is not read twice.
struct LogPrinter {
    json: bool,
    read: BTreeMap<u64, u64>,
    last: Option<u64>,
}

impl LogPrinter {
    fn copy_new(&mut self, log: &LogFile) -> Result<(), CommandFailure> {
        use std::os::unix::fs::MetadataExt;
        let (mut file, inode, length) = match File::open(&log.path).and_then(|file| {
            let metadata = file.metadata()?;
            Ok((file, metadata.ino(), metadata.len()))
        }) {
            Ok(opened) => opened,
            // Rotated away since the folder was read; its next name is read instead.
            Err(_) => return Ok(()),
        };
        let from = self.read.get(&inode).copied().unwrap_or(0);
        if length <= from {
            return Ok(());
        }
        let fact = format!("{} cannot be read", log.name);
        file.seek(SeekFrom::Start(from)).or_fail_with(CommandFailure::of_file, &fact)?;
        if !self.json && self.last != Some(inode) {
            output::line(&format!("==> {} <==", log.name))?;
        }
        self.last = Some(inode);
        let end = match self.json {
            true => self.print_lines(log, &mut file, from),
            false => self.print_bytes(&mut file, from, length),
        };
        self.read.insert(inode, end.or_fail_with(CommandFailure::of_file, fact)??);
        Ok(())
    }

    /// Copies whole lines, or a chunk without a line end.
    fn print_bytes(
        &self,
        file: &mut File,
        from: u64,
        length: u64,
    ) -> io::Result<Result<u64, CommandFailure>> {
        let mut buffer = vec![0; CHUNK];
        let mut at = from;
        let mut out = io::stdout().lock();
        while at < length {
            let count = file.read(&mut buffer)?;
            if count == 0 {
                break;
            }
            let lines = buffer[..count].iter().rposition(|&byte| byte == b'\n');
            let count = lines.map_or(count, |end| end + 1);
            if let Err(error) = out.write_all(&output::log_bytes(&buffer[..count])) {
                return Ok(Err(output::broken(&error)));
            }
            at += count as u64;
            // What is behind the last line end belongs to the next chunk.
            file.seek(SeekFrom::Start(at))?;
        }
        Ok(out.flush().map(|()| at).map_err(|error| output::broken(&error)))
    }

    /// An object for each whole line; half a line waits for its other half.
    fn print_lines(
        &self,
        log: &LogFile,
        file: &mut File,
        from: u64,
    ) -> io::Result<Result<u64, CommandFailure>> {
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let mut at = from;
        for line in bytes.split_inclusive(|&byte| byte == b'\n') {
            if line.last() != Some(&b'\n') {
                break;
            }
            at += line.len() as u64;
            let text = String::from_utf8_lossy(line);
            let object =
                serde_json::json!({ "file": log.name, "line": text.trim_end_matches('\n') });
            if let Err(failure) = output::json(&object) {
                return Ok(Err(failure));
            }
        }
        Ok(Ok(at))
    }
}
