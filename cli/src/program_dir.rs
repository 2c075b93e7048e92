//! Directories on HDFS with programs that containers run: a user's own (`~/.heddle/bin`), and a site's
//! (`submit.binary-dir`).
//!
//! A program is a file `heddle-<digest>`. Its record, `heddle-<digest>.json`, holds the whole digest of its bytes, their
//! number, and the time of change that the file system reports for them. A program is used only if its record fits the
//! program of this machine and the file: a file of equal length that another process wrote has another time, and a
//! NodeManager refuses a file whose time differs from that of the submission. The record is written after the program,
//! and both get their names by a rename, so that an interrupted upload is never used.
//!
//! Users that may write the directory could replace program and record together. [`ProgramDir::shared_by_all`] rejects
//! directories that every user may write; the owner of a directory is trusted.

use std::path::Path;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use heddle_am::staging::{StagedFile, StagedVisibility};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::job_spec::Location;
use heddle_storage::{
    Entry, EntryKind, Mode, Reader, Reason, Storage, StorageUrl, StorePath, connect, read_small,
    write_whole,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::io::AsyncReadExt;
use uuid::Uuid;

use crate::cluster::{if_present, path_of, storage_failure, write_failure};
use crate::failure::{CommandFailure, OrFail};
use crate::program::Program;

/// What follows the name of a program in that of its record.
pub const RECORD_SUFFIX: &str = ".json";
/// Bytes of a chunk.
const CHUNK: usize = 1 << 20;
/// Longest record in bytes.
const RECORD_BYTES_MAX: usize = 4096;
/// Version of records.
const FORMAT_VERSION: u32 = 1;
/// Files and directories that all users may use.
const FOR_ALL: (Mode, Mode) = (Mode(0o644), Mode(0o755));
/// All users may enter a directory, or run a file by its loader.
const OTHERS_ENTER: u32 = 0o001;
/// All users may read a file.
const OTHERS_READ: u32 = 0o004;
/// All users may change a file, or the names in a directory.
const OTHERS_WRITE: u32 = 0o002;
/// In a directory with this bit only the owner of an entry can replace it.
const STICKY: u32 = 0o1000;

/// A directory of programs.
#[derive(Clone, Debug)]
pub struct ProgramDir {
    storage: Arc<dyn Storage>,
    place: Location,
    file_mode: Mode,
}

/// The record of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ProgramRecord {
    format_version: u32,
    /// Of the whole file, in hexadecimal digits.
    sha256: String,
    bytes: u64,
    /// As the file system reports it, ms since 1970.
    modified_ms: u64,
}

impl ProgramRecord {
    fn of(program: &Program, entry: &Entry) -> Self {
        Self {
            format_version: FORMAT_VERSION,
            sha256: program.digest.clone(),
            bytes: program.bytes,
            modified_ms: entry.modified_ms,
        }
    }
}

/// A program of this machine in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredProgram {
    /// It is there, and its record fits.
    Recorded(Entry),
    /// A file has its name, and its record is missing or does not fit.
    Unproven(Entry),
    /// It is not there.
    Missing,
}

impl ProgramDir {
    /// A user's own directory on the default file system.
    #[must_use]
    pub fn private(storage: Arc<dyn Storage>, place: Location) -> Self {
        Self { storage, place, file_mode: Mode::FILE }
    }

    /// A directory for all users.
    ///
    /// # Errors
    /// The file system cannot be used.
    pub fn shared(place: Location) -> Result<Self, CommandFailure> {
        let url = StorageUrl::parse(&place.url()).or_fail(ExitCode::Input, &place)?;
        let storage =
            connect(&url).or_fail_with(storage_failure, format_args!("cannot use {place}"))?;
        Ok(Self { storage, place, file_mode: FOR_ALL.0 })
    }

    /// Where a program is, or would be.
    #[must_use]
    pub fn place_of(&self, program: &Program) -> Location {
        self.place.join(&program.name)
    }

