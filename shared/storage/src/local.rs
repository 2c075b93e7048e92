//! This machine's file system behind [`Storage`].
//!
//! Every call runs on tokio's blocking threads: a disk that hangs blocks its caller alone. The outcome of a call is nearly
//! always known. The exception is a failed sync of a directory after a change of a name in it: its outcome is unknown.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use async_trait::async_trait;
use bytes::Bytes;
use nix::unistd::{Uid, User};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::error::{Op, Reason, StorageError, WriteError};
use crate::path::StorePath;
use crate::store::{Entry, EntryKind, FileAccess, Mode, Reader, Storage, Writer};

/// Bytes of one read: large enough that the switch to a blocking thread (some 10 µs) is short beside the read itself
/// (about 100 µs from the page cache), small enough to stay in the cache.
const CHUNK_BYTES: usize = 1 << 20;

/// How often a directory is removed in which another process makes files, and the time between two tries.
const REMOVALS_MAX: u32 = 20;
const REMOVAL_WAIT: Duration = Duration::from_millis(5);

/// The file system of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct LocalStorage;

/// Runs blocking work off the event loop.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        // The closures below do not panic. A panic would propagate here. The runtime cancels them only when it shuts
        // down, and then this future is not polled.
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

fn native(path: &StorePath) -> PathBuf {
    PathBuf::from(path.as_str())
}

fn not_done(op: Op, path: &Path, error: io::Error) -> WriteError {
    WriteError::NotDone(StorageError::from_io(op, path.display(), error))
}

/// Makes a change of names durable: on Linux a new name is durable once its directory is synced.
fn sync_parent(op: Op, path: &Path) -> Result<(), WriteError> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    File::open(parent)
        .and_then(|dir| dir.sync_all())
        .map_err(|error| WriteError::Unknown(StorageError::from_io(op, parent.display(), error)))
}

fn entry(path: StorePath, meta: &fs::Metadata) -> Entry {
    let kind = match () {
        () if meta.is_file() => EntryKind::File,
        () if meta.is_dir() => EntryKind::Dir,
        () => EntryKind::Other,
    };
    let modified_ms = meta
        .modified()
        .ok()
        .and_then(|time| time.duration_since(UNIX_EPOCH).ok())
        .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
    Entry { path, kind, bytes: if kind == EntryKind::File { meta.len() } else { 0 }, modified_ms }
}

/// The failure of a look-up; names the target of a link.
fn not_found(path: &StorePath, error: io::Error) -> StorageError {
    match fs::read_link(path.as_str()) {
        Ok(to) => {
            StorageError::from_io(Op::Stat, format!("{path} (a link to {})", to.display()), error)
        }
        Err(_) => StorageError::from_io(Op::Stat, path, error),
    }
}

/// The entry of a listed name that cannot be looked up: of a link that leads nowhere, or to itself. `None` if the name was
/// deleted in the meantime.
fn without_target(path: StorePath, error: io::Error) -> Result<Option<Entry>, StorageError> {
    let leads_nowhere =
        matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
            || error.raw_os_error() == Some(nix::libc::ELOOP);
    match fs::symlink_metadata(path.as_str()) {
        Ok(_) if leads_nowhere => {
            Ok(Some(Entry { path, kind: EntryKind::Other, bytes: 0, modified_ms: 0 }))
        }
        Err(gone) if gone.kind() == io::ErrorKind::NotFound => Ok(None),
        _ => Err(not_found(&path, error)),
    }
}

#[async_trait]
impl Storage for LocalStorage {
    fn show(&self, path: &StorePath) -> String {
        path.to_string()
    }

    async fn access(&self, path: &StorePath) -> Result<Option<FileAccess>, StorageError> {
        let path = path.clone();
        blocking(move || {
            let meta = fs::metadata(path.as_str())
                .map_err(|error| StorageError::from_io(Op::Stat, &path, error))?;
            let owner = User::from_uid(Uid::from_raw(meta.uid())).ok().flatten();
            Ok(Some(FileAccess {
                owner: owner.map_or_else(|| meta.uid().to_string(), |user| user.name),
                mode: Mode(meta.permissions().mode() & 0o7777),
            }))
        })
        .await
    }

