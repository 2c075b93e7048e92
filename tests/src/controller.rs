//! A `heddle controller` under test, with what its cluster has to have.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::hadoop::Cluster;

/// A property of a test cluster: the service user reads grants as a member of its group.
#[must_use]
pub fn group_of(service: &str) -> (String, String, String) {
    let key = "hadoop.user.group.static.mapping.overrides";
    ("core-site.xml".to_owned(), key.to_owned(), format!("dr.who=;{service}={service}"))
}

/// Makes the controller's folder at this path, as the superuser of HDFS; returns its URL.
///
/// # Errors
/// HDFS refuses.
pub fn make_folder(
    cluster: &Cluster,
    superuser: &str,
    service: &str,
    path: &str,
) -> Result<String> {
    cluster.dfs(superuser, &["-mkdir", "-p", path])?;
    cluster.dfs(superuser, &["-chown", &format!("{service}:{service}"), path])?;
    Ok(format!("hdfs://{path}"))
}

/// A `heddle controller` that runs; dropping it kills it.
pub struct Controller {
    child: Child,
    log: PathBuf,
}

impl Controller {
    /// Starts `command`, a `heddle` as the service user, as controller of this folder. Its output goes to the file `log`.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(mut command: Command, dir: &str, log: PathBuf) -> Result<Self> {
        let out = File::create(&log)?;
        command.args(["controller", "--dir", dir]).stdin(Stdio::null());
        command.stdout(out.try_clone()?).stderr(out);
        Ok(Self { child: command.spawn()?, log })
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Its output so far.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Ends it in order.
    ///
    /// # Errors
    /// It ends with another exit code than 0.
    pub fn stop(&mut self) -> Result<()> {
        kill(self.pid(), Signal::SIGTERM)?;
        let status = self.child.wait()?;
        ensure!(status.code() == Some(0), "{status}: {}", self.log());
        Ok(())
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _reaped = self.child.wait();
    }
}