    /// Looks a program up.
    ///
    /// # Errors
    /// The file system fails.
    pub async fn find(&self, program: &Program) -> Result<StoredProgram, CommandFailure> {
        let place = self.place_of(program);
        let unread = format!("cannot read {place}");
        let found = self.storage.stat(&path_of(&place)?).await;
        let Some(entry) = if_present(found, &unread)? else {
            return Ok(StoredProgram::Missing);
        };
        let record = self.record_path(program)?;
        let record = read_small(&*self.storage, &record, RECORD_BYTES_MAX).await;
        let record = if_present(record, &unread)?
            .and_then(|bytes| serde_json::from_slice::<ProgramRecord>(&bytes).ok());
        let fits = entry.kind == EntryKind::File
            && entry.bytes == program.bytes
            && record == Some(ProgramRecord::of(program, &entry));
        Ok(match fits {
            true => StoredProgram::Recorded(entry),
            false => StoredProgram::Unproven(entry),
        })
    }

    /// Stores a program, unless it is there. A file of its name without a fitting record is read: if its bytes are the
    /// program's it gets a record, else it is replaced. Returns the file, and whether it was sent.
    ///
    /// # Errors
    /// The program cannot be read, or the file system fails.
    pub async fn store(&self, program: &Program) -> Result<(Entry, bool), CommandFailure> {
        match self.find(program).await? {
            StoredProgram::Recorded(entry) => return Ok((entry, false)),
            StoredProgram::Unproven(entry) if self.has_bytes(&entry, program).await? => {
                self.write_record(program, &entry).await?;
                return Ok((entry, false));
            }
            StoredProgram::Unproven(_) | StoredProgram::Missing => {}
        }
        let path = path_of(&self.place_of(program))?;
        let draft = self.draft(&program.name)?;
        let unwritten = self.unwritten(&path);
        if let Err(failure) = self.send(program, &draft).await {
            let _leaks = self.storage.delete_file(&draft).await;
            return Err(failure);
        }
        let mut sent = true;
        match self.storage.rename(&draft, &path).await {
            Ok(()) => {}
            Err(error) if error.error().is_exists() => {
                // An upload of the same program, whose time of change a submission may have already; or other bytes.
                let there = self.entry(&path).await?;
                sent = !self.has_bytes(&there, program).await?;
                match sent {
                    true => {
                        let replaced = self.storage.replace(&draft, &path).await;
                        replaced.or_fail_with(write_failure, &unwritten)?;
                    }
                    false => drop(self.storage.delete_file(&draft).await),
                }
            }
            Err(error) => return Err(write_failure(&unwritten, &error)),
        }
        let entry = self.entry(&path).await?;
        self.write_record(program, &entry).await?;
        Ok((entry, sent))
    }

    async fn entry(&self, path: &StorePath) -> Result<Entry, CommandFailure> {
        self.storage.stat(path).await.or_fail_with(storage_failure, self.unread(path))
    }

    /// The file as NodeManagers localize it.
    #[must_use]
    pub fn staged(
        &self,
        program: &Program,
        entry: &Entry,
        visibility: StagedVisibility,
    ) -> StagedFile {
        StagedFile {
            url: self.place_of(program).url(),
            bytes: entry.bytes,
            modified_ms: entry.modified_ms,
            archive: false,
            visibility,
        }
    }

    /// Creates the directory with its missing parents, for all users.
    ///
    /// # Errors
    /// The file system fails.
    pub async fn create(&self) -> Result<(), CommandFailure> {
        let path = path_of(&self.place)?;
        let made = heddle_storage::make_dirs(&*self.storage, &path, FOR_ALL.1).await;
        made.or_fail_with(storage_failure, format_args!("cannot create {}", self.place))
    }

    /// Checks that all users can read files in the directory and cannot replace them, as far as it exists. The inner
    /// error has the fact and the next step.
    ///
    /// # Errors
    /// The file system fails.
    pub async fn shared_by_all(&self) -> Result<Result<(), [String; 2]>, CommandFailure> {
        let dir = path_of(&self.place)?;
        let mut at = Some(dir.clone());
        while let Some(path) = at {
            let access = match self.storage.access(&path).await {
                Ok(access) => access,
                // It is below a directory that this user cannot enter.
                Err(error) if error.is_not_found() || error.reason == Reason::Denied => {
                    at = path.parent();
                    continue;
                }
                Err(error) => {
                    let fact = format!("cannot read {}", self.storage.show(&path));
                    return Err(storage_failure(&fact, &error));
                }
            };
            let Mode(bits) = access.map_or(FOR_ALL.1, |access| access.mode);
            // Names in a directory with the sticky bit may be taken before: not in the directory itself.
            let is_protected = bits & STICKY != 0 && path != dir;
            let (what, change) = match () {
                () if bits & OTHERS_ENTER == 0 => ("not every user can enter", "o+x"),
                () if bits & OTHERS_WRITE != 0 && !is_protected => ("every user can write", "o-w"),
                () => {
                    at = path.parent();
                    continue;
                }
            };
            let fact = format!("{what} {} (its mode is {bits:04o})", self.storage.show(&path));
            return Ok(Err([fact, format!("hdfs dfs -chmod {change} {path}")]));
        }
        Ok(Ok(()))
    }

