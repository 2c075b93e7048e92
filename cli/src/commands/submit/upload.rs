//! Uploads to the cluster's file system.
//!
//! Local data has names derived from its content, as the program ([`crate::program_dir`]). Existing files are not sent again, and a continued
//! job reads its data from the files of the first submission, since a checkpoint refers to its input by name. All other
//! files are in the staging directory and are removed with it.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use heddle_am::report::format;
use heddle_am::staging::{HOME_DIR, StagedFile, StagedVisibility};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::job_spec::{JobSpec, Location};
use heddle_storage::{Entry, LocalStorage, Mode, Storage, StorePath, WriteError, find_files};
use sha2::{Digest, Sha256};
use tokio::io::AsyncReadExt;

use crate::cluster::{ClusterContext, path_of, storage_failure, write_failure};
use crate::commands::checkpoint_source::unusable;
use crate::failure::{CommandFailure, OrFail};
use crate::program::{self, Program};
use crate::program_dir::ProgramDir;

/// Bytes of a chunk.
const CHUNK: usize = 1 << 20;

/// A local file and its target.
#[derive(Clone, Debug)]
pub struct Upload {
    /// On this machine.
    pub from: PathBuf,
    /// Bytes.
    pub bytes: u64,
    /// On the cluster.
    pub to: Location,
}

/// Where containers get their program from.
#[derive(Clone, Debug)]
pub enum ProgramSource {
    /// The site's directory for all users (`submit.binary-dir`).
    Installed(StagedFile),
    /// The user's own directory; the program is sent if it is not there.
    Own(ProgramDir),
}

/// All uploads.
pub struct Uploads {
    /// The program.
    pub program: Program,
    /// Where containers get it from.
    pub source: ProgramSource,
    /// Local data.
    pub data: Vec<Upload>,
    /// Local files and archives, by their names in work directories; their targets follow from the application's id.
    pub files: Vec<(String, PathBuf, u64)>,
}

impl Uploads {
    /// The uploads as `--dry-run --json` prints them.
    #[must_use]
    pub fn as_json(&self) -> serde_json::Value {
        let one = |from: &Path, bytes: u64, to: String| {
            serde_json::json!(
                { "from": from, "bytes": bytes, "to": to }
            )
        };
        let program = &self.program;
        let mut all = match &self.source {
            ProgramSource::Installed(_) => Vec::new(),
            ProgramSource::Own(dir) => {
                vec![one(&program.path, program.bytes, dir.place_of(program).to_string())]
            }
        };
        for upload in &self.data {
            all.push(one(&upload.from, upload.bytes, upload.to.to_string()));
        }
        for (name, from, bytes) in &self.files {
            all.push(one(from, *bytes, name.clone()));
        }
        all.into()
    }

    /// The uploads as `--dry-run` prints them.
    #[must_use]
    pub fn rows(&self) -> Vec<Vec<String>> {
        let size = format::size(self.program.bytes);
        let text = match &self.source {
            ProgramSource::Installed(staged) => format!("{} ({size}, installed)", staged.url),
            ProgramSource::Own(dir) => format!("{size} as {}", dir.place_of(&self.program)),
        };
        let mut rows = vec![vec!["program".to_owned(), text]];
        if !self.data.is_empty() {
            rows.push(vec!["uploads".to_owned(), self.data_in_words()]);
        }
        for (name, from, bytes) in &self.files {
            let text = format!("{} ({}) as {name}", from.display(), format::size(*bytes));
            rows.push(vec!["uploads".to_owned(), text]);
        }
        rows
    }

    /// Whether a NodeManager can fetch the program without a token of the user.
    #[must_use]
    pub fn has_public_program(&self) -> bool {
        match &self.source {
            ProgramSource::Installed(staged) => staged.visibility == StagedVisibility::Public,
            ProgramSource::Own(_) => false,
        }
    }

    /// The URL of the site's program that containers use, if they do.
    #[must_use]
    pub fn installed_program(&self) -> Option<&str> {
        match &self.source {
            ProgramSource::Installed(staged) => Some(&staged.url),
            ProgramSource::Own(_) => None,
        }
    }

