//! A log file of bounded size. A full file is renamed to `.1`, `.1` becomes `.2`, and the oldest is deleted.
//!
//! The crate `file-rotate` (0.8.0) does not keep two properties that this module has:
//! - A line is never split between two files. `ContentLimit::Bytes` of the crate splits it at the limit.
//! - A failed rotation loses no line: the open file is kept. The crate closes it first and then returns the error, and it
//!   panics if it cannot recreate a deleted log directory.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing_subscriber::fmt::MakeWriter;

/// Limits of a process's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Largest size of a file. A single longer line is written in full.
    pub file_bytes_max: u64,
    /// Full files that are kept beside the present one.
    pub old_files_max: u32,
}

impl Default for Bounds {
    /// 4 files of 8 MiB: about 200,000 lines, some hours of a busy ApplicationMaster.
    fn default() -> Self {
        Self { file_bytes_max: 8 << 20, old_files_max: 3 }
    }
}

/// Writes log lines into a bounded set of files. Clones write into the same files.
#[derive(Clone, Debug)]
pub struct RotatingFile(Arc<Mutex<RotationState>>);

#[derive(Debug)]
struct RotationState {
    path: PathBuf,
    bounds: Bounds,
    file: File,
    bytes: u64,
}

impl RotatingFile {
    /// Opens or creates `path` for appending, with mode 0600.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(path: &Path, bounds: Bounds) -> io::Result<Self> {
        let file = append(path)?;
        let bytes = file.metadata()?.len();
        Ok(Self(Arc::new(Mutex::new(RotationState { path: path.to_owned(), bounds, file, bytes }))))
    }

    fn state(&self) -> MutexGuard<'_, RotationState> {
        // A thread that panicked while it logged left at worst half a line.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

/// `am.log` with a number is `am.log.2`.
fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    PathBuf::from(name)
}

impl RotationState {
    fn rotate(&mut self) -> io::Result<()> {
        for number in (0..self.bounds.old_files_max).rev() {
            let from = match number {
                0 => self.path.clone(),
                number => numbered(&self.path, number),
            };
            match std::fs::rename(from, numbered(&self.path, number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        if self.bounds.old_files_max == 0 {
            std::fs::remove_file(&self.path)?;
        }
        self.file = append(&self.path)?;
        self.bytes = 0;
        Ok(())
    }
}

impl Write for RotatingFile {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut state = self.state();
        let after = state.bytes.saturating_add(line.len() as u64);
        if state.bytes > 0 && after > state.bounds.file_bytes_max {
            // A deleted directory must not end the process that logs into it: keep the open file.
            let _ = state.rotate();
        }
        // A line is never split between two files.
        state.file.write_all(line)?;
        state.bytes += line.len() as u64;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.state().file.flush()
    }
}

impl<'a> MakeWriter<'a> for RotatingFile {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn full_file_is_renamed_and_the_oldest_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let bounds = Bounds { file_bytes_max: 10, old_files_max: 2 };
        let mut log = RotatingFile::open(&dir.path().join("am.log"), bounds).unwrap();
        for n in 0..5 {
            log.write_all(format!("line {n}\n").as_bytes()).unwrap();
        }
        assert_eq!(names(dir.path()), ["am.log", "am.log.1", "am.log.2"]);
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!(read("am.log"), "line 4\n");
        assert_eq!(read("am.log.2"), "line 2\n");
    }

    #[test]
    fn line_longer_than_a_file_is_not_split() {
        let dir = tempfile::tempdir().unwrap();
        let bounds = Bounds { file_bytes_max: 4, old_files_max: 1 };
        let path = dir.path().join("x.log");
        let mut log = RotatingFile::open(&path, bounds).unwrap();
        log.write_all(b"0123456789\n").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"0123456789\n");
    }

    #[test]
    fn restarted_process_appends_to_the_same_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.log");
        for _ in 0..2 {
            let mut log = RotatingFile::open(&path, Bounds::default()).unwrap();
            log.write_all(b"a\n").unwrap();
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"a\na\n");
    }
}
