//! The jobs that tests submit: a BSP job whose bytes are known, and one that counts.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Deref;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::submitted::Submitted;
use crate::hadoop::Cluster;
use crate::hdfs_job::{HdfsJob, Shape};
use crate::local::{Ended, program};

/// Containers of 192 MiB: a job of two pservers, two trainers and an ApplicationMaster takes less than 1 GiB.
const SMALL: [&str; 6] = [
    "--set",
    "pservers.memory=160MiB",
    "--set",
    "trainers.memory=160MiB",
    "--set",
    "am.memory=160MiB",
];

/// A job with its data on HDFS, and its local folder with the job file `job.toml`.
pub struct YarnJob<'c> {
    cluster: &'c Cluster,
    hdfs: HdfsJob<'c>,
    file: &'static str,
}

impl<'c> Deref for YarnJob<'c> {
    type Target = HdfsJob<'c>;

    fn deref(&self) -> &HdfsJob<'c> {
        &self.hdfs
    }
}

impl<'c> YarnJob<'c> {
    /// The BSP job of the tests of HDFS; its model without YARN is [`HdfsJob::local_model`].
    ///
    /// # Errors
    /// HDFS or the local disk refuse.
    pub fn bsp(cluster: &'c Cluster, name: &str, shape: Shape) -> Result<Self> {
        Ok(Self { cluster, hdfs: HdfsJob::new(cluster, name, shape)?, file: "job.toml" })
    }

    /// Another job file in place of its own. `{root}` stands for the job's folder on HDFS, as a URL.
    ///
    /// # Errors
    /// The disk.
    pub fn with_file(mut self, name: &'static str, text: &str) -> Result<Self> {
        let text = text.replace("{root}", &self.url());
        std::fs::write(self.path().join(name), text)?;
        self.file = name;
        Ok(self)
    }