    /// `3 local data files (1.2 MiB) to hdfs://…`.
    #[must_use]
    pub fn data_in_words(&self) -> String {
        let bytes = self.data.iter().map(|upload| upload.bytes).sum();
        let to = self.data.first().map_or_else(String::new, |upload| {
            let to = upload.to.to_string();
            to.rsplit_once('/').map_or(to.clone(), |(dir, _)| dir.to_owned())
        });
        let files = match self.data.len() {
            1 => "1 local data file".to_owned(),
            n => format!("{n} local data files"),
        };
        format!("{files} ({}) to {to}", format::size(bytes))
    }
}

/// Finds the local data of a job and writes its target locations into the spec, file by file.
///
/// # Errors
/// Exit code 7 if a file cannot be read, or their sum exceeds `submit.upload-limit`.
pub async fn local_data(
    cluster: &ClusterContext,
    spec: &mut JobSpec,
) -> Result<Vec<Upload>, CommandFailure> {
    let mut found: Vec<(usize, usize, Entry)> = Vec::new();
    let lists = [("data.train", &spec.data.train), ("data.test", &spec.data.test)];
    for (list, (key, places)) in lists.into_iter().enumerate() {
        for (n, place) in places.iter().enumerate() {
            let Some(path) = place.as_local() else {
                continue;
            };
            let fact = format!("{key} = {place}");
            let pattern =
                StorePath::parse(&path.to_string_lossy()).or_fail(ExitCode::Input, &fact)?;
            let entries = find_files(&LocalStorage, &pattern).await;
            let entries = entries.or_fail_with(unusable, &fact)?;
            found.extend(entries.files.into_iter().map(|entry| (list, n, entry)));
        }
    }
    let total: u64 = found.iter().map(|(_, _, entry)| entry.bytes).sum();
    let limit = spec.submit.upload_limit;
    if total > limit.0 {
        return Err(CommandFailure::new(
            ExitCode::Input,
            format!(
                "local data of data.train and data.test must not exceed submit.upload-limit = \
                 {limit} (got {})",
                format::size(total)
            ),
        )
        .next(
            "copy the data to HDFS (hdfs dfs -put) and set its hdfs:///… URL, or raise \
             submit.upload-limit",
        ));
    }
    if found.is_empty() {
        return Ok(Vec::new());
    }
    // In the order of their paths, as in a local run, so that tasks have the same order.
    found.sort_by(|a, b| (a.0, &a.2.path).cmp(&(b.0, &b.2.path)));
    let mut all = Sha256::new();
    let mut names = Vec::new();
    for (n, (list, _, entry)) in found.iter().enumerate() {
        let path = PathBuf::from(entry.path.as_str());
        let (digest, bytes) = program::digest(&path).or_fail_with(
            CommandFailure::of_file,
            format_args!("cannot read {}", path.display()),
        )?;
        let name = format!("{list}-{n:06}-{}", plain(entry.name()));
        all.update(format!("{name} {bytes} {digest}\n"));
        names.push((path, bytes, name));
    }
    let folder = hex::encode(&all.finalize()[..16]);
    let folder = cluster.home()?.join(HOME_DIR).join("data").join(&folder);
    let uploads: Vec<Upload> = names
        .into_iter()
        .map(|(from, bytes, name)| Upload { from, bytes, to: folder.join(&name) })
        .collect();
    for (list, places) in [&mut spec.data.train, &mut spec.data.test].into_iter().enumerate() {
        let local = places.iter().any(|place| place.as_local().is_some());
        places.retain(|place| place.as_local().is_none());
        if local {
            let ours = found.iter().zip(&uploads).filter(|((of, _, _), _)| *of == list);
            places.extend(ours.map(|(_, upload)| upload.to.clone()));
        }
    }
    Ok(uploads)
}

/// Replaces characters that a pattern or a shell interprets. Keeps the end of the name, which shows the compression.
fn plain(name: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let name: String = name.chars().map(|c| if fits(c) { c } else { '_' }).collect();
    let cut = name.len().saturating_sub(100);
    name[cut..].to_owned()
}

