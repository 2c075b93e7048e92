//! A job whose data, checkpoints and model are on a test cluster's HDFS, run as alice by `heddle run`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use heddle_protocol::model::{MODEL_FILE, ModelFile};
use heddle_protocol::view::JobEvent;
use heddle_storage::{Mode, Storage, StorePath, make_dirs, read_small};
use md5::{Digest, Md5};
use tempfile::TempDir;
use tokio::task::JoinSet;

use crate::hadoop::Cluster;
use crate::local::{Ended, Run, heddle_with, write_libsvm};

/// No model of these tests is larger.
const MODEL_BYTES_MAX: usize = 1 << 20;

/// Files that are uploaded at once.
const UPLOADS: usize = 16;

/// Records of a file of the training data, of which there are [`FILES`].
pub const ROWS: u32 = 300;
/// Files of training data.
pub const FILES: u32 = 4;
/// Records that one update sees: lanes × batch.
pub const STEP_ROWS: u32 = 32;

/// What differs between jobs of these tests.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Passes over the data: each has 38 steps.
    pub passes: u32,
    /// `checkpoint.every`, such as `20 steps`.
    pub every: &'static str,
    /// Whether the data are on this machine's disk, so that HDFS disturbs checkpoints alone.
    pub local_data: bool,
}

impl Shape {
    /// A job of this number of passes with a checkpoint every 20 steps, all on HDFS.
    #[must_use]
    pub fn passes(passes: u32) -> Self {
        Self { passes, every: "20 steps", local_data: false }
    }
}

/// A job and its local folder, which holds the job file and the states of its runs.
pub struct HdfsJob<'c> {
    cluster: &'c Cluster,
    dir: TempDir,
    /// Directory on HDFS, below which everything of the job lies.
    pub root: String,
    /// The account it runs as.
    pub user: &'static str,
}

impl<'c> HdfsJob<'c> {
    /// Puts the data on HDFS and writes the job file. A BSP job, so its bytes are known beforehand.
    ///
    /// # Errors
    /// HDFS or the local disk refuse.
    pub fn new(cluster: &'c Cluster, name: &str, shape: Shape) -> Result<Self> {
        let job = Self::local_only(cluster, name, shape)?;
        if shape.local_data {
            let root = StorePath::parse(&job.root)?;
            let storage = cluster.storage("alice")?;
            runtime()?.block_on(make_dirs(&*storage, &root, Mode::DIR))?;
        } else {
            job.upload(&job.path().join("data"), "data")?;
        }
        Ok(job)
    }

    /// A job file alone: nothing of it is on HDFS.
    ///
    /// # Errors
    /// The local disk refuses.
    pub fn local_only(cluster: &'c Cluster, name: &str, shape: Shape) -> Result<Self> {
        let job = Self {
            cluster,
            dir: tempfile::tempdir()?,
            root: format!("/user/alice/{name}"),
            user: "alice",
        };
        write_libsvm(&job.path().join("data"), "train", FILES, ROWS, 200, 8, 5)?;
        job.write("job.toml", &format!("hdfs://{}", job.root), shape)?;
        Ok(job)
    }

    /// The same job on this machine's disk, to compare with.
    ///
    /// # Errors
    /// See [`HdfsJob::new`].
    pub fn local_model(&self, shape: Shape) -> Result<BTreeMap<String, Vec<u8>>> {
        self.local_model_with(shape, &[])
    }

    /// The same with arguments of `heddle run`, such as `--set` and a key's value.
    ///
    /// # Errors
    /// See [`HdfsJob::new`].
    pub fn local_model_with(
        &self,
        shape: Shape,
        arguments: &[&str],
    ) -> Result<BTreeMap<String, Vec<u8>>> {
        let place = self.path().join("local");
        std::fs::create_dir_all(&place)?;
        std::os::unix::fs::symlink(self.path().join("data"), place.join("data"))?;
        self.write("local.toml", &place.display().to_string(), shape)?;
        let ended = self.heddle(&[&["run", "local.toml"], arguments].concat())?;
        ensure!(ended.code == Some(0), "{ended:?}");
        model_at(&place.join("model"))
    }

    fn write(&self, name: &str, place: &str, shape: Shape) -> Result<()> {
        let Shape { passes, every, .. } = shape;
        let data = match shape.local_data {
            true => self.path().display().to_string(),
            false => place.to_owned(),
        };
        let text = format!(
            "name = \"hdfs\"\n\
             [data]\ntrain = \"{data}/data/*.libsvm\"\npasses = {passes}\n\
             [model]\nalgorithm = \"logistic-regression\"\nfeatures = 200\nl2 = 1e-4\n\
             optimizer = {{ kind = \"ftrl\", alpha = 0.1 }}\n\
             [training]\nlanes = 4\nbatch = 8\nseed = 7\n\
             [pservers]\ncount = 2\nshards = 2\n\
             [trainers]\nmin = 2\nmax = 2\n\
             [checkpoint]\ndir = \"{place}/ckpt\"\nevery = \"{every}\"\n\
             [output]\nmodel = \"{place}/model\"\n"
        );
        Ok(std::fs::write(self.path().join(name), text)?)
    }