    /// The job's folder on HDFS as a URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("hdfs://{}", self.root)
    }

    /// The cluster.
    #[must_use]
    pub fn cluster(&self) -> &'c Cluster {
        self.cluster
    }

    /// `heddle` in the job's folder, with the cluster's configuration, as alice.
    ///
    /// # Errors
    /// It is not built.
    pub fn command(&self) -> Result<Command> {
        let mut command = Command::new(program("heddle")?);
        command
            .current_dir(self.path())
            .env("XDG_STATE_HOME", self.path().join("state"))
            .env("HADOOP_CONF_DIR", self.cluster.conf_dir())
            .env("HADOOP_USER_NAME", self.user)
            .env_remove("FAILPOINTS");
        Ok(command)
    }

    /// `heddle submit` with small containers and these arguments.
    ///
    /// # Errors
    /// It is not built.
    pub fn submit_command(&self, arguments: &[&str]) -> Result<Command> {
        let mut command = self.command()?;
        command.args(["submit", self.file]).args(SMALL).args(arguments);
        Ok(command)
    }

    /// Ends the sleeps of fail points with the condition `while={slow}`, so that the job is soon over.
    ///
    /// # Errors
    /// The disk.
    pub fn hurry(&self) -> Result<()> {
        Ok(std::fs::remove_file(self.path().join("slow"))?)
    }

    /// Submits it; `fail_points` is the variable `FAILPOINTS` of every container, in which `{slow}` stands for
    /// a file that exists until [`YarnJob::hurry`].
    ///
    /// # Errors
    /// It is refused; with the client's words.
    pub fn submit(&self, arguments: &[&str], fail_points: &str) -> Result<Submitted<'c>> {
        self.submit_with_shell(arguments, fail_points, "")
    }

    /// As [`YarnJob::submit`]; `script` is what the shell of each container does before it becomes a process of the job.
    ///
    /// # Errors
    /// It is refused; with the client's words.
    pub fn submit_with_shell(
        &self,
        arguments: &[&str],
        fail_points: &str,
        script: &str,
    ) -> Result<Submitted<'c>> {
        let mut command = self.submit_command(arguments)?;
        command.arg("--json").args(self.shell(fail_points, script)?);
        Submitted::start(self.cluster, command, None)
    }

    /// Arguments of `heddle submit` by which shells of containers do something first. Every bash that is started for a
    /// command reads the file that `BASH_ENV` names (bash(1)); the names of our own variables are not to be had
    /// in `yarn.env`.
    ///
    /// # Errors
    /// The disk.
    pub fn shell(&self, fail_points: &str, script: &str) -> Result<[String; 2]> {
        let file = self.path().join("before.sh");
        let slow = self.path().join("slow");
        std::fs::write(&slow, "")?;
        let fail_points = fail_points.replace("{slow}", &slow.display().to_string());
        std::fs::write(&file, format!("export FAILPOINTS='{fail_points}'\n{script}\n"))?;
        Ok(["--env".to_owned(), format!("BASH_ENV={}", file.display())])
    }

    /// Follows an application that was submitted before.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn attach(&self, id: &str) -> Result<Submitted<'c>> {
        let mut command = self.command()?;
        command.args(["attach", id, "--json"]);
        Submitted::start(self.cluster, command, Some(id))
    }

    /// Submits it and waits until the command has ended, however it does.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn submit_and_wait(&self, arguments: &[&str]) -> Result<Ended> {
        ended(self.submit_command(arguments)?)
    }

    /// The same as another user.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn submit_as(&self, user: &str, arguments: &[&str]) -> Result<Ended> {
        let mut command = self.submit_command(arguments)?;
        command.env("HADOOP_USER_NAME", user);
        ended(command)
    }

    /// Names below alice's `.heddle/<dir>`, such as those of the staging directories.
    ///
    /// # Errors
    /// HDFS does not answer.
    pub fn heddle_names(&self, dir: &str) -> Result<Vec<String>> {
        let entries = self.listed(&format!("/user/alice/.heddle/{dir}"))?;
        Ok(entries.into_iter().map(|(name, _)| name).collect())
    }

    /// Names in a directory below the job's folder on HDFS, in order, and whether each is a directory.
    ///
    /// # Errors
    /// HDFS does not answer.
    pub fn entries(&self, dir: &str) -> Result<Vec<(String, bool)>> {
        self.listed(&format!("{}/{dir}", self.root))
    }

    fn listed(&self, path: &str) -> Result<Vec<(String, bool)>> {
        let listed = match self.cluster.webhdfs("GET", path, "LISTSTATUS") {
            Err(error) if format!("{error:#}").contains(" 404 ") => return Ok(Vec::new()),
            listed => listed?,
        };
        let listed: serde_json::Value = serde_json::from_str(&listed)?;
        let entries = listed["FileStatuses"]["FileStatus"].as_array();
        let names = entries.context("no list")?.iter();
        Ok(names
            .filter_map(|entry| {
                let name = entry["pathSuffix"].as_str()?.to_owned();
                Some((name, entry["type"] == "DIRECTORY"))
            })
            .collect())
    }
}

