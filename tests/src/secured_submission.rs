//! A `heddle submit` on a Kerberised test cluster: the command, its application, and what the machine shows of it.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use heddle_protocol::ids::Slot;

use crate::hadoop::Cluster;
use crate::local::Ended;
use crate::yarn_job::{Process, processes};

/// Longest wait for an application id: a copy of the program goes to HDFS before.
const SUBMIT: Duration = Duration::from_secs(180);

/// A submission whose command still runs; dropping it ends the command, not the application.
pub struct SecuredSubmission<'c> {
    cluster: &'c Cluster,
    client: Child,
    output: Arc<Mutex<[String; 2]>>,
    /// The application's id.
    pub id: String,
}

impl<'c> SecuredSubmission<'c> {
    /// Starts `command`, a `heddle submit --json`, and waits for the application's id.
    pub(super) fn start(cluster: &'c Cluster, mut command: Command) -> Result<Self> {
        let mut client =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let output = Arc::new(Mutex::new([String::new(), String::new()]));
        let (out, err) = (client.stdout.take(), client.stderr.take());
        keep(&output, 0, out.context("piped above")?);
        keep(&output, 1, err.context("piped above")?);
        let mut submission = Self { cluster, client, output, id: String::new() };
        let end = Instant::now() + SUBMIT;
        loop {
            let [out, err] = submission.output();
            let of_line = |line: &str| {
                let line: serde_json::Value = serde_json::from_str(line).ok()?;
                Some(line["application"].as_str()?.to_owned())
            };
            if let Some(id) = out.lines().find_map(of_line) {
                submission.id = id;
                return Ok(submission);
            }
            if let Some(status) = submission.client.try_wait()? {
                bail!("the command ended with {status}: {err}");
            }
            ensure!(Instant::now() < end, "no application: {err}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn output(&self) -> [String; 2] {
        self.output.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for the end of the command.
    ///
    /// # Errors
    /// It does not end within `limit`.
    pub fn ended(&mut self, limit: Duration) -> Result<Ended> {
        let end = Instant::now() + limit;
        let status = loop {
            if let Some(status) = self.client.try_wait()? {
                break status;
            }
            let [out, err] = self.output();
            ensure!(Instant::now() < end, "{} did not end within {limit:?}: {out}\n{err}", self.id);
            std::thread::sleep(Duration::from_millis(50));
        };
        // The readers end with the pipes.
        std::thread::sleep(Duration::from_millis(100));
        let [stdout, stderr] = self.output();
        Ok(Ended { code: status.code(), stdout, stderr })
    }

    /// The newest process of a slot.
    ///
    /// # Errors
    /// None lives.
    pub fn process(&self, slot: Slot) -> Result<Process> {
        let all = self.processes();
        let newest = all.iter().rfind(|process| process.slot == Some(slot));
        newest.cloned().with_context(|| format!("no process of {slot} among {all:?}"))
    }

    /// The process of the newest attempt of the ApplicationMaster.
    ///
    /// # Errors
    /// None lives.
    pub fn application_master(&self) -> Result<Process> {
        let all = self.processes();
        let newest = all.iter().filter(|process| process.slot.is_none());
        let newest = newest.max_by_key(|process| process.attempt().unwrap_or(0));
        newest.cloned().with_context(|| format!("no ApplicationMaster among {all:?}"))
    }

    /// Its processes that live.
    #[must_use]
    pub fn processes(&self) -> Vec<Process> {
        processes(self.cluster, &self.id)
    }
}

impl Drop for SecuredSubmission<'_> {
    fn drop(&mut self) {
        let _ended_already = self.client.kill();
        let _reaped = self.client.wait();
    }
}

/// Appends what a pipe brings to one of the texts.
fn keep(output: &Arc<Mutex<[String; 2]>>, index: usize, pipe: impl std::io::Read + Send + 'static) {
    let output = Arc::clone(output);
    std::thread::spawn(move || {
        let mut pipe = BufReader::new(pipe);
        let mut line = String::new();
        while pipe.read_line(&mut line).is_ok_and(|read| read > 0) {
            output.lock().unwrap_or_else(PoisonError::into_inner)[index].push_str(&line);
            line.clear();
        }
    });
}
