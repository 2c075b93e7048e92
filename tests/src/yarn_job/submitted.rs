//! A `heddle submit` under test, and the application that it handed over.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use heddle_protocol::ids::Slot;
use heddle_protocol::view::{JobEvent, JobState, JobView};
use heddle_yarn::client::ContainerReport;
use heddle_yarn::{ApplicationId, ApplicationReport, ContainerId, YarnClient};
use nix::unistd::Pid;
use tokio::runtime::Runtime;

use super::processes::{Process, processes};
use crate::hadoop::http::request_ok;
use crate::hadoop::{Cluster, wait_until};
use crate::local::LOOK_EVERY;
use crate::logs;

/// Longest wait for an application id: a copy of the program goes to HDFS before.
const SUBMIT: Duration = Duration::from_secs(120);

/// A submission whose client still watches the application; dropping it ends both.
pub struct Submitted<'c> {
    cluster: &'c Cluster,
    client: Child,
    events: Arc<Mutex<Vec<JobEvent>>>,
    stderr: Arc<Mutex<String>>,
    runtime: Runtime,
    yarn: YarnClient,
    /// The last one known, and when the ResourceManager was asked.
    address: Mutex<(Option<SocketAddr>, Option<Instant>)>,
    /// Texts of WARN and ERROR lines that the logs may have.
    expected: Vec<String>,
    /// The application's id.
    pub id: String,
}

