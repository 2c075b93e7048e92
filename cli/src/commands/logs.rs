//! `heddle logs`: what the processes of a run wrote, file by file, or as it comes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use heddle_protocol::exit_code::ExitCode;

use super::status::named_or_newest;
use super::{WorkDirArgs, application};
use crate::am_client;
use crate::application::logs::{LogQuery, of_application};
use crate::failure::{CommandFailure, CommandResult};
use crate::output;
use crate::runs::{LocalRun, RunState};

/// Poll interval of followed files.
const FOLLOW_EVERY: Duration = Duration::from_millis(200);
/// Bytes copied at a time.
const CHUNK: usize = 64 * 1024;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run's id or its first digits, or an application's id [default: the newest run of this machine]
    #[arg(value_name = "RUN|APPLICATION")]
    run: Option<String>,
    /// Only what begins so: am, trainer, pserver-1, trainer-0-2
    #[arg(value_name = "SLOT")]
    named_slot: Option<String>,
    /// The same
    #[arg(long, value_name = "SLOT", default_value = "", conflicts_with = "named_slot")]
    slot: String,
    /// Containers that failed come first (applications)
    #[arg(long)]
    failed_first: bool,
    /// Continue until the run has ended
    #[arg(short, long)]
    follow: bool,
    #[command(flatten)]
    place: WorkDirArgs,
}

pub fn logs(args: &Args, json: bool) -> CommandResult {
    let slot = args.named_slot.as_deref().unwrap_or(&args.slot);
    if let Some(id) = args.run.as_deref().map_or(Ok(None), application)? {
        let wanted = LogQuery {
            slot: slot.to_owned(),
            failed_first: args.failed_first,
            follow: args.follow,
            json,
        };
        return am_client::runtime()?.block_on(of_application(id, &wanted));
    }
    let run = named_or_newest(args.run.as_deref(), &args.place)?;
    let mut reading = LogPrinter { json, read: BTreeMap::new(), last: None };
    loop {
        // Read before the poll, so that output up to the end is printed.
        let ended = run.state() != RunState::Running;
        for file in files(&run, slot)? {
            reading.copy_new(&file)?;
        }
        if ended || !args.follow {
            return Ok(ExitCode::Ok);
        }
        std::thread::sleep(FOLLOW_EVERY);
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
    let unreadable = |error: io::Error| {
        CommandFailure::caused(
            ExitCode::Input,
            format!("{} cannot be read", root.display()),
            &error,
        )
    };
    let mut found = Vec::new();
    for folder in sorted(&root).map_err(unreadable)? {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !name.starts_with(slot) || !folder.is_dir() {
            continue;
        }
        let mut inside = sorted(&folder).map_err(unreadable)?;
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
        let unreadable = |error: io::Error| {
            CommandFailure::of_file(&format!("{} cannot be read", log.name), &error)
        };
        file.seek(SeekFrom::Start(from)).map_err(unreadable)?;
        if !self.json && self.last != Some(inode) {
            output::line(&format!("==> {} <==", log.name))?;
        }
        self.last = Some(inode);
        let end = match self.json {
            true => self.print_lines(log, &mut file, from).map_err(unreadable)??,
            false => self.print_bytes(&mut file, from, length).map_err(unreadable)??,
        };
        self.read.insert(inode, end);
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