    fn default_mode(&self) -> Mode {
        Mode(0o666 & !umask())
    }

    async fn create(&self, path: &StorePath, mode: Mode) -> Result<Box<dyn Writer>, WriteError> {
        let path = native(path);
        blocking(move || {
            let file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(mode.0)
                .open(&path)
                .map_err(|error| not_done(Op::Create, &path, error))?;
            // The umask cleared bits of `mode`. This process owns the file and it is empty, so the bits are set again
            // before another process can rely on them.
            file.set_permissions(fs::Permissions::from_mode(mode.0))
                .map_err(|error| not_done(Op::Create, &path, error))?;
            Ok(Box::new(LocalWriter { file: Arc::new(file), path }) as Box<dyn Writer>)
        })
        .await
    }

    async fn open(&self, path: &StorePath, offset: u64) -> Result<Box<dyn Reader>, StorageError> {
        let path = native(path);
        blocking(move || {
            let failed = |error| StorageError::from_io(Op::Open, path.display(), error);
            let mut file = open_file(&path)?;
            file.seek(SeekFrom::Start(offset)).map_err(failed)?;
            Ok(Box::new(LocalReader { file: Some(file), path }) as Box<dyn Reader>)
        })
        .await
    }

    async fn read_range(
        &self,
        path: &StorePath,
        offset: u64,
        len: usize,
    ) -> Result<Bytes, StorageError> {
        let path = native(path);
        blocking(move || {
            let failed = |error| StorageError::from_io(Op::Read, path.display(), error);
            let mut file = open_file(&path)?;
            let found = file.metadata().map_err(failed)?.len();
            let expected = offset.saturating_add(len as u64);
            // Checked before the allocation: `len` may come from a damaged file.
            if expected > found {
                return Err(StorageError::new(
                    Op::Read,
                    path.display(),
                    Reason::Short { expected, found },
                ));
            }
            file.seek(SeekFrom::Start(offset)).map_err(failed)?;
            let mut data = vec![0; len];
            file.read_exact(&mut data).map_err(failed)?;
            Ok(Bytes::from(data))
        })
        .await
    }

    async fn stat(&self, path: &StorePath) -> Result<Entry, StorageError> {
        let path = path.clone();
        blocking(move || {
            let meta = fs::metadata(path.as_str()).map_err(|error| not_found(&path, error))?;
            Ok(entry(path, &meta))
        })
        .await
    }

    async fn list(&self, path: &StorePath) -> Result<Vec<Entry>, StorageError> {
        let dir = path.clone();
        blocking(move || {
            let failed = |error| StorageError::from_io(Op::List, &dir, error);
            let mut entries = Vec::new();
            for child in fs::read_dir(dir.as_str()).map_err(failed)? {
                let child = child.map_err(failed)?;
                let name = child.file_name();
                let Some(path) = name.to_str().and_then(|name| dir.join(name).ok()) else {
                    // One byte for each, as a `?` of a pattern matches it.
                    let resembling =
                        name.to_string_lossy().replace(char::REPLACEMENT_CHARACTER, "?");
                    entries.extend(Entry::unnameable(&dir, &resembling));
                    continue;
                };
                match fs::metadata(child.path()) {
                    Ok(meta) => entries.push(entry(path, &meta)),
                    Err(error) => entries.extend(without_target(path, error)?),
                }
            }
            entries.sort_by(|a, b| a.path.cmp(&b.path));
            Ok(entries)
        })
        .await
    }