    /// The local folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Directory of the checkpoints, as a URL.
    #[must_use]
    pub fn checkpoints(&self) -> String {
        format!("hdfs://{}/ckpt", self.root)
    }

    /// Starts `heddle run`; `fail_points` is its variable `FAILPOINTS`.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(&self, arguments: &[&str], fail_points: &str) -> Result<Run> {
        let conf = self.cluster.conf_dir().display().to_string();
        Run::start_with(
            self.path(),
            "job.toml",
            arguments,
            &[
                ("HADOOP_CONF_DIR", &conf),
                ("HADOOP_USER_NAME", self.user),
                ("FAILPOINTS", fail_points),
            ],
        )
    }

    /// Runs a command to its end.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn heddle(&self, arguments: &[&str]) -> Result<Ended> {
        let conf = self.cluster.conf_dir().display().to_string();
        let variables = [("HADOOP_CONF_DIR", conf.as_str()), ("HADOOP_USER_NAME", self.user)];
        heddle_with(self.path(), arguments, &variables)
    }

    /// Copies a local folder's files to a directory below [`root`](Self::root).
    ///
    /// # Errors
    /// HDFS or the local disk refuse.
    pub fn upload(&self, from: &Path, to: &str) -> Result<()> {
        let storage = self.cluster.storage("alice")?;
        let root = StorePath::parse(&format!("{}/{to}", self.root))?;
        runtime()?.block_on(async {
            make_dirs(&*storage, &root, Mode::DIR).await?;
            let entries = std::fs::read_dir(from)?.collect::<std::io::Result<Vec<_>>>()?;
            for some in entries.chunks(UPLOADS) {
                let mut uploads = JoinSet::new();
                for entry in some {
                    let path = root.join(&entry.file_name().to_string_lossy())?;
                    let bytes = Bytes::from(std::fs::read(entry.path())?);
                    let storage = Arc::clone(&storage);
                    uploads.spawn(async move {
                        let mut writer = storage.create(&path, Mode::FILE).await?;
                        writer.write(bytes).await?;
                        writer.close().await
                    });
                }
                while let Some(uploaded) = uploads.join_next().await {
                    uploaded??;
                }
            }
            Ok(())
        })
    }

    /// The files of the published model, by name.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    pub fn model(&self) -> Result<BTreeMap<String, Vec<u8>>> {
        let (dir, files) = self.model_in("model")?;
        ensure!(dir.is_empty(), "the files lie beside {MODEL_FILE}");
        Ok(files)
    }

    /// The files of the model that `MODEL.json` in a directory below [`root`](Self::root) names, by name, and the directory
    /// that it names.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    pub fn model_in(&self, dir: &str) -> Result<(String, BTreeMap<String, Vec<u8>>)> {
        let storage = self.cluster.storage("alice")?;
        let root = StorePath::parse(&format!("{}/{dir}", self.root))?;
        runtime()?.block_on(async {
            let json = read_small(&*storage, &root.join(MODEL_FILE)?, MODEL_BYTES_MAX).await?;
            let file = ModelFile::from_json(&json)?;
            let from = if file.dir.is_empty() { root } else { root.join(&file.dir)? };
            let mut model = BTreeMap::new();
            for of in &file.files {
                let bytes = read_small(&*storage, &from.join(&of.name)?, MODEL_BYTES_MAX).await?;
                model.insert(of.name.clone(), bytes.to_vec());
            }
            Ok((file.dir, model))
        })
    }

    /// Holds the published model to the bytes of the same job on this machine.
    ///
    /// # Errors
    /// They differ, or as [`model`](Self::model) and [`local_model`](Self::local_model).
    pub fn same_as_local(&self, shape: Shape) -> Result<()> {
        self.same_as_local_with(shape, &[])
    }

    /// The same where that job has further arguments, such as `--set` and a key's value.
    ///
    /// # Errors
    /// See [`same_as_local`](Self::same_as_local).
    pub fn same_as_local_with(&self, shape: Shape, arguments: &[&str]) -> Result<()> {
        let (model, expected) = (self.model()?, self.local_model_with(shape, arguments)?);
        ensure!(model == expected, "{:?} and not {:?}", sums(&model), sums(&expected));
        Ok(())
    }

    /// Names of the entries of a directory below [`root`](Self::root); none when it is not there.
    ///
    /// # Errors
    /// HDFS does not answer.
    pub fn names(&self, dir: &str) -> Result<Vec<String>> {
        let storage = self.cluster.storage("alice")?;
        let path = StorePath::parse(&format!("{}/{dir}", self.root))?;
        runtime()?.block_on(async {
            match storage.list(&path).await {
                Ok(entries) => Ok(entries.iter().map(|entry| entry.name().to_owned()).collect()),
                Err(error) if error.is_not_found() => Ok(Vec::new()),
                Err(error) => Err(error.into()),
            }
        })
    }

    /// Names of the checkpoints that exist, oldest first.
    ///
    /// # Errors
    /// HDFS does not answer.
    pub fn committed(&self) -> Result<Vec<String>> {
        let number = |name: &String| {
            let (generation, number) = name.strip_prefix('g')?.split_once("-c")?;
            Some((generation.parse::<u32>().ok()?, number.parse::<u32>().ok()?))
        };
        let mut names = self.names("ckpt")?;
        names.retain(|name| number(name).is_some());
        names.sort_by_key(number);
        Ok(names)
    }

    /// Checks every byte of every checkpoint that exists, by `heddle checkpoint verify`, and returns their names.
    ///
    /// # Errors
    /// One is damaged, or there are none.
    pub fn verify(&self) -> Result<Vec<String>> {
        let ended = self.heddle(&["checkpoint", "verify", &self.checkpoints()])?;
        ensure!(ended.code == Some(0), "{ended:?}");
        let names = self.committed()?;
        ensure!(!names.is_empty(), "no checkpoints");
        for name in &names {
            let line = ended.stdout.lines().find(|line| line.starts_with(name));
            ensure!(
                line.is_some_and(|line| line.ends_with("verified")),
                "{name} in {}",
                ended.stdout
            );
        }
        Ok(names)
    }

    /// Downloads all checkpoints by Hadoop's own shell and lets `md5sum -c` judge each. Returns how many files it found
    /// to be right.
    ///
    /// # Errors
    /// A file is damaged or missing, or has no sidecar.
    pub fn md5sum(&self) -> Result<usize> {
        let to = self.path().join("downloaded");
        std::fs::create_dir_all(&to)?;
        let names = self.committed()?;
        let from: Vec<String> =
            names.iter().map(|name| format!("{}/ckpt/{name}", self.root)).collect();
        let mut arguments = vec!["-get"];
        arguments.extend(from.iter().map(String::as_str));
        let target = to.display().to_string();
        arguments.push(&target);
        self.cluster.dfs("alice", &arguments)?;
        let mut right = 0;
        for name in names {
            let output = Command::new("sh")
                .args(["-c", "cat *.md5 | md5sum --strict -c"])
                .current_dir(to.join(&name))
                .output()?;
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            ensure!(output.status.success(), "{name}: {said}");
            let sums = said.lines().filter(|line| line.ends_with(": OK")).count();
            let all = std::fs::read_dir(to.join(&name))?.count();
            ensure!(all == 2 * sums, "{name}: {sums} of {all} files with their sidecars: {said}");
            right += sums;
        }
        std::fs::remove_dir_all(to)?;
        Ok(right)
    }
}

