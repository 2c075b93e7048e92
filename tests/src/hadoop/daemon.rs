//! One daemon of a cluster: its name, its Java class, its process.

use std::fmt;
use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::cache::Jars;

/// Which daemon. Numbers start at 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Daemon {
    /// The n-th NameNode; the second exists with [`super::Options::namenodes`] = 2.
    NameNode(u8),
    /// The n-th DataNode.
    DataNode(u8),
    /// The n-th ResourceManager; the second exists with [`super::Options::resourcemanagers`] = 2.
    ResourceManager(u8),
    /// The n-th NodeManager.
    NodeManager(u8),
}

impl Daemon {
    /// The main class.
    pub(super) fn class(self) -> &'static str {
        match self {
            Self::NameNode(_) => "org.apache.hadoop.hdfs.server.namenode.NameNode",
            Self::DataNode(_) => "org.apache.hadoop.hdfs.server.datanode.DataNode",
            Self::ResourceManager(_) => {
                "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager"
            }
            Self::NodeManager(_) => "org.apache.hadoop.yarn.server.nodemanager.NodeManager",
        }
    }

    /// Java heap, MiB: enough for some dozen applications.
    fn heap_mib(self) -> u32 {
        match self {
            Self::NameNode(_) => 96,
            Self::DataNode(_) | Self::NodeManager(_) => 64,
            Self::ResourceManager(_) => 128,
        }
    }

    /// Last byte of the address: the first NameNode and the first ResourceManager share .1, the second ones .2;
    /// DataNode i and NodeManager i share .(10 + i), so that containers find data on their own node.
    pub(super) fn host_byte(self) -> u8 {
        match self {
            Self::NameNode(n) | Self::ResourceManager(n) => n,
            Self::DataNode(n) | Self::NodeManager(n) => 10 + n,
        }
    }
}

/// `nn1`, `dn1`, `rm1`, `nm1`: also the name of its directory and log.
impl fmt::Display for Daemon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NameNode(n) => write!(f, "nn{n}"),
            Self::DataNode(n) => write!(f, "dn{n}"),
            Self::ResourceManager(n) => write!(f, "rm{n}"),
            Self::NodeManager(n) => write!(f, "nm{n}"),
        }
    }
}

/// A running daemon.
pub(super) struct Running {
    child: Child,
    name: Daemon,
    /// Length of its log when it was started.
    pub(super) log_start: usize,
}

impl Running {
    /// Starts `name` of the cluster in `dir`; `net` is the cluster's network such as `127.90.0`. Output is appended
    /// to `dir/<name>.log`, the process id stands in `dir/<name>/<name>.pid`.
    pub(super) fn start(
        name: Daemon,
        dir: &Path,
        net: &str,
        jars: &Jars,
        record: Option<&Path>,
    ) -> Result<Self> {
        let own = dir.join(name.to_string());
        fs::create_dir_all(own.join("tmp"))?;
        let mut command = java(jars, dir, name.heap_mib(), record.is_none());
        if let Some(lists) = record {
            command
                .arg(format!("-XX:DumpLoadedClassList={}/{name}.classlist", lists.display()))
                .arg("-Xshare:off");
        }
        // A directory of its own comes before the common one, so its files win.
        let class_path =
            format!("{}:{}/conf-{name}:{}/conf", jars.class_path(), dir.display(), dir.display());
        command
            .arg(format!("-Dheddle.dir={}", own.display()))
            .arg(format!("-Dheddle.host={net}.{}", name.host_byte()))
            .arg(format!("-Djava.io.tmpdir={}/tmp", own.display()))
            .arg(format!("-Dhadoop.log.dir={}", own.display()))
            .arg(format!("-Dyarn.log.dir={}", own.display()))
            .arg(format!("-Dhadoop.home.dir={}", own.display()))
            .args(["-cp", &class_path, name.class()]);
        let log =
            File::options().create(true).append(true).open(dir.join(format!("{name}.log")))?;
        let log_start = usize::try_from(log.metadata()?.len())?;
        let child = command
            .current_dir(&own)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("java does not start: is a JDK 17 installed?")?;
        fs::write(own.join(format!("{name}.pid")), child.id().to_string())?;
        Ok(Self { child, name, log_start })
    }

    /// The process id.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    pub(super) fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).context("process ids fit i32")?;
        kill(Pid::from_raw(pid), signal)
            .with_context(|| format!("signal {signal} to {}", self.name))
    }

    /// Sends a signal that ends the process and waits until it has.
    pub(super) fn end(mut self, signal: Signal) -> Result<()> {
        self.signal(signal)?;
        self.child.wait()?;
        Ok(())
    }

    /// Fails when the process has ended by itself.
    pub(super) fn check(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            Some(status) => bail!("{} ended: {status}, signal {:?}", self.name, status.signal()),
            None => Ok(()),
        }
    }
}

/// `java` with the flags that all our JVMs have in common, for the cluster in `dir`. Daemons add their class path and
/// class. `archive`: use the class-data archive if there is one.
pub(super) fn java(jars: &Jars, dir: &Path, heap_mib: u32, archive: bool) -> Command {
    let mut command = Command::new(java_program());
    if let Some(home) = java_home() {
        // NodeManagers pass it on, and Java applications start by it.
        command.env("JAVA_HOME", home);
    }
    command.arg(format!("-Xmx{heap_mib}m")).arg(format!("@{}/conf/jvm.options", dir.display()));
    let archive_file = jars.archive();
    if archive && archive_file.exists() {
        // With relocation every JVM copies the archive: 50 to 80 MB each. The log is switched off because a class
        // path that differs from the dumped one is not an error, only slower.
        command.arg(format!("-XX:SharedArchiveFile={}", archive_file.display())).args([
            "-XX:+UnlockDiagnosticVMOptions",
            "-XX:ArchiveRelocationMode=0",
            "-Xshare:auto",
            "-Xlog:cds=off",
        ]);
    }
    command
        .arg(format!("-Djdk.net.hosts.file={}/hosts", dir.display()))
        .arg(format!("-Dlog4j.configuration=file:{}/conf/log4j.properties", dir.display()))
        .env("HADOOP_CONF_DIR", dir.join("client-conf"))
        // The daemons are the superuser's, whatever user the test plays.
        .env_remove("HADOOP_USER_NAME");
    command
}

/// The `java` to start.
pub(super) fn java_program() -> PathBuf {
    java_home().map_or_else(|| "java".into(), |home| home.join("bin/java"))
}

/// `JAVA_HOME`, else where the `java` of the path really is.
fn java_home() -> Option<PathBuf> {
    if let Some(home) = std::env::var_os("JAVA_HOME") {
        return Some(home.into());
    }
    let path = std::env::var_os("PATH")?;
    let java = std::env::split_paths(&path)
        .map(|folder| folder.join("java"))
        .find(|java| java.exists())?;
    Some(java.canonicalize().ok()?.parent()?.parent()?.to_owned())
}
