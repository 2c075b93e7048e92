//! What goes to the cluster's file system, and how it gets there.
//!
//! The program and local data lie under names made of their content: what is there already is not sent again,
//! and a job that is continued reads its data where the first submission left it, since the names of its input
//! are part of what a checkpoint means. All else lies in the staging directory and goes with it.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use heddle_am::report::format;
use heddle_am::staging::{HOME_DIR, StagedFile};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::spec::{JobSpec, Location};
use heddle_storage::{Entry, LocalStorage, Mode, StorePath, WriteError, find_files};
use sha2::{Digest, Sha256};
use tokio::io::AsyncReadExt;

use super::program::{self, Program};
use crate::cluster::{ClusterContext, path_of, storage_failure};
use crate::failure::Failure;

/// Bytes that are read and sent at a time.
const CHUNK: usize = 1 << 20;

/// A local file and where it goes.
#[derive(Clone, Debug)]
pub struct Upload {
    /// On this machine.
    pub from: PathBuf,
    /// Bytes.
    pub bytes: u64,
    /// On the cluster.
    pub to: Location,
}

/// All that is uploaded.
pub struct Uploads {
    /// The program, and its place.
    pub program: (Program, Location),
    /// Local data.
    pub data: Vec<Upload>,
    /// Local files and archives, by their names in work directories; their places follow from the application's id.
    pub files: Vec<(String, PathBuf, u64)>,
}

impl Uploads {
    /// As `--dry-run --json` shows it.
    #[must_use]
    pub fn as_json(&self) -> serde_json::Value {
        let one = |from: &Path, bytes: u64, to: String| serde_json::json!({ "from": from, "bytes": bytes, "to": to });
        let (program, to) = &self.program;
        let mut all = vec![one(&program.path, program.bytes, to.to_string())];
        for upload in &self.data {
            all.push(one(&upload.from, upload.bytes, upload.to.to_string()));
        }
        for (name, from, bytes) in &self.files {
            all.push(one(from, *bytes, name.clone()));
        }
        all.into()
    }

