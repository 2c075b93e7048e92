//! `hello-yarn` under test: submitted as a user, watched through YARN's own records and the nodes' directories.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{fs, thread};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::cluster::Cluster;
use super::wait::wait_until;
use crate::local::program;

/// Longest wait for a step of an application.
const STEP: Duration = Duration::from_secs(120);

/// A submitted `hello-yarn`, whose client still watches it.
pub struct Hello<'c> {
    cluster: &'c Cluster,
    client: Child,
    errors: Option<thread::JoinHandle<String>>,
    /// Its application id.
    pub id: String,
}

impl<'c> Hello<'c> {
    /// Submits it as `alice` and waits until it is accepted. `arguments` are those of `hello-yarn submit`.
    ///
    /// # Errors
    /// The program is not built, or the client ends without an application id; the text has its words.
    pub fn submit(cluster: &'c Cluster, arguments: &[&str]) -> Result<Self> {
        let mut client = Command::new(program("hello-yarn")?)
            .arg("submit")
            .args(arguments)
            .env("HADOOP_CONF_DIR", cluster.conf_dir())
            .env("HADOOP_USER_NAME", "alice")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut stderr = client.stderr.take().context("piped above")?;
        let errors = thread::spawn(move || {
            let mut text = String::new();
            let _as_far_as_it_goes = stderr.read_to_string(&mut text);
            text
        });
        let mut id = String::new();
        BufReader::new(client.stdout.take().context("piped above")?).read_line(&mut id)?;
        let id = id.trim().to_owned();
        if id.is_empty() {
            let status = client.wait()?;
            let words = errors.join().unwrap_or_default();
            anyhow::bail!("hello-yarn ended with {status}: {words}");
        }
        Ok(Self { cluster, client, errors: Some(errors), id })
    }

    /// A command for containers that ends well when the file `gate` exists.
    pub fn until(gate: &Path) -> [String; 3] {
        let wait = format!("while [ ! -e {} ]; do sleep 0.1; done", gate.display());
        ["sh".into(), "-c".into(), wait]
    }

    /// What the ApplicationMaster of attempt `n` has written.
    pub fn am_log(&self, attempt: u32) -> String {
        let suffix = format!("_{attempt:02}_000001");
        let logs = self.containers("logs");
        let log = logs.iter().find(|(name, _)| Self::is_am(name) && name.ends_with(&suffix));
        log.and_then(|(_, path)| fs::read_to_string(path.join("stderr")).ok()).unwrap_or_default()
    }

    /// Waits until the ApplicationMaster of attempt `n` has written `text` at least `times` times.
    ///
    /// # Errors
    /// Not within a minute; with the log.
    pub fn wait_log(&self, attempt: u32, text: &str, times: usize) -> Result<()> {
        wait_until(text, STEP, || {
            let log = self.am_log(attempt);
            ensure!(log.matches(text).count() >= times, "{times} times {text:?} in:\n{log}");
            Ok(())
        })
    }

    /// Whether a container is the ApplicationMaster's: the first of its attempt. After a restart of the
    /// ResourceManager the numbers of an attempt's containers begin again at 1, with the restarts (`e02`) before
    /// them; the first attempt was there before any restart.
    pub fn is_am(name: &str) -> bool {
        name.ends_with("_000001")
            && !(name.starts_with("container_e") && name.ends_with("_01_000001"))
    }

    /// The processes of its containers that live, by container id; the ApplicationMaster's is not among them.
    pub fn workers(&self) -> BTreeMap<String, i32> {
        let mut workers = self.processes();
        workers.retain(|name, _| !Self::is_am(name));
        workers
    }

    /// The process of the ApplicationMaster of attempt `n`.
    pub fn am_process(&self, attempt: u32) -> Option<i32> {
        let suffix = format!("_{attempt:02}_000001");
        self.processes()
            .into_iter()
            .find(|(name, _)| Self::is_am(name) && name.ends_with(&suffix))
            .map(|(_, pid)| pid)
    }

    /// Waits until exactly `count` workers live and returns them.
    ///
    /// # Errors
    /// Not within a minute.
    pub fn wait_workers(&self, count: usize) -> Result<BTreeMap<String, i32>> {
        wait_until("workers", STEP, || {
            let workers = self.workers();
            let log = self.am_log(1);
            ensure!(
                workers.len() == count,
                "{} of {count} workers: {workers:?}\n{log}",
                workers.len()
            );
            Ok(workers)
        })
    }

    /// Where the containers' logs are, by container id.
    pub fn logs(&self) -> BTreeMap<String, PathBuf> {
        self.containers("logs")
    }

    /// Waits for the end and checks that it succeeded. Returns the client's output.
    ///
    /// # Errors
    /// It ended badly, or not within a minute.
    pub fn succeed(mut self) -> Result<String> {
        let status = wait_until("the end of hello-yarn", STEP, || {
            self.client.try_wait()?.with_context(|| format!("it runs; its AM:\n{}", self.am_log(1)))
        })?;
        let words = self.errors.take().and_then(|errors| errors.join().ok()).unwrap_or_default();
        ensure!(status.success(), "{status}: {words}\n{}\n{}", self.am_log(1), self.am_log(2));
        Ok(words)
    }

    fn processes(&self) -> BTreeMap<String, i32> {
        let mut processes = BTreeMap::new();
        for (name, folder) in self.containers("local/nmPrivate") {
            let file = folder.join(format!("{name}.pid"));
            let pid =
                fs::read_to_string(file).ok().and_then(|text| text.trim().parse::<i32>().ok());
            // Signal none only asks whether it is there.
            if let Some(pid) = pid.filter(|pid| kill(Pid::from_raw(*pid), None::<Signal>).is_ok()) {
                processes.insert(name, pid);
            }
        }
        processes
    }

    /// Folders of this application's containers below `nm*/<below>`, by container id.
    fn containers(&self, below: &str) -> BTreeMap<String, PathBuf> {
        let mut found = BTreeMap::new();
        for n in 1..=4 {
            let folder = self.cluster.dir().join(format!("nm{n}/{below}/{}", self.id));
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                if name.starts_with("container_") {
                    found.insert(name, entry.path());
                }
            }
        }
        found
    }
}

impl Drop for Hello<'_> {
    fn drop(&mut self) {
        let _ended_already = self.client.kill();
        let _status = self.client.wait();
    }
}
