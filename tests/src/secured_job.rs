//! A job on a Kerberised test cluster: data, checkpoints and model on HDFS, with the environment of a user's shell.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::hadoop::{Cluster, Realm};
use crate::hdfs_job::{model_at, sums};
use crate::local::{Ended, program, write_libsvm};
use crate::secured_submission::SecuredSubmission;

/// A job of alice and its local folder.
pub struct SecuredJob<'c> {
    cluster: &'c Cluster,
    realm: &'c Realm,
    dir: TempDir,
    root: String,
    passes: u32,
    is_quick_start: bool,
}

/// The quick start of README: its job file and its data.
const QUICK_START: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/quickstart");

impl<'c> SecuredJob<'c> {
    /// Puts the data on HDFS and writes the job file. A BSP job, so its bytes are known beforehand.
    ///
    /// # Errors
    /// The cluster is not secured, or HDFS or the local disk refuse.
    pub fn new(cluster: &'c Cluster, name: &str) -> Result<Self> {
        Self::of_passes(cluster, name, 2)
    }

    /// As [`SecuredJob::new`] with this number of passes, of 19 steps each.
    ///
    /// # Errors
    /// See [`SecuredJob::new`].
    pub fn of_passes(cluster: &'c Cluster, name: &str, passes: u32) -> Result<Self> {
        let root = format!("/user/alice/{name}");
        let job = Self { root, passes, ..Self::without_data(cluster)? };
        write_libsvm(&job.path().join("data"), "train", 2, 300, 200, 8, 5)?;
        job.write("job.toml", &format!("hdfs://{}", job.root))?;
        let local = job.path().join("data").display().to_string();
        cluster.dfs("alice", &["-mkdir", "-p", &job.root])?;
        cluster.dfs("alice", &["-put", &local, &job.root])?;
        Ok(job)
    }

    /// The quick start of README with fewer passes, of 29 steps each; data, checkpoints and model are on HDFS.
    ///
    /// # Errors
    /// See [`SecuredJob::new`].
    pub fn quick_start(cluster: &'c Cluster, name: &str, passes: u32) -> Result<Self> {
        let root = format!("/user/alice/{name}");
        let job = Self { root, passes, is_quick_start: true, ..Self::without_data(cluster)? };
        job.write("job.toml", &format!("hdfs://{}", job.root))?;
        cluster.dfs("alice", &["-mkdir", "-p", &job.root])?;
        cluster.dfs("alice", &["-put", &format!("{QUICK_START}/data"), &job.root])?;
        std::os::unix::fs::symlink(format!("{QUICK_START}/data"), job.path().join("data"))?;
        Ok(job)
    }

    /// A local folder alone, for commands without a job.
    ///
    /// # Errors
    /// The cluster is not secured, or the local disk refuses.
    pub fn without_data(cluster: &'c Cluster) -> Result<Self> {
        let realm = cluster.realm().context("the cluster has no Kerberos")?;
        let (dir, root) = (tempfile::tempdir()?, String::new());
        Ok(Self { cluster, realm, dir, root, passes: 0, is_quick_start: false })
    }

    fn write(&self, name: &str, place: &str) -> Result<()> {
        let passes = self.passes;
        if self.is_quick_start {
            let mut text = std::fs::read_to_string(format!("{QUICK_START}/job.toml"))?;
            let (dir, model) = (format!("{place}/ckpt"), format!("{place}/model"));
            for (from, to) in [
                ("\"data/", format!("\"{place}/data/")),
                ("passes = 40", format!("passes = {passes}")),
                ("[checkpoint]\n", format!("[checkpoint]\ndir = \"{dir}\"\n")),
                ("[output]\n", format!("[output]\nmodel = \"{model}\"\n")),
            ] {
                ensure!(text.contains(from), "no {from:?} in {text}");
                text = text.replace(from, &to);
            }
            return Ok(std::fs::write(self.path().join(name), text)?);
        }
        let text = format!(
            "name = \"secured\"\n\
             [data]\ntrain = \"{place}/data/*.libsvm\"\npasses = {passes}\n\
             [model]\nalgorithm = \"logistic-regression\"\nfeatures = 200\nl2 = 1e-4\n\
             optimizer = {{ kind = \"ftrl\", alpha = 0.1 }}\n\
             [training]\nlanes = 4\nbatch = 8\nseed = 7\n\
             [pservers]\ncount = 2\nshards = 2\nmemory = \"160MiB\"\n\
             [trainers]\nmin = 2\nmax = 2\nmemory = \"160MiB\"\n\
             [am]\nmemory = \"160MiB\"\n\
             [checkpoint]\ndir = \"{place}/ckpt\"\nevery = \"20 steps\"\n\
             [output]\nmodel = \"{place}/model\"\n"
        );
        Ok(std::fs::write(self.path().join(name), text)?)
    }

    /// The local folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The job's folder on HDFS, as a URL.
    #[must_use]
    pub fn place(&self) -> String {
        format!("hdfs://{}", self.root)
    }

    /// `heddle` in the job's folder with the cluster's configuration; no ticket is in sight.
    ///
    /// # Errors
    /// It is not built.
    pub fn command(&self) -> Result<Command> {
        let mut command = Command::new(program("heddle")?);
        command
            .current_dir(self.path())
            .env("XDG_STATE_HOME", self.path().join("state"))
            .env("HADOOP_CONF_DIR", self.cluster.conf_dir())
            .env("KRB5_CONFIG", self.realm.configuration())
            .env("KRB5CCNAME", format!("FILE:{}/none", self.path().display()))
            .env_remove("HADOOP_TOKEN_FILE_LOCATION")
            .env_remove("HADOOP_USER_NAME")
            .env_remove("FAILPOINTS");
        Ok(command)
    }