/// Runs a command to its end.
fn ended(mut command: Command) -> Result<Ended> {
    let output = command.stdin(std::process::Stdio::null()).output()?;
    Ok(Ended {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// The counting job: sample i adds 1 to row i, by a trainer of its own. After whatever happened every row equals the
/// number of passes.
pub struct Counting<'c> {
    /// The job.
    pub job: YarnJob<'c>,
    passes: u32,
    samples: u32,
}

impl<'c> Counting<'c> {
    /// Puts eight files of 150 samples on HDFS and writes the job file. `consistency` is that of `training.consistency`.
    ///
    /// # Errors
    /// HDFS or the local disk refuse.
    pub fn new(cluster: &'c Cluster, name: &str, consistency: &str, passes: u32) -> Result<Self> {
        Self::of_files(cluster, name, consistency, passes, [8, 150])
    }

    /// The same of this number of files, and samples in each. A step takes five of them.
    ///
    /// # Errors
    /// HDFS or the local disk refuse.
    pub fn of_files(
        cluster: &'c Cluster,
        name: &str,
        consistency: &str,
        passes: u32,
        [files, in_each]: [u32; 2],
    ) -> Result<Self> {
        let shape = Shape { passes, every: "15 steps", local_data: false };
        let job = YarnJob::bsp(cluster, name, shape)?;
        let samples = job.path().join("samples");
        std::fs::create_dir_all(&samples)?;
        for file in 0..files {
            let mut text = String::new();
            for sample in 0..in_each {
                writeln!(text, "1 {}", file * in_each + sample)?;
            }
            std::fs::write(samples.join(format!("{file}.dummy")), text)?;
        }
        job.upload(&samples, "samples")?;
        let trainer = program("counting-trainer")?;
        let text = format!(
            "name = \"count\"\n\
             [data]\ntrain = \"{{root}}/samples/*.dummy\"\nformat = \"dummy\"\npasses = {passes}\n\
             [model]\nalgorithm = \"custom\"\n\
             [[model.table]]\nname = \"counts\"\nrows = {}\ncols = 1\noptimizer = {{ kind = \"add\" }}\n\
             [training]\nconsistency = \"{consistency}\"\nlanes = 3\nbatch = 5\nseed = 3\n\
             [pservers]\ncount = 2\nshards = 4\n\
             [trainers]\nmin = 1\nmax = 2\ncommand = [\"{}\"]\n\
             [checkpoint]\ndir = \"{{root}}/ckpt\"\nevery = \"15 steps\"\n\
             [output]\nmodel = \"{{root}}/model\"\nformats = [\"safetensors\"]\n",
            files * in_each,
            trainer.display(),
        );
        Ok(Self { job: job.with_file("count.toml", &text)?, passes, samples: files * in_each })
    }

    /// Checks that every sample counts once for each pass.
    ///
    /// # Errors
    /// Some do not, or there is no model.
    pub fn check(&self) -> Result<()> {
        let counts = self.counts_of(&self.job.model()?)?;
        let wrong: Vec<_> = counts
            .iter()
            .enumerate()
            .filter(|(_, count)| **count != self.passes as f32)
            .take(10)
            .collect();
        ensure!(wrong.is_empty(), "wrong rows, the first are {wrong:?}");
        Ok(())
    }
}

impl Counting<'_> {
    /// Checks that a save of the model has one valid state of the job: `MODEL.json` names the folder of a trainer, there is no
    /// other, and no sample counts in part or too often.
    ///
    /// # Errors
    /// It has not.
    pub fn check_save(&self, number: u32) -> Result<()> {
        let dir = format!("model/save-{number}");
        let (named, model) = self.job.model_in(&dir)?;
        let mut names = self.job.names(&dir)?;
        names.sort();
        ensure!(names == ["MODEL.json", &named] && named.starts_with("trainer-"), "{names:?}");
        let counts = self.counts_of(&model)?;
        let is_whole = |count: &f32| (0..=self.passes).any(|whole| *count == whole as f32);
        let wrong: Vec<&f32> = counts.iter().filter(|count| !is_whole(count)).take(10).collect();
        ensure!(wrong.is_empty(), "{dir}: {wrong:?}");
        Ok(())
    }

    /// The counts of all samples, from the files of a model.
    fn counts_of(&self, model: &BTreeMap<String, Vec<u8>>) -> Result<Vec<f32>> {
        let mut files = model.iter().filter(|(name, _)| name.ends_with(".safetensors"));
        let (_, file) = files.next().context("no safetensors in the model")?;
        let counts = counts(file)?;
        ensure!(counts.len() as u32 == self.samples, "{} rows", counts.len());
        Ok(counts)
    }
}

/// The table of a safetensors file: a length, a JSON header, then the values.
fn counts(file: &[u8]) -> Result<Vec<f32>> {
    let length = file.first_chunk().context("no header")?;
    let length = usize::try_from(u64::from_le_bytes(*length))?;
    let header = file.get(8..8 + length).context("a torn header")?;
    let header: serde_json::Value = serde_json::from_slice(header)?;
    let at = |n: usize| {
        let offset = header["counts"]["data_offsets"][n].as_u64();
        anyhow::Ok(8 + length + usize::try_from(offset.context("no offset")?)?)
    };
    let values = file.get(at(0)?..at(1)?).context("a torn table")?;
    Ok(values
        .chunks_exact(4)
        .map(|value| f32::from_le_bytes([value[0], value[1], value[2], value[3]]))
        .collect())
}