/// Sends a file to a name derived from its content, unless it exists with the same length; returns whether it was sent.
///
/// # Errors
/// The file cannot be read or written.
pub async fn send_once(
    cluster: &ClusterContext,
    upload: &Upload,
) -> Result<(StagedFile, bool), CommandFailure> {
    let path = path_of(&upload.to)?;
    let storage = cluster.storage_of(&upload.to)?;
    if let Ok(entry) = storage.stat(&path).await
        && entry.bytes == upload.bytes
    {
        return Ok((staged(&upload.to, &entry), false));
    }
    let fact = format!("cannot write {}", upload.to);
    // Under another name first: an upload that this process's death interrupts never has the final name.
    let unique = format!(".{}.{}", path.name(), uuid::Uuid::new_v4().simple());
    let new = path.sibling(&unique).or_fail(ExitCode::Input, &upload.to)?;
    write_file(&*storage, &upload.from, &new).await?;
    match storage.rename(&new, &path).await {
        Ok(()) => {}
        // Another submission was faster with the same content, or a shorter file exists.
        Err(error) if error.error().is_exists() => {
            let there = storage.stat(&path).await;
            if there.is_ok_and(|entry| entry.bytes == upload.bytes) {
                let _leftover = storage.delete_file(&new).await;
            } else {
                storage.delete_file(&path).await.or_fail_with(write_failure, &fact)?;
                storage.rename(&new, &path).await.or_fail_with(write_failure, &fact)?;
            }
        }
        Err(error) => return Err(write_failure(&fact, &error)),
    }
    Ok((stat(cluster, &upload.to).await?, true))
}

/// Sends a file to a new name.
///
/// # Errors
/// The file cannot be read or written.
pub async fn send(
    cluster: &ClusterContext,
    from: &Path,
    to: &Location,
) -> Result<StagedFile, CommandFailure> {
    write_file(&*cluster.storage_of(to)?, from, &path_of(to)?).await?;
    stat(cluster, to).await
}

/// Writes bytes to a new name.
///
/// # Errors
/// The file cannot be written.
pub async fn put(
    cluster: &ClusterContext,
    bytes: Vec<u8>,
    to: &Location,
) -> Result<StagedFile, CommandFailure> {
    let storage = cluster.storage_of(to)?;
    let write = async {
        let mut writer = storage.create(&path_of_write(to)?, Mode::FILE).await?;
        writer.write(Bytes::from(bytes)).await?;
        writer.close().await
    };
    write.await.or_fail_with(write_failure, format_args!("cannot write {to}"))?;
    stat(cluster, to).await
}

fn path_of_write(to: &Location) -> Result<StorePath, WriteError> {
    StorePath::parse(to.path()).map_err(|error| WriteError::NotDone(error.into()))
}

async fn write_file(
    storage: &dyn Storage,
    from: &Path,
    to: &StorePath,
) -> Result<(), CommandFailure> {
    let unread = format!("cannot read {}", from.display());
    let unwritten = format!("cannot write {}", storage.show(to));
    let file = tokio::fs::File::open(from).await;
    let mut file = file.or_fail_with(CommandFailure::of_file, &unread)?;
    let writer = storage.create(to, Mode::FILE).await;
    let mut writer = writer.or_fail_with(write_failure, &unwritten)?;
    loop {
        let mut chunk = bytes::BytesMut::with_capacity(CHUNK);
        let count = file.read_buf(&mut chunk).await;
        if count.or_fail_with(CommandFailure::of_file, &unread)? == 0 {
            break;
        }
        writer.write(chunk.freeze()).await.or_fail_with(write_failure, &unwritten)?;
    }
    writer.close().await.or_fail_with(write_failure, unwritten)
}

/// A file of the cluster as NodeManagers localize it. Its time is read after the file is closed, since closing changes
/// it.
///
/// # Errors
/// The file does not exist or cannot be read.
pub async fn stat(
    cluster: &ClusterContext,
    place: &Location,
) -> Result<StagedFile, CommandFailure> {
    let entry = cluster
        .storage_of(place)?
        .stat(&path_of(place)?)
        .await
        .or_fail_with(storage_failure, format_args!("cannot read {place}"))?;
    Ok(staged(place, &entry))
}

fn staged(place: &Location, entry: &Entry) -> StagedFile {
    StagedFile {
        url: place.url(),
        bytes: entry.bytes,
        modified_ms: entry.modified_ms,
        archive: false,
        visibility: StagedVisibility::Application,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uploaded_names_have_no_pattern_and_keep_their_end() {
        assert_eq!(plain("tr*in [1].libsvm.gz"), "tr_in__1_.libsvm.gz");
        assert_eq!(plain("données"), "donn_es");
        assert!(plain(&format!("{}.gz", "x".repeat(300))).ends_with("x.gz"));
    }
}