    async fn mkdir(&self, path: &StorePath, mode: Mode) -> Result<(), WriteError> {
        let path = native(path);
        blocking(move || {
            let failed = |error| not_done(Op::Mkdir, &path, error);
            fs::DirBuilder::new().mode(mode.0).create(&path).map_err(failed)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(mode.0)).map_err(failed)?;
            sync_parent(Op::Mkdir, &path)
        })
        .await
    }

    async fn rename(&self, from: &StorePath, to: &StorePath) -> Result<(), WriteError> {
        let (from, to) = (native(from), native(to));
        blocking(move || {
            rename_new(&from, &to).map_err(|error| {
                let place = format!("{} to {}", from.display(), to.display());
                WriteError::NotDone(StorageError::from_io(Op::Rename, place, error))
            })?;
            sync_parent(Op::Rename, &to)?;
            if from.parent() != to.parent() {
                sync_parent(Op::Rename, &from)?;
            }
            Ok(())
        })
        .await
    }

    async fn replace(&self, from: &StorePath, to: &StorePath) -> Result<(), WriteError> {
        let (from, to) = (native(from), native(to));
        blocking(move || {
            fs::rename(&from, &to).map_err(|error| {
                let place = format!("{} to {}", from.display(), to.display());
                WriteError::NotDone(StorageError::from_io(Op::Rename, place, error))
            })?;
            sync_parent(Op::Rename, &to)?;
            if from.parent() != to.parent() {
                sync_parent(Op::Rename, &from)?;
            }
            Ok(())
        })
        .await
    }

    async fn delete_file(&self, path: &StorePath) -> Result<(), WriteError> {
        let path = native(path);
        blocking(move || fs::remove_file(&path).map_err(|error| not_done(Op::Delete, &path, error)))
            .await
    }

    async fn delete_dir(&self, path: &StorePath) -> Result<(), WriteError> {
        let path = native(path);
        blocking(move || remove_tree(&path).map_err(|error| not_done(Op::Delete, &path, error)))
            .await
    }
}

/// Removes a directory and its content. A process that still writes there may make a file after the others are removed.
fn remove_tree(path: &Path) -> io::Result<()> {
    let mut tries = 1;
    loop {
        match fs::remove_dir_all(path) {
            Err(error)
                if error.kind() == io::ErrorKind::DirectoryNotEmpty && tries < REMOVALS_MAX =>
            {
                tries += 1;
                std::thread::sleep(REMOVAL_WAIT);
            }
            removed => return removed,
        }
    }
}

/// The umask of this process. umask(2) reads it only by setting it, which affects other threads. It is therefore read
/// from `/proc` (proc_pid_status(5), since Linux 4.7); `077` if `/proc` does not have it.
fn umask() -> u32 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let digits = status.lines().find_map(|line| line.strip_prefix("Umask:")).map(str::trim);
    digits.and_then(|digits| u32::from_str_radix(digits, 8).ok()).unwrap_or(0o077)
}

/// Opens a file for reading. Rejects a directory, which Linux would open and then fail to read, and what is not a regular
/// file: opening a pipe waits for a writer (hence O_NONBLOCK, which does not affect regular files).
fn open_file(path: &Path) -> Result<File, StorageError> {
    let failed = |error| StorageError::from_io(Op::Open, path.display(), error);
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(nix::libc::O_NONBLOCK)
        .open(path)
        .map_err(failed)?;
    let kind = file.metadata().map_err(failed)?.file_type();
    let reason = match () {
        () if kind.is_file() => return Ok(file),
        () if kind.is_dir() => Reason::IsADirectory,
        () => Reason::NotAFile,
    };
    Err(StorageError::new(Op::Open, path.display(), reason))
}

/// Renames without replacing. The system call is made without glibc, whose wrapper is younger than
/// the oldest glibc that Heddle runs on.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Some network file systems lack the flag. A hard link takes a file's name atomically. For a directory the
        // plain rename rejects a target that is a file or is not empty, and a directory that Heddle publishes is
        // never empty.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
            if from.metadata()?.is_dir() {
                if to.symlink_metadata().is_ok() {
                    return Err(io::ErrorKind::AlreadyExists.into());
                }
                fs::rename(from, to)
            } else {
                fs::hard_link(from, to)?;
                fs::remove_file(from)
            }
        }
        other => Ok(other?),
    }
}