    /// As `--dry-run` shows it.
    #[must_use]
    pub fn rows(&self) -> Vec<Vec<String>> {
        let (program, to) = &self.program;
        let size = format::size(program.bytes);
        let mut rows = vec![vec!["program".to_owned(), format!("{size} as {to}")]];
        if !self.data.is_empty() {
            rows.push(vec!["uploads".to_owned(), self.data_in_words()]);
        }
        for (name, from, bytes) in &self.files {
            let text = format!("{} ({}) as {name}", from.display(), format::size(*bytes));
            rows.push(vec!["uploads".to_owned(), text]);
        }
        rows
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

/// Finds the local data of a job and puts its future places into the spec, file by file.
///
/// # Errors
/// Exit code 7 when a file cannot be read, or all together are more than `submit.upload-limit`.
pub async fn local_data(
    cluster: &ClusterContext,
    spec: &mut JobSpec,
) -> Result<Vec<Upload>, Failure> {
    let mut found: Vec<(usize, usize, Entry)> = Vec::new();
    let lists = [("data.train", &spec.data.train), ("data.test", &spec.data.test)];
    for (list, (key, places)) in lists.into_iter().enumerate() {
        for (n, place) in places.iter().enumerate() {
            let Some(path) = place.as_local() else {
                continue;
            };
            let failed = |error: &dyn std::error::Error| {
                Failure::caused(ExitCode::Input, format!("{key} = {place}"), error)
            };
            let pattern = StorePath::parse(&path.to_string_lossy()).map_err(|e| failed(&e))?;
            let entries = find_files(&LocalStorage, &pattern).await.map_err(|e| failed(&e))?;
            found.extend(entries.into_iter().map(|entry| (list, n, entry)));
        }
    }
    let total: u64 = found.iter().map(|(_, _, entry)| entry.bytes).sum();
    let limit = spec.submit.upload_limit;
    if total > limit.0 {
        return Err(Failure::new(
            ExitCode::Input,
            format!(
                "data.train, data.test: {} of local data, more than submit.upload-limit = {limit}",
                format::size(total)
            ),
        )
        .next("copy the data to HDFS (hdfs dfs -put) and name it by hdfs:///…, or raise submit.upload-limit"));
    }
    if found.is_empty() {
        return Ok(Vec::new());
    }
    // In the order of their paths, which is that of a local run, and so of its tasks.
    found.sort_by(|a, b| (a.0, &a.2.path).cmp(&(b.0, &b.2.path)));
    let mut all = Sha256::new();
    let mut names = Vec::new();
    for (n, (list, _, entry)) in found.iter().enumerate() {
        let path = PathBuf::from(entry.path.as_str());
        let unreadable = |error: &std::io::Error| {
            Failure::caused(ExitCode::Input, format!("{} cannot be read", path.display()), error)
        };
        let (digest, bytes) = program::digest(&path).map_err(|error| unreadable(&error))?;
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

/// A name without what a pattern or a shell would read into it; its end, which tells the compression, stays.
fn plain(name: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let name: String = name.chars().map(|c| if fits(c) { c } else { '_' }).collect();
    let cut = name.len().saturating_sub(100);
    name[cut..].to_owned()
}

/// Sends a file to a name made of its content, unless it is there with the same length; tells whether it was sent.
///
/// # Errors
/// It cannot be read here or written there.
pub async fn send_once(
    cluster: &ClusterContext,
    upload: &Upload,
) -> Result<(StagedFile, bool), Failure> {
    let path = path_of(&upload.to)?;
    if let Ok(entry) = cluster.storage.stat(&path).await
        && entry.bytes == upload.bytes
    {
        return Ok((staged(&upload.to, &entry), false));
    }
    let failed = |error: &WriteError| {
        storage_failure(&format!("{} cannot be written", upload.to), error.error())
    };
    // Under another name first: a file that was torn by a death here never has the final one.
    let unique = format!(".{}.{}", path.name(), uuid::Uuid::new_v4().simple());
    let new = path
        .sibling(&unique)
        .map_err(|error| Failure::caused(ExitCode::Input, upload.to.to_string(), &error))?;
    write_file(cluster, &upload.from, &new).await?;
    match cluster.storage.rename(&new, &path).await {
        Ok(()) => {}
        // Another submission was faster with the same content, or a shorter one is in the way.
        Err(error) if error.error().is_exists() => {
            let there = cluster.storage.stat(&path).await;
            if there.is_ok_and(|entry| entry.bytes == upload.bytes) {
                let _leftover = cluster.storage.delete_file(&new).await;
            } else {
                cluster.storage.delete_file(&path).await.map_err(|e| failed(&e))?;
                cluster.storage.rename(&new, &path).await.map_err(|e| failed(&e))?;
            }
        }
        Err(error) => return Err(failed(&error)),
    }
    Ok((stat(cluster, &upload.to).await?, true))
}

/// Sends a file to a new name.
///
/// # Errors
/// It cannot be read here or written there.
pub async fn send(
    cluster: &ClusterContext,
    from: &Path,
    to: &Location,
) -> Result<StagedFile, Failure> {
    write_file(cluster, from, &path_of(to)?).await?;
    stat(cluster, to).await
}

/// Writes bytes to a new name.
///
/// # Errors
/// They cannot be written.
pub async fn put(
    cluster: &ClusterContext,
    bytes: Vec<u8>,
    to: &Location,
) -> Result<StagedFile, Failure> {
    let write = async {
        let mut writer = cluster.storage.create(&path_of_write(to)?, Mode::FILE).await?;
        writer.write(Bytes::from(bytes)).await?;
        writer.close().await
    };
    write.await.map_err(|error: WriteError| {
        storage_failure(&format!("{to} cannot be written"), error.error())
    })?;
    stat(cluster, to).await
}

fn path_of_write(to: &Location) -> Result<StorePath, WriteError> {
    StorePath::parse(to.path()).map_err(|error| WriteError::NotDone(error.into()))
}

async fn write_file(cluster: &ClusterContext, from: &Path, to: &StorePath) -> Result<(), Failure> {
    let unreadable = |error: std::io::Error| {
        Failure::caused(ExitCode::Input, format!("{} cannot be read", from.display()), &error)
    };
    let failed = |error: WriteError| {
        let fact = format!("{} cannot be written", cluster.storage.show(to));
        storage_failure(&fact, error.error())
    };
    let mut file = tokio::fs::File::open(from).await.map_err(unreadable)?;
    let mut writer = cluster.storage.create(to, Mode::FILE).await.map_err(failed)?;
    loop {
        let mut chunk = bytes::BytesMut::with_capacity(CHUNK);
        let count = file.read_buf(&mut chunk).await.map_err(unreadable)?;
        if count == 0 {
            break;
        }
        writer.write(chunk.freeze()).await.map_err(failed)?;
    }
    writer.close().await.map_err(failed)
}

/// A file of the cluster as NodeManagers are told of it. Its time is read after it was closed, which changes it.
///
/// # Errors
/// It is not there or cannot be seen.
pub async fn stat(cluster: &ClusterContext, place: &Location) -> Result<StagedFile, Failure> {
    let entry = cluster
        .storage
        .stat(&path_of(place)?)
        .await
        .map_err(|error| storage_failure(&format!("{place} cannot be read"), &error))?;
    Ok(staged(place, &entry))
}

fn staged(place: &Location, entry: &Entry) -> StagedFile {
    StagedFile {
        url: place.url(),
        bytes: entry.bytes,
        modified_ms: entry.modified_ms,
        archive: false,
        shared: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_on_the_cluster_hold_no_pattern_and_keep_their_ending() {
        assert_eq!(plain("tr*in [1].libsvm.gz"), "tr_in__1_.libsvm.gz");
        assert_eq!(plain("données"), "donn_es");
        assert!(plain(&format!("{}.gz", "x".repeat(300))).ends_with("x.gz"));
    }
}