    /// Runs `heddle` with these arguments and variables to its end.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn heddle(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Result<Ended> {
        let output = self.command()?.args(arguments).envs(variables.iter().copied()).output()?;
        Ok(Ended {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    /// The client's configuration.
    #[must_use]
    pub fn conf_dir(&self) -> PathBuf {
        self.cluster.conf_dir()
    }

    /// A copy of the client's configuration in which a property has another value; `None`: it is not set.
    ///
    /// # Errors
    /// The local disk.
    pub fn conf(&self, file: &str, key: &str, value: Option<&str>) -> Result<String> {
        let to = tempfile::tempdir_in(self.path())?.keep();
        for entry in std::fs::read_dir(self.cluster.conf_dir())? {
            let entry = entry?;
            std::fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
        match value {
            Some(value) => copy_with(&to, &to, file, &[(key, value)])?,
            None => {
                let text = std::fs::read_to_string(to.join(file))?;
                let (name, other) =
                    (format!("<name>{key}</name>"), format!("<name>no.{key}</name>"));
                std::fs::write(to.join(file), text.replace(&name, &other))?;
            }
        }
        Ok(to.display().to_string())
    }

    /// Submits the job with the user's ticket. `fail_points` is the variable `FAILPOINTS` of every container, in which
    /// `{slow}` stands for a file that exists until [`SecuredJob::hurry`].
    ///
    /// # Errors
    /// The command ends before it has submitted; with its output.
    pub fn submit(&self, arguments: &[&str], fail_points: &str) -> Result<SecuredSubmission<'c>> {
        self.submit_with(&[], arguments, fail_points)
    }

    /// As [`SecuredJob::submit`], with these variables.
    ///
    /// # Errors
    /// See [`SecuredJob::submit`].
    pub fn submit_with(
        &self,
        variables: &[(&str, &str)],
        arguments: &[&str],
        fail_points: &str,
    ) -> Result<SecuredSubmission<'c>> {
        let slow = self.path().join("slow");
        std::fs::write(&slow, "")?;
        let fail_points = fail_points.replace("{slow}", &slow.display().to_string());
        let krb5 = self.realm.configuration();
        // Every bash reads this file first (bash(1)), also that of a container's launch script.
        let script = self.path().join("before.sh");
        let exports = format!("export FAILPOINTS='{fail_points}' KRB5_CONFIG={}\n", krb5.display());
        std::fs::write(&script, exports)?;
        let mut command = self.command()?;
        command
            .args(["submit", "job.toml", "--json", "--env"])
            .arg(format!("BASH_ENV={}", script.display()))
            .args(arguments)
            .env("KRB5CCNAME", self.realm.cache("alice"))
            .envs(variables.iter().copied());
        SecuredSubmission::start(self.cluster, command)
    }

    /// Ends the sleeps of fail points with the condition `while={slow}`.
    ///
    /// # Errors
    /// The disk.
    pub fn hurry(&self) -> Result<()> {
        Ok(std::fs::remove_file(self.path().join("slow"))?)
    }

    /// Holds the model on HDFS to the bytes of `heddle run` on this machine's disk.
    ///
    /// # Errors
    /// They differ, or one is missing.
    pub fn same_as_local(&self) -> Result<()> {
        self.are_same_as_local(&["model"])
    }

    /// As [`SecuredJob::same_as_local`], for several models in the job's folder on HDFS.
    ///
    /// # Errors
    /// See [`SecuredJob::same_as_local`].
    pub fn are_same_as_local(&self, models: &[impl AsRef<str>]) -> Result<()> {
        let to = tempfile::tempdir_in(self.path())?;
        let target = to.path().display().to_string();
        let places = models.iter().map(|model| format!("{}/{}", self.root, model.as_ref()));
        let places: Vec<String> = places.collect();
        let mut arguments = vec!["-get"];
        arguments.extend(places.iter().map(String::as_str));
        arguments.push(&target);
        self.cluster.dfs("alice", &arguments)?;
        self.write("local.toml", &self.path().display().to_string())?;
        let ended = crate::local::heddle(self.path(), &["run", "local.toml"])?;
        ensure!(ended.code == Some(0), "{ended:?}");
        let local = model_at(&self.path().join("model"))?;
        for model in models.iter().map(AsRef::as_ref) {
            let remote = model_at(&to.path().join(model))?;
            ensure!(remote == local, "{model}: {:?} and not {:?}", sums(&remote), sums(&local));
        }
        Ok(())
    }
}

/// Copies a file of a configuration with more properties.
///
/// # Errors
/// The local disk.
pub fn copy_with(from: &Path, to: &Path, file: &str, more: &[(&str, &str)]) -> Result<()> {
    std::fs::create_dir_all(to)?;
    let properties: String = more
        .iter()
        .map(|(key, value)| {
            format!("<property><name>{key}</name><value>{value}</value></property>\n")
        })
        .collect();
    let text = std::fs::read_to_string(from.join(file))?;
    let text = text.replace("</configuration>", &format!("{properties}</configuration>"));
    Ok(std::fs::write(to.join(file), text)?)
}
