//! Hadoop's `RunJar`, started as `bin/yarn jar` starts it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};

use super::cache::Jars;
use super::daemon::java_program;

/// The class path and the main class of `yarn jar`. Needs no cluster.
#[derive(Clone, Debug)]
pub struct RunJar {
    class_path: String,
}

impl RunJar {
    /// Fetches Hadoop's jars if they are missing.
    ///
    /// # Errors
    /// Maven or a JDK is missing.
    pub fn prepare() -> Result<Self> {
        Ok(Self { class_path: Jars::prepare()?.class_path() })
    }

    /// `yarn jar JAR` with this `java`. `conf` is the configuration, which `bin/yarn` puts first on the class path;
    /// `options` are those of `HADOOP_OPTS`; `work` is where the jar is unpacked.
    #[must_use]
    pub fn command(
        &self,
        java: &Path,
        conf: &Path,
        options: &[&str],
        work: &Path,
        jar: &Path,
    ) -> Command {
        // A test that runs in the background inherits ignored signals, which a shell script cannot trap.
        let mut command = Command::new("env");
        command
            .arg("--default-signal=HUP,INT,TERM")
            .arg(java)
            .args(["-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
            .arg(format!("-Djava.io.tmpdir={}", work.display()))
            .args(options)
            .arg("-cp")
            .arg(format!("{}:{}", conf.display(), self.class_path))
            .arg("org.apache.hadoop.util.RunJar")
            .arg(jar)
            .env("LC_ALL", "C.UTF-8")
            .env_remove("HADOOP_CONF_DIR")
            .env_remove("YARN_CONF_DIR")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }
}

/// The launcher's jar without a program, made in a folder.
///
/// # Errors
/// A JDK or Python 3 is missing.
pub fn launcher_jar(folder: &Path) -> Result<PathBuf> {
    let jar = folder.join("launcher.jar");
    if jar.exists() {
        std::fs::remove_file(&jar)?;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/launcher.sh");
    let made = Command::new(script).arg(&jar).output()?;
    ensure!(made.status.success(), "{made:?}: the launcher needs a JDK and Python 3");
    Ok(jar)
}

/// The Java programs of this machine, the one of the test clusters first.
#[must_use]
pub fn javas() -> Vec<PathBuf> {
    let first = java_program();
    let mut seen = BTreeSet::from_iter(first.canonicalize());
    let mut all = vec![first];
    for home in std::fs::read_dir("/usr/lib/jvm").into_iter().flatten().flatten() {
        let java = home.path().join("bin/java");
        if let Ok(real) = java.canonicalize()
            && seen.insert(real)
        {
            all.push(java);
        }
    }
    all
}