    /// Whether all users can read a program and none but its owner's group can change it.
    ///
    /// # Errors
    /// The file system fails.
    pub async fn is_readable_by_all(&self, entry: &Entry) -> Result<bool, CommandFailure> {
        let access = self.storage.access(&entry.path).await;
        let access = access.or_fail_with(storage_failure, self.unread(&entry.path))?;
        let Mode(bits) = access.map_or(FOR_ALL.0, |access| access.mode);
        Ok(bits & OTHERS_READ != 0 && bits & OTHERS_WRITE == 0)
    }

    fn record_path(&self, program: &Program) -> Result<StorePath, CommandFailure> {
        path_of(&self.place.join(&format!("{}{RECORD_SUFFIX}", program.name)))
    }

    /// A name that no process reads.
    fn draft(&self, name: &str) -> Result<StorePath, CommandFailure> {
        path_of(&self.place.join(&format!(".{name}.{}", Uuid::new_v4().simple())))
    }

    fn unread(&self, path: &StorePath) -> String {
        format!("cannot read {}", self.storage.show(path))
    }

    fn unwritten(&self, path: &StorePath) -> String {
        format!("cannot write {}", self.storage.show(path))
    }

    /// Sends the bytes whose digest was taken before.
    async fn send(&self, program: &Program, to: &StorePath) -> Result<(), CommandFailure> {
        let unwritten = self.unwritten(to);
        let from: &Path = &program.path;
        let unread = format!("cannot read {}", from.display());
        let file = tokio::fs::File::open(from).await;
        let mut file = file.or_fail_with(CommandFailure::of_file, &unread)?;
        let writer = self.storage.create(to, self.file_mode).await;
        let mut writer = writer.or_fail_with(write_failure, &unwritten)?;
        let mut sha = Sha256::new();
        loop {
            let mut chunk = BytesMut::with_capacity(CHUNK);
            let count = file.read_buf(&mut chunk).await;
            if count.or_fail_with(CommandFailure::of_file, &unread)? == 0 {
                break;
            }
            sha.update(&chunk);
            writer.write(chunk.freeze()).await.or_fail_with(write_failure, &unwritten)?;
        }
        writer.close().await.or_fail_with(write_failure, unwritten)?;
        if hex::encode(sha.finalize()) == program.digest {
            return Ok(());
        }
        let fact = format!("the program {} changed while it was read", from.display());
        Err(CommandFailure::new(ExitCode::Input, fact).next("run the command again"))
    }

    async fn write_record(&self, program: &Program, entry: &Entry) -> Result<(), CommandFailure> {
        let to = self.record_path(program)?;
        let draft = self.draft(to.name())?;
        let json = serde_json::to_vec(&ProgramRecord::of(program, entry))
            .or_fail(ExitCode::Internal, "cannot encode a record")?;
        let write = async {
            write_whole(&*self.storage, &draft, self.file_mode, Bytes::from(json)).await?;
            self.storage.replace(&draft, &to).await
        };
        write.await.or_fail_with(write_failure, self.unwritten(&to))
    }