#[derive(Debug)]
struct LocalWriter {
    file: Arc<File>,
    path: PathBuf,
}

#[async_trait]
impl Writer for LocalWriter {
    async fn write(&mut self, data: Bytes) -> Result<(), WriteError> {
        let (file, path) = (Arc::clone(&self.file), self.path.clone());
        blocking(move || {
            (&*file).write_all(&data).map_err(|error| not_done(Op::Write, &path, error))
        })
        .await
    }

    async fn sync(&mut self) -> Result<(), WriteError> {
        let (file, path) = (Arc::clone(&self.file), self.path.clone());
        blocking(move || file.sync_all().map_err(|error| not_done(Op::Sync, &path, error))).await
    }

    async fn close(self: Box<Self>) -> Result<(), WriteError> {
        blocking(move || {
            drop(self.file);
            sync_parent(Op::Close, &self.path)
        })
        .await
    }
}

#[derive(Debug)]
struct LocalReader {
    /// Taken while a read runs; `None` after an error.
    file: Option<File>,
    path: PathBuf,
}

#[async_trait]
impl Reader for LocalReader {
    async fn next(&mut self) -> Result<Option<Bytes>, StorageError> {
        let mut chunk = Vec::new();
        let len = self.append_to(&mut chunk).await?;
        Ok((len > 0).then(|| Bytes::from(chunk)))
    }

