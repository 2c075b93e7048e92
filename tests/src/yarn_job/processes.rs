//! Processes of jobs, asked of the machine itself.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use heddle_protocol::ids::Slot;
use nix::unistd::Pid;

use crate::hadoop::{Cluster, Daemon};
use crate::local::is_alive;

/// A process in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its id.
    pub pid: Pid,
    /// Its container's id.
    pub container: String,
    /// Its slot; none: it is an ApplicationMaster.
    pub slot: Option<Slot>,
    /// Which filling of the slot; 0 for an ApplicationMaster.
    pub incarnation: u32,
    /// The NodeManager that started it.
    pub node: Daemon,
}

impl Process {
    /// Its work directory.
    ///
    /// # Errors
    /// It has ended.
    pub fn folder(&self) -> Result<PathBuf> {
        Ok(fs::read_link(format!("/proc/{}/cwd", self.pid))?)
    }

    /// Attempt of the application that its container was given to, from the container's id.
    ///
    /// # Errors
    /// The id has another form.
    pub fn attempt(&self) -> Result<u32> {
        let mut parts = self.container.rsplit('_');
        parts.next();
        parts
            .next()
            .and_then(|attempt| attempt.parse().ok())
            .with_context(|| format!("no attempt in {}", self.container))
    }
}

/// The processes of an application that live, those of `heddle` and of `trainers.command`; shells around them are not
/// among them. Those that stop halfway through a look are left out.
#[must_use]
pub fn processes(cluster: &Cluster, application: &str) -> Vec<Process> {
    let mark = format!("{}_", application.replace("application", ""));
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let folder = entry.path();
        let pid = entry.file_name().to_string_lossy().parse::<i32>();
        if let Ok(pid) = pid
            && let Some(process) = look(cluster, &folder, Pid::from_raw(pid), &mark)
        {
            found.push(process);
        }
    }
    found.sort_by_key(|process| (process.slot, process.incarnation, process.pid));
    found
}

fn look(cluster: &Cluster, folder: &Path, pid: Pid, mark: &str) -> Option<Process> {
    let environment = fs::read(folder.join("environ")).ok()?;
    let variables: BTreeMap<&str, &str> = environment
        .split(|byte| *byte == 0)
        .filter_map(|variable| std::str::from_utf8(variable).ok()?.split_once('='))
        .collect();
    let container = variables.get("CONTAINER_ID")?;
    if !container.contains(mark) {
        return None;
    }
    let host = variables.get("NM_HOST")?;
    let node = (1..=4).map(Daemon::NodeManager).find(|node| cluster.host(*node) == *host)?;
    let program = fs::read_link(folder.join("exe")).ok()?;
    let name = program.file_name()?.to_string_lossy().into_owned();
    if !name.starts_with("heddle") && !name.starts_with("counting-trainer") || !is_alive(pid) {
        return None;
    }
    let slot = variables.get("HEDDLE_SLOT").and_then(|slot| slot.parse().ok());
    let incarnation = variables.get("HEDDLE_INCARNATION");
    Some(Process {
        pid,
        container: (*container).to_owned(),
        slot,
        incarnation: incarnation.and_then(|n| n.parse().ok()).unwrap_or(0),
        node,
    })
}

/// Whether a process is stopped (SIGSTOP).
#[must_use]
pub fn is_stopped(pid: Pid) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
    })
}

/// What a container whose NodeManager was dead ended with: its wrapper script leaves the exit code in the node's
/// private folder all the same (`DefaultContainerExecutor`).
///
/// # Errors
/// It has not ended, or not left its code.
pub fn exit_code_left(cluster: &Cluster, application: &str, process: &Process) -> Result<i32> {
    let container = &process.container;
    let file = cluster.dir().join(format!(
        "{}/local/nmPrivate/{application}/{container}/{container}.pid.exitcode",
        process.node
    ));
    ensure!(!is_alive(process.pid), "{container} lives");
    let text = fs::read_to_string(&file).with_context(|| format!("{}", file.display()))?;
    text.trim().parse().with_context(|| format!("{}: {text:?}", file.display()))
}
