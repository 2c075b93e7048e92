//! Ends what belongs to a cluster, even when the test process was killed.
//!
//! The reaper is a shell that waits on a pipe whose other end only this process holds. When the pipe closes, because
//! the handle was dropped or the process died in whatever way, it runs `yarn-conf/single-node/stop.sh`, which finds
//! daemons and containers by the cluster's directory, and removes the directory. It sits in a process group of its
//! own, so an interrupt from the terminal does not reach it.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::net::Net;

/// Set to keep the directories of clusters, logs and all, after the tests.
const KEEP: &str = "HEDDLE_KEEP_CLUSTERS";

const SCRIPT: &str =
    r#"read -r word; "$1" "$2" >&2 && [ "$word" != keep ] && [ -z "$3" ] && exec rm -rf "$2""#;

/// The watchdog of one cluster.
pub(super) struct Reaper(Child);

impl Reaper {
    /// Starts it for the cluster in `dir`; it holds the network until everything has ended.
    pub(super) fn start(dir: &Path, net: &Net) -> Result<Self> {
        let keep = std::env::var(KEEP).unwrap_or_default();
        Command::new("bash")
            .args(["-c", SCRIPT, "reaper"])
            .arg(super::conf::single_node().join("stop.sh"))
            .arg(dir)
            .arg(keep)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(net.share()?)
            .spawn()
            .map(Self)
            .context("the reaper does not start: is bash installed?")
    }

    /// Ends everything now and waits until it has ended. `keep`: leave the directory, to look at.
    pub(super) fn finish(&mut self, keep: bool) -> Result<()> {
        if let Some(mut pipe) = self.0.stdin.take() {
            let _reaper_gone = pipe.write_all(if keep { b"keep\n" } else { b"\n" });
        }
        let status = self.0.wait()?;
        ensure!(
            keep || status.success() || std::env::var_os(KEEP).is_some(),
            "processes of a test cluster are left"
        );
        Ok(())
    }
}