/// MD5 of each file, to show in messages instead of bytes.
#[must_use]
pub fn sums(files: &BTreeMap<String, Vec<u8>>) -> BTreeMap<String, String> {
    files
        .iter()
        .map(|(name, bytes)| {
            let sum = Md5::digest(bytes);
            (name.clone(), sum.iter().map(|byte| format!("{byte:02x}")).collect())
        })
        .collect()
}

/// Checkpoints that were committed, by the events of a run.
#[must_use]
pub fn commits(events: &[JobEvent]) -> usize {
    events.iter().filter(|event| matches!(event, JobEvent::CheckpointCommitted(_))).count()
}

/// Waits for the end of a run that ends well.
///
/// # Errors
/// It ends otherwise, or not within `limit`.
pub fn ends_well(run: Run, limit: std::time::Duration) -> Result<Vec<JobEvent>> {
    let (code, events, stderr) = run.finish(limit)?;
    let last = events.last().context("no events")?;
    ensure!(code == Some(0), "{code:?}: {last:?}; {stderr}");
    Ok(events)
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// The files of the model that was published in a local folder, by name.
///
/// # Errors
/// There is none, or it cannot be read.
pub fn model_at(root: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let file = ModelFile::from_json(&std::fs::read(root.join(MODEL_FILE))?)?;
    ensure!(!file.files.is_empty(), "the model has no files");
    let read = |name: &str| std::fs::read(root.join(&file.dir).join(name));
    file.files.iter().map(|of| Ok((of.name.clone(), read(&of.name)?))).collect()
}