    async fn has_bytes(&self, entry: &Entry, program: &Program) -> Result<bool, CommandFailure> {
        if entry.kind != EntryKind::File || entry.bytes != program.bytes {
            return Ok(false);
        }
        let read = async {
            let mut reader: Box<dyn Reader> = self.storage.open(&entry.path, 0).await?;
            let mut sha = Sha256::new();
            while let Some(chunk) = reader.next().await? {
                sha.update(&chunk);
            }
            Ok(hex::encode(sha.finalize()))
        };
        let digest = read.await.or_fail_with(storage_failure, self.unread(&entry.path))?;
        Ok(digest == program.digest)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::PathBuf;
    use std::time::{Duration, SystemTime};

    use heddle_storage::LocalStorage;
    use tempfile::TempDir;

    use super::*;

    struct Bench {
        dir: TempDir,
        program: Program,
        programs: ProgramDir,
    }

    impl Bench {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
            let path = dir.path().join("heddle");
            fs::write(&path, "a program").unwrap();
            let (digest, bytes) = crate::program::digest(&path).unwrap();
            let name = format!("heddle-{}", &digest[..32]);
            let program = Program { path, bytes, digest, name, note: None };
            let place = Location::local(&dir.path().join("bin")).unwrap();
            let storage = Arc::new(LocalStorage);
            let programs = ProgramDir { storage, place, file_mode: FOR_ALL.0 };
            Self { dir, program, programs }
        }

        fn stored(&self) -> PathBuf {
            self.dir.path().join("bin").join(&self.program.name)
        }

        async fn is_recorded(&self) -> bool {
            let found = self.programs.find(&self.program).await.unwrap();
            matches!(found, StoredProgram::Recorded(_))
        }
    }

    #[tokio::test]
    async fn program_is_stored_once_with_its_record() {
        let bench = Bench::new();
        bench.programs.create().await.unwrap();
        assert_eq!(bench.programs.find(&bench.program).await.unwrap(), StoredProgram::Missing);
        let (_, sent) = bench.programs.store(&bench.program).await.unwrap();
        assert!(sent && bench.is_recorded().await);
        let (entry, sent) = bench.programs.store(&bench.program).await.unwrap();
        assert!(!sent && bench.programs.is_readable_by_all(&entry).await.unwrap());
        let names = fs::read_dir(bench.dir.path().join("bin")).unwrap().count();
        assert_eq!(names, 2, "a draft is left");
    }

    #[tokio::test]
    async fn replaced_program_of_equal_length_is_not_used() {
        let bench = Bench::new();
        bench.programs.create().await.unwrap();
        bench.programs.store(&bench.program).await.unwrap();
        fs::write(bench.stored(), "a program".to_uppercase()).unwrap();
        let later = SystemTime::now() + Duration::from_secs(1);
        fs::File::options().write(true).open(bench.stored()).unwrap().set_modified(later).unwrap();
        assert!(!bench.is_recorded().await);
        let (_, sent) = bench.programs.store(&bench.program).await.unwrap();
        assert!(sent && bench.is_recorded().await);
        assert_eq!(fs::read(bench.stored()).unwrap(), b"a program");
    }

    #[tokio::test]
    async fn program_without_a_record_is_read_and_recorded() {
        let bench = Bench::new();
        bench.programs.create().await.unwrap();
        fs::write(bench.stored(), "a program").unwrap();
        assert!(!bench.is_recorded().await);
        let (_, sent) = bench.programs.store(&bench.program).await.unwrap();
        assert!(!sent && bench.is_recorded().await);
    }

    #[tokio::test]
    async fn program_that_changes_while_it_is_sent_is_refused() {
        let bench = Bench::new();
        bench.programs.create().await.unwrap();
        fs::write(&bench.program.path, "b program").unwrap();
        let failure = bench.programs.store(&bench.program).await.unwrap_err();
        assert!(failure.fact.contains("changed while it was read"), "{failure:?}");
        assert_eq!(fs::read_dir(bench.dir.path().join("bin")).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn open_or_closed_directory_is_not_for_all_users() {
        let bench = Bench::new();
        let shared = async || bench.programs.shared_by_all().await.unwrap();
        assert_eq!(shared().await, Ok(()), "not there yet");
        bench.programs.create().await.unwrap();
        assert_eq!(shared().await, Ok(()));
        let bin = bench.dir.path().join("bin");
        for (of_parent, of_dir, change) in [
            (0o755, 0o750, "o+x"),
            (0o755, 0o777, "o-w"),
            (0o755, 0o1777, "o-w"),
            (0o700, 0o755, "o+x"),
            (0o777, 0o755, "o-w"),
        ] {
            fs::set_permissions(&bin, Permissions::from_mode(of_dir)).unwrap();
            fs::set_permissions(bench.dir.path(), Permissions::from_mode(of_parent)).unwrap();
            let [fact, next] = shared().await.unwrap_err();
            assert!(next.contains(change), "{fact}; {next}");
        }
        fs::set_permissions(&bin, Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(bench.dir.path(), Permissions::from_mode(0o1777)).unwrap();
        assert_eq!(shared().await, Ok(()), "as in /tmp");
    }
}