    async fn append_to(&mut self, buffer: &mut Vec<u8>) -> Result<usize, StorageError> {
        let Some(file) = self.file.take() else {
            return Err(StorageError::new(Op::Read, self.path.display(), Reason::Other)
                .because("the stream broke earlier"));
        };
        let mut taken = std::mem::take(buffer);
        let (file, taken, read) = blocking(move || {
            let before = taken.len();
            taken.reserve(CHUNK_BYTES);
            // Reads into memory that is reserved and not initialised, and repeats an interrupted call.
            let read = (&file).take(CHUNK_BYTES as u64).read_to_end(&mut taken);
            if read.is_err() {
                taken.truncate(before);
            }
            (file, taken, read)
        })
        .await;
        *buffer = taken;
        let len =
            read.map_err(|error| StorageError::from_io(Op::Read, self.path.display(), error))?;
        self.file = Some(file);
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{find_files, folders_left_out, make_dirs, probe};

    struct Place {
        _dir: tempfile::TempDir,
        root: StorePath,
    }

    fn place() -> Place {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let root = StorePath::parse(dir.path().to_str().expect("UTF-8")).expect("absolute");
        Place { _dir: dir, root }
    }

    impl Place {
        fn at(&self, name: &str) -> StorePath {
            name.split('/').fold(self.root.clone(), |path, name| path.join(name).expect("a name"))
        }
    }

    async fn put(path: &StorePath, data: &'static [u8]) -> Result<(), WriteError> {
        let mut writer = LocalStorage.create(path, Mode::FILE).await?;
        writer.write(Bytes::from_static(data)).await?;
        writer.sync().await?;
        writer.close().await
    }

    #[tokio::test]
    async fn the_local_file_system_passes_the_probe() {
        let place = place();
        probe(&LocalStorage, &place.at("probe")).await.expect("passes");
        assert!(LocalStorage.list(&place.root).await.expect("lists").is_empty());
    }

    #[tokio::test]
    async fn modes_do_not_depend_on_the_umask() {
        let place = place();
        LocalStorage.mkdir(&place.at("d"), Mode(0o777)).await.expect("made");
        put(&place.at("d/f"), b"x").await.expect("written");
        let mode = |name: &str| {
            fs::metadata(place.at(name).as_str()).expect("stat").permissions().mode() & 0o7777
        };
        assert_eq!((mode("d"), mode("d/f")), (0o777, 0o600));
    }

    #[tokio::test]
    async fn reasons_are_distinguished() {
        let place = place();
        put(&place.at("f"), b"12345").await.expect("written");
        let file = place.at("f");
        let reason = |error: StorageError| error.reason;
        let wrong = LocalStorage.read_range(&file, 3, 3).await.map_err(reason);
        assert_eq!(wrong, Err(Reason::Short { expected: 6, found: 5 }));
        assert_eq!(
            LocalStorage.read_range(&file, 3, 2).await.map_err(reason),
            Ok(Bytes::from_static(b"45"))
        );
        assert_eq!(
            LocalStorage.stat(&place.at("none")).await.map_err(reason),
            Err(Reason::NotFound)
        );
        assert_eq!(LocalStorage.list(&file).await.map_err(reason), Err(Reason::NotADirectory));
        assert_eq!(
            LocalStorage.stat(&place.at("f/x")).await.map_err(reason),
            Err(Reason::NotADirectory)
        );
        let opened = LocalStorage.open(&place.root, 0).await.map_err(reason).map(drop);
        assert_eq!(opened, Err(Reason::IsADirectory));
        let pipe = place.at("pipe");
        nix::unistd::mkfifo(&native(&pipe), nix::sys::stat::Mode::S_IRWXU).expect("made");
        let opened = LocalStorage.open(&pipe, 0).await.map_err(reason).map(drop);
        assert_eq!(opened, Err(Reason::NotAFile), "and not waited for");
        let missing_parent =
            put(&place.at("none/f"), b"").await.map_err(|e| e.error().reason.clone());
        assert_eq!(missing_parent, Err(Reason::NotFound));
    }

    #[tokio::test]
    async fn a_stream_gives_the_bytes_from_its_offset() {
        let place = place();
        put(&place.at("f"), b"0123456789").await.expect("written");
        let mut reader = LocalStorage.open(&place.at("f"), 4).await.expect("opens");
        assert_eq!(reader.next().await.expect("reads"), Some(Bytes::from_static(b"456789")));
        assert_eq!(reader.next().await.expect("reads"), None);
        let mut beyond = LocalStorage.open(&place.at("f"), 40).await.expect("opens");
        assert_eq!(beyond.next().await.expect("reads"), None);
    }

    #[tokio::test]
    async fn directories_are_made_down_the_path() {
        let place = place();
        make_dirs(&LocalStorage, &place.at("a/b/c"), Mode::DIR).await.expect("made");
        make_dirs(&LocalStorage, &place.at("a/b/c"), Mode::DIR).await.expect("there already");
        put(&place.at("f"), b"").await.expect("written");
        let error = make_dirs(&LocalStorage, &place.at("f/x"), Mode::DIR)
            .await
            .expect_err("a file is in the way");
        assert_eq!(error.reason, Reason::NotADirectory);
    }

    #[tokio::test]
    async fn patterns_name_files() {
        let place = place();
        for dir in ["a", "a/x", "b", "b/_temporary"] {
            LocalStorage.mkdir(&place.at(dir), Mode::DIR).await.expect("made");
        }
        for file in [
            "a/1.svm",
            "a/2.svm",
            "a/2.txt",
            "a/2.svm._COPYING_",
            "a/_SUCCESS",
            "a/x/3.svm",
            "b/4.svm",
            "b/_temporary/5.svm",
        ] {
            put(&place.at(file), b"x").await.expect("written");
        }
        for (pattern, want) in [
            ("a/1.svm", "a/1.svm"),
            ("a", "a/1.svm a/2.svm a/2.txt"),
            ("a/*.svm", "a/1.svm a/2.svm"),
            ("a/2*", "a/2.svm a/2.txt"),
            ("a/2*._COPYING_", "a/2.svm._COPYING_"),
            ("a/2.svm._COPYING_", "a/2.svm._COPYING_"),
            ("*/*.svm", "a/1.svm a/2.svm b/4.svm"),
            ("?", "a/1.svm a/2.svm a/2.txt b/4.svm"),
            ("{a,b}/[14].svm", "a/1.svm b/4.svm"),
            ("**/*.svm", "a/1.svm a/2.svm a/x/3.svm b/4.svm"),
            ("a/**", "a/1.svm a/2.svm a/2.txt a/x/3.svm"),
            ("b/_*/*", "b/_temporary/5.svm"),
            ("b/{_temporary,none}/*", "b/_temporary/5.svm"),
            ("{a/x,b}/*.svm", "a/x/3.svm b/4.svm"),
            ("{a/1,none/{x/y,z}}*", "a/1.svm"),
            ("a/{[{]/x,2}.*", "a/2.svm a/2.txt"),
            ("c/*", ""),
            ("a/1.svm/*", ""),
        ] {
            let found = find_files(&LocalStorage, &place.at(pattern)).await;
            let names = match found {
                Ok(found) => {
                    let prefix = place.root.as_str().len() + 1;
                    found
                        .files
                        .iter()
                        .map(|e| e.path.as_str()[prefix..].to_owned())
                        .collect::<Vec<_>>()
                        .join(" ")
                }
                Err(error) => {
                    assert!(
                        error.is_not_found() || error.reason == Reason::NotADirectory,
                        "{error}"
                    );
                    String::new()
                }
            };
            assert_eq!(names, want, "{pattern}");
        }
    }

    #[tokio::test]
    async fn names_that_exist_are_taken_literally() {
        for dir in ["run [1]", "run*", "run {1", "run ?"] {
            let place = place();
            for dir in [dir, "run 1"] {
                LocalStorage.mkdir(&place.at(dir), Mode::DIR).await.expect("made");
                put(&place.at(&format!("{dir}/p{{x}}.svm")), b"x").await.expect("written");
                put(&place.at(&format!("{dir}/px.svm")), b"x").await.expect("written");
            }
            for (pattern, names) in [
                ("", &["px.svm", "p{x}.svm"][..]),
                ("/p{x}.svm", &["p{x}.svm"]),
                ("/{p,q}x.svm", &["px.svm"]),
                ("/p\\{x\\}.svm", &["p{x}.svm"]),
                ("/*", &["px.svm", "p{x}.svm"]),
            ] {
                let pattern = format!("{dir}{pattern}");
                let found = find_files(&LocalStorage, &place.at(&pattern)).await.expect("found");
                let wanted: Vec<_> =
                    names.iter().map(|name| place.at(&format!("{dir}/{name}"))).collect();
                let found: Vec<_> = found.files.into_iter().map(|file| file.path).collect();
                assert_eq!(found, wanted, "{pattern}");
            }
        }
    }

    #[tokio::test]
    async fn folders_that_are_not_read_are_named() {
        let place = place();
        for dir in ["a", "a/x", "a/x/y", "a/_x"] {
            LocalStorage.mkdir(&place.at(dir), Mode::DIR).await.expect("made");
        }
        for file in ["a/1", "a/x/2", "a/x/y/3"] {
            put(&place.at(file), b"x").await.expect("written");
        }
        let folders = async |pattern: &str| {
            let found = find_files(&LocalStorage, &place.at(pattern)).await.expect("found");
            found.folders
        };
        assert_eq!(folders("a").await, [place.at("a/x")]);
        assert_eq!(folders("a/*").await, [place.at("a/x/y")]);
        assert_eq!(folders("a/**").await, []);
        LocalStorage.delete_file(&place.at("a/1")).await.expect("deleted");
        let error = find_files(&LocalStorage, &place.at("a")).await.expect_err("no file is in it");
        assert!(
            error.is_not_found() && crate::chain(&error).contains("a/x: name these"),
            "{error:?}"
        );
        let [x, y] = ["/a/x", "/a/y"].map(str::to_owned);
        let left_out: Vec<_> = folders_left_out(&[y, x], ["/a/1", "/a/x/2"].into_iter()).collect();
        assert!(left_out.len() == 1 && left_out[0].contains("folder /a/y "), "{left_out:?}");
    }

    #[tokio::test]
    async fn names_that_cannot_be_read_are_errors() {
        use std::os::unix::ffi::OsStrExt;
        let cases: [(&str, &[u8], &str); 4] = [
            ("none", b"c.svm", "/d/c.svm (a link to none): no such file"),
            ("x1", b"x1", "/d/x1 (a link to x1): failed: Too many levels"),
            ("", b"caf\xe9.svm", "/d/caf?.svm: not supported: its name is not UTF-8"),
            ("", &[0xe9; 200], "its name is not UTF-8"),
        ];
        for (target, name, words) in cases {
            let place = place();
            LocalStorage.mkdir(&place.at("d"), Mode::DIR).await.expect("made");
            put(&place.at("d/a.svm"), b"x").await.expect("written");
            let path = native(&place.at("d")).join(std::ffi::OsStr::from_bytes(name));
            match target {
                "" => fs::write(path, "x").expect("written"),
                target => std::os::unix::fs::symlink(target, path).expect("linked"),
            }
            for pattern in ["d", "*", "d/*", "*/[!a]*", "**", "**/a.svm"] {
                let found = find_files(&LocalStorage, &place.at(pattern)).await;
                if pattern == "**/a.svm" && !target.is_empty() {
                    assert_eq!(found.expect("found").files.len(), 1, "{words}");
                    continue;
                }
                let error = crate::chain(&found.expect_err(words));
                assert!(error.contains(words), "{pattern}: {error}");
            }
            assert!(find_files(&LocalStorage, &place.at("d/a*")).await.is_ok(), "not matched");
            assert_eq!(LocalStorage.list(&place.at("d")).await.expect("listed").len(), 2);
        }
    }

    #[tokio::test]
    async fn a_pattern_with_an_open_bracket_is_refused() {
        let error = find_files(&LocalStorage, &StorePath::root().join("[").expect("a name")).await;
        assert!(matches!(error.expect_err("malformed").reason, Reason::Unsupported(_)));
        let many = StorePath::parse(&format!("/x{}", "{a,b/c}".repeat(20))).expect("a path");
        let error = find_files(&LocalStorage, &many).await.expect_err("a million paths");
        assert!(error.to_string().contains("more than 10000 paths"), "{error}");
    }

    #[tokio::test]
    async fn deleting_a_directory_leaves_what_its_links_point_to() {
        let place = place();
        put(&place.at("kept"), b"x").await.expect("written");
        LocalStorage.mkdir(&place.at("d"), Mode::DIR).await.expect("made");
        std::os::unix::fs::symlink(place.at("kept").as_str(), place.at("d/link").as_str())
            .expect("linked");
        LocalStorage.delete_dir(&place.at("d")).await.expect("deleted");
        assert!(LocalStorage.stat(&place.at("kept")).await.is_ok());
    }

    #[tokio::test]
    async fn directory_in_which_files_are_made_meanwhile_is_deleted() {
        for _ in 0..20 {
            let place = place();
            let dir = PathBuf::from(place.at("d").as_str());
            fs::create_dir(&dir).expect("made");
            let (begun, begins) = std::sync::mpsc::channel();
            // A saver whose cut is over: it makes its files until the directory is gone.
            let saver = std::thread::spawn(move || {
                for number in 0..200 {
                    if File::create(dir.join(number.to_string())).is_err() {
                        break;
                    }
                    let _deleted_already = begun.send(());
                }
            });
            begins.recv().expect("the saver runs");
            LocalStorage.delete_dir(&place.at("d")).await.expect("deleted");
            saver.join().expect("ended");
            assert!(LocalStorage.stat(&place.at("d")).await.is_err());
        }
    }
}
