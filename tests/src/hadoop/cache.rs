//! What all clusters of a machine share: the jars, a formatted NameNode directory, the class-data archive. It is made
//! once and kept outside the source tree, in `$HEDDLE_HADOOP_CACHE`, else `$XDG_CACHE_HOME/heddle-hadoop`, else
//! `~/.cache/heddle-hadoop`, one folder for each Hadoop version (`$HEDDLE_HADOOP_VERSION`).

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use nix::fcntl::{Flock, FlockArg};

use super::cluster::Cluster;
use super::conf;
use super::daemon::{Daemon, java, java_program};
use super::options::Options;

/// The version that `tests/hadoop/pom.xml` names.
const VERSION: &str = "3.5.0";

/// The folder of one version, filled.
#[derive(Clone, Debug)]
pub(super) struct Jars(PathBuf);

impl Jars {
    /// Fetches and makes what is missing. Other processes that do the same wait for each other.
    pub(super) fn prepare() -> Result<Self> {
        let version = std::env::var("HEDDLE_HADOOP_VERSION").unwrap_or_else(|_| VERSION.to_owned());
        let root = root()?;
        fs::create_dir_all(&root)?;
        let lock =
            File::options().create(true).append(true).open(root.join(format!("{version}.lock")))?;
        let _held = Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, error)| error)?;
        let jars = Self(root.join(&version));
        jars.fetch(&version)?;
        jars.format()?;
        jars.dump_classes()?;
        Ok(jars)
    }

    /// The folder of the jars.
    pub(super) fn folder(&self) -> PathBuf {
        self.0.join("jars")
    }

    /// All jars in the order of their names: the archive is used only by a class path that begins as the dumped one.
    pub(super) fn class_path(&self) -> String {
        let mut jars: Vec<String> = fs::read_dir(self.folder())
            .map(|entries| {
                entries.flatten().map(|entry| entry.path().display().to_string()).collect()
            })
            .unwrap_or_default();
        jars.sort();
        jars.join(":")
    }

    /// The class-data archive, which may not exist.
    pub(super) fn archive(&self) -> PathBuf {
        self.0.join("app.jsa")
    }

    /// The formatted NameNode directory; a cluster copies it, which saves a JVM start of 2 s. All clusters have the
    /// same cluster id then, and never meet.
    pub(super) fn name_dir(&self) -> PathBuf {
        self.0.join("name")
    }

    /// The jars are those of the pom whose copy lies beside them; it is written last.
    fn fetch(&self, version: &str) -> Result<()> {
        let pom = Path::new(env!("CARGO_MANIFEST_DIR")).join("hadoop/pom.xml");
        let wanted = fs::read(&pom)?;
        if fs::read(self.0.join("pom.xml")).is_ok_and(|have| have == wanted) {
            return Ok(());
        }
        eprintln!("fetching the jars of Hadoop {version} to {}", self.0.display());
        if self.0.exists() {
            fs::remove_dir_all(&self.0)?;
        }
        fs::create_dir_all(&self.0)?;
        let status = Command::new("mvn")
            .args(["-q", "-B", "-f"])
            .arg(&pom)
            .arg(format!("-Dhadoop.version={version}"))
            .arg("dependency:copy-dependencies")
            .arg(format!("-DoutputDirectory={}", self.folder().display()))
            .stdin(Stdio::null())
            .status()
            .context("mvn does not start: the Hadoop tests need Maven and a JDK 17")?;
        ensure!(status.success(), "mvn could not fetch the jars of Hadoop {version}");
        fs::write(self.0.join("pom.xml"), wanted)?;
        Ok(())
    }

    fn format(&self) -> Result<()> {
        if self.name_dir().exists() {
            return Ok(());
        }
        let work = tempfile::tempdir_in(&self.0)?;
        // Hadoop resolves ${heddle.…} in values, and a path of the working directory is as good as any.
        conf::write(work.path(), "127.0.0", &self.folder(), &Options::default())?;
        let output = java(self, work.path(), 96, false)
            .arg(format!("-Dheddle.dir={}/nn1", work.path().display()))
            .arg("-Dheddle.host=127.0.0.1")
            .arg(format!("-Dhadoop.home.dir={}", work.path().display()))
            .args(["-cp", &format!("{}:{}/conf", self.class_path(), work.path().display())])
            .args([Daemon::NameNode(1).class(), "-format", "-nonInteractive"])
            .stdin(Stdio::null())
            .output()
            .context("java does not start: is a JDK 17 installed?")?;
        ensure!(
            output.status.success(),
            "format of HDFS failed: {}",
            String::from_utf8_lossy(&output.stdout)
        );
        fs::rename(work.path().join("nn1/name"), self.name_dir())?;
        Ok(())
    }

    /// Runs a cluster once to learn which classes its daemons load, then dumps them: a cluster starts in 5 to 8 s
    /// instead of 11.
    fn dump_classes(&self) -> Result<()> {
        if self.archive().exists() {
            return Ok(());
        }
        eprintln!("making the class-data archive {}", self.archive().display());
        let lists = tempfile::tempdir_in(&self.0)?;
        let options = Options { nodemanagers: 1, ..Options::default() };
        Cluster::boot(options, self.clone(), Some(lists.path()))?.stop()?;
        let mut classes = std::collections::BTreeSet::new();
        for entry in fs::read_dir(lists.path())? {
            let list = fs::read_to_string(entry?.path())?;
            classes.extend(list.lines().filter(|line| !line.starts_with('#')).map(str::to_owned));
        }
        // Names sort before the "@lambda-proxy" lines that refer to them when '@' lines go last.
        let (lambdas, names): (Vec<_>, Vec<_>) =
            classes.into_iter().partition(|line| line.starts_with('@'));
        let list = lists.path().join("all");
        fs::write(&list, names.into_iter().chain(lambdas).collect::<Vec<_>>().join("\n") + "\n")?;
        let dumped = lists.path().join("app.jsa");
        let output = Command::new(java_program())
            .args(["-Xshare:dump", "-XX:+UseSerialGC", "-Xmx512m"])
            .arg(format!("-XX:SharedClassListFile={}", list.display()))
            .arg(format!("-XX:SharedArchiveFile={}", dumped.display()))
            .args(["-cp", &self.class_path()])
            .stdin(Stdio::null())
            .output()?;
        ensure!(
            output.status.success(),
            "class-data dump failed: {}",
            String::from_utf8_lossy(&output.stdout)
        );
        fs::rename(dumped, self.archive())?;
        Ok(())
    }
}

fn root() -> Result<PathBuf> {
    if let Some(root) = std::env::var_os("HEDDLE_HADOOP_CACHE") {
        return Ok(root.into());
    }
    let cache = match std::env::var_os("XDG_CACHE_HOME") {
        Some(cache) => PathBuf::from(cache),
        None => PathBuf::from(std::env::var_os("HOME").context("HOME is not set")?).join(".cache"),
    };
    Ok(cache.join("heddle-hadoop"))
}