impl<'c> Submitted<'c> {
    /// Starts `command`, a `heddle submit --json` or `heddle attach --json`, and waits for the application's id, which
    /// is `known` when it was there before.
    ///
    /// # Errors
    /// It ends without one; with its words.
    pub(super) fn start(
        cluster: &'c Cluster,
        mut command: Command,
        known: Option<&str>,
    ) -> Result<Self> {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let yarn = {
            let _within = runtime.enter();
            cluster.yarn("alice")?
        };
        let mut client =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let events = Arc::new(Mutex::new(Vec::new()));
        let stderr = Arc::new(Mutex::new(String::new()));
        let id = Arc::new(Mutex::new(known.map(str::to_owned)));
        let stdout = client.stdout.take().context("piped above")?;
        let (into, into_id) = (Arc::clone(&events), Arc::clone(&id));
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Ok(event) = serde_json::from_str::<JobEvent>(&line) {
                    lock(&into).push(event);
                } else if let Ok(said) = serde_json::from_str::<serde_json::Value>(&line)
                    && let Some(id) = said["application"].as_str()
                {
                    lock(&into_id).get_or_insert(id.to_owned());
                }
            }
        });
        let mut errors = client.stderr.take().context("piped above")?;
        let into = Arc::clone(&stderr);
        std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(read @ 1..) = errors.read(&mut chunk) {
                lock(&into).push_str(&String::from_utf8_lossy(&chunk[..read]));
            }
        });
        let mut this = Self {
            cluster,
            client,
            events,
            stderr,
            runtime,
            yarn,
            address: Mutex::default(),
            expected: Vec::new(),
            id: String::new(),
        };
        let end = Instant::now() + SUBMIT;
        loop {
            if let Some(id) = lock(&id).clone() {
                this.id = id;
                return Ok(this.expecting(logs::SMALL_NODES));
            }
            if let Some(status) = this.client.try_wait()? {
                std::thread::sleep(Duration::from_millis(100));
                bail!("the client ended with {status}: {}", this.stderr());
            }
            ensure!(Instant::now() < end, "no application: {}", this.stderr());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Accepts WARN and ERROR lines that contain one of these texts; see [`logs`].
    #[must_use]
    pub fn expecting(mut self, texts: &[&str]) -> Self {
        self.expected.extend(texts.iter().map(|&text| text.to_owned()));
        self
    }

    /// The events so far, as the client prints them.
    #[must_use]
    pub fn events(&self) -> Vec<JobEvent> {
        lock(&self.events).clone()
    }

    /// The causes of the rollbacks that the client has printed.
    #[must_use]
    pub fn rollbacks(&self) -> Vec<String> {
        let cause = |event| match event {
            JobEvent::RollbackStarted { cause, .. } => Some(cause),
            _ => None,
        };
        self.events().into_iter().filter_map(cause).collect()
    }

    /// The client's standard error so far.
    #[must_use]
    pub fn stderr(&self) -> String {
        lock(&self.stderr).clone()
    }

    /// Process id of the client.
    #[must_use]
    pub fn client_pid(&self) -> Pid {
        Pid::from_raw(self.client.id().cast_signed())
    }

    /// The ResourceManager's report.
    ///
    /// # Errors
    /// It does not answer.
    pub fn report(&self) -> Result<ApplicationReport> {
        let id: ApplicationId = self.id.parse()?;
        Ok(self.runtime.block_on(self.yarn.report(id))?)
    }

    /// The ResourceManager's report of a container.
    ///
    /// # Errors
    /// It does not respond, or has none.
    pub fn container(&self, id: ContainerId) -> Result<ContainerReport> {
        let attempt = self.report()?.attempt.context("no attempt")?;
        let all = self.runtime.block_on(self.yarn.containers(attempt))?;
        let report = all.iter().find(|report| report.id == id);
        report.cloned().with_context(|| format!("no {id} among {all:?}"))
    }

    /// Kills the application as its owner, by the ResourceManager.
    ///
    /// # Errors
    /// It refuses.
    pub fn kill(&self) -> Result<()> {
        let id: ApplicationId = self.id.parse()?;
        Ok(self.runtime.block_on(self.yarn.kill(id, "by the test"))?)
    }

    /// The address of the ApplicationMaster that leads, as it was within the last second, and the last one known while the
    /// ResourceManager is away.
    ///
    /// # Errors
    /// None has registered.
    pub fn address(&self) -> Result<SocketAddr> {
        let mut known = lock(&self.address);
        if let (Some(address), Some(asked)) = *known
            && asked.elapsed() < Duration::from_secs(1)
        {
            return Ok(address);
        }
        let report = within(&self.runtime, Duration::from_secs(2), async {
            self.yarn.report(self.id.parse().ok()?).await.ok()
        });
        known.1 = Some(Instant::now());
        if let Some(report) = report
            && let (Ok(host), Ok(port @ 1..)) =
                (report.host.parse::<IpAddr>(), u16::try_from(report.port))
        {
            known.0 = Some(SocketAddr::new(host, port));
        }
        known.0.context("no ApplicationMaster has registered")
    }

    /// What the ApplicationMaster's pages answer to GET `path`.
    ///
    /// # Errors
    /// It does not answer, or not well.
    pub fn get(&self, path: &str) -> Result<String> {
        request_ok(self.address()?, "GET", path)
    }

    /// What its pages answer to GET `path` through the proxy of YARN, by the link that YARN shows.
    ///
    /// # Errors
    /// There is no link, or the proxy responds with an error.
    pub fn proxied(&self, path: &str) -> Result<String> {
        let url = self.report()?.tracking_url;
        let parts =
            url.strip_prefix("http://").and_then(|rest| rest.trim_end_matches('/').split_once('/'));
        let (address, link) = parts.with_context(|| format!("no link: {url:?}"))?;
        request_ok(address.parse()?, "GET", &format!("/{link}{path}"))
    }

    /// The job as its ApplicationMaster sees it.
    ///
    /// # Errors
    /// None answers.
    pub fn view(&self) -> Result<JobView> {
        Ok(serde_json::from_str(&self.get("/api/v1/status")?)?)
    }

    /// Waits until the job is in a state.
    ///
    /// # Errors
    /// When it is not within `limit`, with the last state seen; when the client ends before.
    pub fn wait_for(
        &mut self,
        what: &str,
        limit: Duration,
        mut wanted: impl FnMut(&JobView) -> bool,
    ) -> Result<JobView> {
        let end = Instant::now() + limit;
        let mut last = None;
        loop {
            let failure = match self.view() {
                Ok(view) if wanted(&view) => return Ok(view),
                Ok(view) => {
                    last = Some(view);
                    None
                }
                Err(error) => Some(error),
            };
            if let Some(status) = self.client.try_wait()? {
                bail!("{what}: {} ended before ({status}): {}", self.id, self.story());
            }
            ensure!(
                Instant::now() < end,
                "{what}: not within {limit:?}; last seen {last:#?}, then {failure:?}; {}",
                self.story()
            );
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// The client's output, the ResourceManager's diagnostics, and the last output of the ApplicationMasters.
    #[must_use]
    pub fn story(&self) -> String {
        let mut text = format!("client: {}\n", self.stderr());
        if let Ok(report) = self.report() {
            text.push_str(&format!("diagnostics: {}\n", report.diagnostics));
        }
        for (container, log) in self.logs("stderr") {
            if container.ends_with("_000001") {
                let lines: Vec<&str> = log.lines().collect();
                let from = lines.len().saturating_sub(40);
                text.push_str(&format!("--- {container}\n{}\n", lines[from..].join("\n")));
            }
        }
        text
    }

    /// Log files of this name of all containers, by container id.
    #[must_use]
    pub fn logs(&self, name: &str) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        for n in 1..=4 {
            let folder = self.cluster.dir().join(format!("nm{n}/logs/{}", self.id));
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                if let Ok(bytes) = std::fs::read(entry.path().join(name)) {
                    let container = entry.file_name().to_string_lossy().into_owned();
                    found.insert(container, String::from_utf8_lossy(&bytes).into_owned());
                }
            }
        }
        found
    }

    /// Its processes that live, also stale ones beside their replacements.
    #[must_use]
    pub fn processes(&self) -> Vec<Process> {
        processes(self.cluster, &self.id)
    }

    /// The process of an attempt's ApplicationMaster.
    ///
    /// # Errors
    /// It does not live.
    pub fn am(&self, attempt: u32) -> Result<Process> {
        let all = self.processes();
        let am = all.iter().find(|process| {
            process.slot.is_none() && process.attempt().is_ok_and(|its| its == attempt)
        });
        am.cloned().with_context(|| format!("no ApplicationMaster {attempt} among {all:?}"))
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

    /// Waits until no process of the application lives, an ApplicationMaster neither.
    ///
    /// # Errors
    /// Some do after `limit`.
    pub fn wait_gone(&self, limit: Duration) -> Result<()> {
        wait_until("all processes are gone", limit, || {
            let left = self.processes();
            ensure!(left.is_empty(), "{left:?} live");
            Ok(())
        })
    }

    /// Waits for the end and returns the client's exit code, all events, and its output.
    ///
    /// # Errors
    /// When it does not end within `limit`.
    pub fn finish(&mut self, limit: Duration) -> Result<(Option<i32>, Vec<JobEvent>, String)> {
        let end = Instant::now() + limit;
        let status = loop {
            if let Some(status) = self.client.try_wait()? {
                break status;
            }
            ensure!(
                Instant::now() < end,
                "{} did not end within {limit:?}: {:#?}; {}",
                self.id,
                self.view(),
                self.story()
            );
            std::thread::sleep(Duration::from_millis(10));
        };
        // The readers end with the pipes; give them the moment that takes.
        std::thread::sleep(Duration::from_millis(100));
        Ok((status.code(), self.events(), self.stderr()))
    }

    /// Waits for an end that is good and returns the last view.
    ///
    /// # Errors
    /// It is not; with its story. A log has a WARN or ERROR line that is not [expected](Self::expecting).
    pub fn ends_well(&mut self, limit: Duration) -> Result<JobView> {
        let (code, events, _) = self.finish(limit)?;
        let ended = events.iter().rev().find_map(|event| match event {
            JobEvent::Ended { view, message, .. } => Some((view, message)),
            _ => None,
        });
        let (view, message) =
            ended.with_context(|| format!("{}: no end was reported: {}", self.id, self.story()))?;
        ensure!(
            code == Some(0) && view.state == JobState::Finished,
            "{}: {code:?}: {message}; {}",
            self.id,
            self.story()
        );
        let logs = logs::LOG_FILES.into_iter().flat_map(|name| self.logs(name));
        logs::check(logs, &self.expected)?;
        Ok((**view).clone())
    }
}

impl Drop for Submitted<'_> {
    fn drop(&mut self) {
        let _ended_already = self.client.kill();
        let _reaped = self.client.wait();
        // A test that failed leaves the cluster to the others of its file. One that is over stays as it is.
        let _best_effort = within(&self.runtime, Duration::from_secs(5), async {
            self.yarn.kill(self.id.parse().ok()?, "by the test").await.ok()
        });
    }
}

fn lock<T>(of: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a future comes to, if it does so within `limit`.
fn within<T>(
    runtime: &Runtime,
    limit: Duration,
    future: impl Future<Output = Option<T>>,
) -> Option<T> {
    runtime.block_on(async { tokio::time::timeout(limit, future).await.ok().flatten() })
}
