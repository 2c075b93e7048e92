//! A Heddle application on a cluster, as a client sees it: its state, its events, its end.
//!
//! There are three sources, in this order: the running ApplicationMaster's events and view, the report that it left on
//! HDFS, and the ResourceManager. [`follow()`] prints the same lines from them as a local run.

mod diagnostics;
mod event_cursor;
mod failed_attempts;
mod follow;
mod logs;
mod named;
#[cfg(test)]
pub mod samples;
mod status;
mod wait_args;

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use heddle_am::report::{JobReport, paths};
use heddle_am::run_dir::RunFile;
use heddle_am::staging::STAGED_SECRET;
use heddle_protocol::control::Operation;
use heddle_protocol::environment::AmAddress;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::handshake::Secret;
use heddle_protocol::ids::RunId;
use heddle_protocol::job_spec::{self, JobSpec, Location};
use heddle_protocol::view::{EventPage, JobState, JobView};
use heddle_yarn::client::FinalApplicationStatus;
use heddle_yarn::{ApplicationId, ApplicationReport, ApplicationState, ClientError};
use tokio::sync::OnceCell;

use crate::am_client::{Am, AmKey};
use crate::cluster::{ClusterContext, client_failure, if_present, path_of, storage_failure};
use crate::failure::{CommandFailure, OrFail};
use crate::output;
use crate::waiting::{self, HDFS};

pub use follow::follow;
pub use named::NamedApplication;
pub use wait_args::{WaitArgs, duration};

/// Time limit for reading the job's secret if there is another source.
const KEY_LIMIT: Duration = Duration::from_secs(3);
/// Time limit for the job's files where a command continues without them. HDFS answers within milliseconds; a restart of
/// a NameNode takes longer than an operator waits for the end of a job.
pub const FILES_LIMIT: Duration = Duration::from_secs(10);
/// Limit for a spec or a secret; the largest specs name some thousand files.
const SMALL_BYTES_MAX: usize = 4 << 20;

/// The word for the state of an application.
#[must_use]
pub fn state_word(report: &ApplicationReport) -> &'static str {
    use FinalApplicationStatus as Final;
    match (report.state, report.final_status) {
        (Some(ApplicationState::Running), _) => "running",
        (Some(ApplicationState::Finished), Final::Succeeded) => "finished",
        (Some(ApplicationState::Killed), _) | (Some(ApplicationState::Finished), Final::Killed) => {
            "stopped"
        }
        (Some(ApplicationState::Finished | ApplicationState::Failed), _) => "failed",
        (Some(_), _) => "waiting",
        (None, _) => "unknown",
    }
}

/// The report of an application that has ended, with nothing but its names.
fn over(id: ApplicationId, user: String, name: String) -> ApplicationReport {
    let mut report = ApplicationReport::new(id);
    report.user = user;
    report.name = name;
    report.state = Some(ApplicationState::Finished);
    report.progress = 1.0;
    report
}

/// The directories of an application on HDFS.
#[derive(Clone, Debug)]
struct Dirs {
    staging: Location,
    reports: Location,
}

/// An application and its sources.
pub struct Application {
    /// Its cluster.
    pub cluster: Arc<ClusterContext>,
    /// The ResourceManager's last report.
    pub report: ApplicationReport,
    /// Its job, if it can be read.
    pub spec: Option<JobSpec>,
    /// Staging directory and directory of the report, or why they are unknown.
    dirs: Result<Dirs, CommandFailure>,
    key: OnceCell<(RunId, Secret)>,
    /// Set when HDFS did not respond within [`FILES_LIMIT`]: the limit is waited for once.
    files_are_silent: Cell<bool>,
}

impl Application {
    /// An application from a report of the ResourceManager.
    #[must_use]
    pub fn of(
        cluster: Arc<ClusterContext>,
        report: ApplicationReport,
        spec: Option<JobSpec>,
    ) -> Self {
        // The report for a user without view access names no user; such a user cannot read the files either.
        let user = match report.user.is_empty() {
            true => cluster.user.short_name(),
            false => &report.user,
        };
        let staging = cluster.staging(user, report.id);
        let dirs = staging
            .and_then(|staging| Ok(Dirs { staging, reports: cluster.reports(user, report.id)? }));
        let files_are_silent = Cell::new(false);
        Self { dirs, key: OnceCell::new(), cluster, report, spec, files_are_silent }
    }

    fn dirs(&self) -> Result<&Dirs, CommandFailure> {
        self.dirs.as_ref().map_err(Clone::clone)
    }

    /// What a command lacks if the file system of the job's files is unknown.
    fn note_missing_files(&self) {
        if let Err(failure) = &self.dirs {
            output::note(&format!(
                "{}; the job's report, kept logs and secret are not read; {}",
                failure.fact, failure.next
            ));
        }
    }

    /// Finds the application with that id, and its job.
    ///
    /// # Errors
    /// Exit code 7 if the cluster has no such application, 6 if it does not respond.
    pub async fn find(id: ApplicationId) -> Result<Self, CommandFailure> {
        let mut found = Self::known(Arc::new(ClusterContext::load()?), id).await?;
        found.spec = found.with_files(found.read_spec()).await.flatten();
        Ok(found)
    }

    /// Awaits a use of the job's files for at most [`FILES_LIMIT`]; `None` if HDFS does not respond by then, or did not before.
    /// The first time a note names what is missing.
    async fn with_files<T>(&self, used: impl Future<Output = T>) -> Option<T> {
        if self.files_are_silent.get() {
            return None;
        }
        let found = tokio::time::timeout(FILES_LIMIT, waiting::on(HDFS, used)).await.ok();
        if found.is_none() {
            self.files_are_silent.set(true);
            output::note(&format!(
                "HDFS did not respond within {} s; the job's report, kept logs and secret are not read",
                FILES_LIMIT.as_secs()
            ));
        }
        found
    }

    /// Finds the application without its job. Reads HDFS only if the ResourceManager has forgotten the application.
    ///
    /// # Errors
    /// As [`Application::find`].
    pub async fn known(
        cluster: Arc<ClusterContext>,
        id: ApplicationId,
    ) -> Result<Self, CommandFailure> {
        let report = match cluster.client.report(id).await {
            Ok(report) => report,
            Err(error) => match Self::forgotten(&cluster, id, &error).await {
                Some(report) => report,
                None => {
                    return Err(client_failure(&format!("cannot read the state of {id}"), &error));
                }
            },
        };
        let found = Self::of(cluster, report, None);
        found.note_missing_files();
        Ok(found)
    }

    /// Reads the view of one of the user's jobs without the ResourceManager, from the address that its
    /// ApplicationMaster wrote on HDFS.
    pub async fn view_past_resource_manager(
        cluster: Arc<ClusterContext>,
        id: ApplicationId,
    ) -> Option<JobView> {
        let user = cluster.user.short_name().to_owned();
        let application = Self::of(cluster, over(id, user, String::new()), None);
        let dir = application.dirs().ok()?.staging.join("am").url();
        let written = heddle_storage::read_highest(&dir, "json", SMALL_BYTES_MAX).await;
        let address: AmAddress = serde_json::from_slice(&written.ok()??).ok()?;
        let am = Am { addresses: vec![address.address], ..application.am().await };
        let (run, secret) = application.key().await.ok()?;
        am.view_with(AmKey::operator(*run, secret)).await.ok()
    }

    /// Restores the report of an ended application that the ResourceManager has forgotten, from the report on HDFS.
    async fn forgotten(
        cluster: &Arc<ClusterContext>,
        id: ApplicationId,
        error: &ClientError,
    ) -> Option<ApplicationReport> {
        let ClientError::NotFound(_) = error else {
            return None;
        };
        let user = cluster.user.short_name().to_owned();
        let known = over(id, user, String::new());
        let application = Self::of(Arc::clone(cluster), known, None);
        let left = application.last_report_soon().await.ok()??;
        let started_ms = i64::try_from(left.started_ms).unwrap_or(i64::MAX);
        let mut report = over(id, application.report.user.clone(), left.name);
        report.final_status = match left.state {
            JobState::Finished => FinalApplicationStatus::Succeeded,
            JobState::Stopped => FinalApplicationStatus::Killed,
            _ => FinalApplicationStatus::Failed,
        };
        report.diagnostics = left.message;
        report.start_time_ms = started_ms;
        Some(report)
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> ApplicationId {
        self.report.id
    }

    /// Whether the application has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.report.state.is_some_and(ApplicationState::is_final)
    }

    /// Whether the application is the user's own: the staging directories and reports of other users cannot be read.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.report.user == self.cluster.user.short_name()
    }

    /// The directory of its report.
    ///
    /// # Errors
    /// Exit code 7 if the file system of the job's files is unknown.
    pub fn reports(&self) -> Result<&Location, CommandFailure> {
        Ok(&self.dirs()?.reports)
    }

    /// Reads the ResourceManager's report again.
    ///
    /// # Errors
    /// The ResourceManager's error.
    pub async fn refresh(&mut self) -> Result<(), ClientError> {
        self.report = self.cluster.client.report(self.id()).await?;
        Ok(())
    }

    /// Its ApplicationMaster, if one has registered.
    pub async fn am(&self) -> Am {
        let id = self.id();
        let timeout = self.spec.as_ref().map(|spec| spec.checkpoint.timeout);
        Am {
            addresses: self.addresses().await,
            peer: format!("the ApplicationMaster of {id}"),
            next: format!("`heddle status {id}` shows its state"),
            checkpoint_timeout: timeout.map_or(Duration::from_secs(300), |it| it.as_duration()),
        }
    }

    /// All addresses of its host, IPv4 first: an ApplicationMaster listens on IPv4 where its node has it.
    async fn addresses(&self) -> Vec<std::net::SocketAddr> {
        let port = u16::try_from(self.report.port).unwrap_or(0);
        let host = &self.report.host;
        if port == 0 || host.is_empty() || host == "N/A" || self.is_over() {
            return Vec::new();
        }
        let found = tokio::net::lookup_host((host.as_str(), port)).await;
        let mut addresses: Vec<_> = found.map(Iterator::collect).unwrap_or_default();
        addresses.sort_by_key(std::net::SocketAddr::is_ipv6);
        addresses
    }

    /// Lets the ResourceManager kill it.
    ///
    /// # Errors
    /// The ResourceManager's error.
    pub async fn kill(&self, why: &str) -> Result<(), CommandFailure> {
        let id = self.id();
        let killed = self.cluster.client.kill(id, why).await;
        killed.or_fail_with(client_failure, format_args!("cannot kill {id}"))
    }

    /// Sends an operation to its ApplicationMaster; returns when it is done.
    ///
    /// # Errors
    /// Exit code 5 if the secret cannot be read, 6 if the ApplicationMaster does not respond, 1 if it refuses the operation.
    pub async fn operate(&self, operation: &Operation) -> Result<(), CommandFailure> {
        let (run, secret) = self.key().await?;
        self.am().await.operate(*run, secret, operation).await
    }

    /// As [`Application::operate`], but waits for the secret for at most [`FILES_LIMIT`].
    ///
    /// # Errors
    /// As [`Application::operate`]; exit code 6 if the secret is not read in time.
    pub async fn operate_soon(&self, operation: &Operation) -> Result<(), CommandFailure> {
        let Some(key) = self.with_files(self.key()).await else {
            let fact = format!("cannot read the secret of {}: HDFS does not respond", self.id());
            return Err(CommandFailure::new(ExitCode::Unreachable, fact));
        };
        let (run, secret) = key?;
        self.am().await.operate(*run, secret, operation).await
    }

    /// Checks that the job takes operations of this user, before anything else of it is read.
    ///
    /// # Errors
    /// Exit code 5 if it belongs to another one.
    pub async fn check_key(&self) -> Result<(), CommandFailure> {
        self.key().await.map(drop)
    }

    /// What an operation needs: the run and the secret.
    async fn key(&self) -> Result<&(RunId, Secret), CommandFailure> {
        self.key.get_or_try_init(|| async { Ok((self.run().await?, self.secret().await?)) }).await
    }

    async fn run(&self) -> Result<RunId, CommandFailure> {
        let place = self.dirs()?.staging.join("run.json");
        let bytes = self.cluster.read(&place, SMALL_BYTES_MAX).await?;
        let run = bytes.and_then(|bytes| serde_json::from_slice::<RunFile>(&bytes).ok());
        let missing = || {
            let fact = format!("cannot read {place}: it does not exist or belongs to another user");
            CommandFailure::new(ExitCode::Denied, fact)
        };
        Ok(run.ok_or_else(missing)?.run)
    }

    async fn secret(&self) -> Result<Secret, CommandFailure> {
        let id = self.id();
        let place = self.dirs()?.staging.join(STAGED_SECRET);
        let Some(bytes) = self.cluster.read(&place, SMALL_BYTES_MAX).await? else {
            return Err(CommandFailure::new(
                ExitCode::Denied,
                format!("cannot find the secret of {id} ({place})"),
            ));
        };
        Secret::from_hex(&String::from_utf8_lossy(&bytes)).or_fail(ExitCode::Denied, place)
    }

    async fn read_spec(&self) -> Option<JobSpec> {
        let place = self.reports().ok()?.join("spec.json");
        let bytes = self.cluster.read(&place, SMALL_BYTES_MAX).await.ok()??;
        job_spec::from_json(&bytes).ok()
    }

    /// Reads the view of the job from its ApplicationMaster.
    ///
    /// # Errors
    /// Exit code 6 if it does not respond.
    pub async fn view(&self) -> Result<JobView, CommandFailure> {
        let am = self.am().await;
        match self.key_for_reading(&am).await {
            Some((run, secret)) => am.view_with(AmKey::operator(*run, secret)).await,
            None => am.view().await,
        }
    }

    /// Reads the events of the job from number `from` on, from its ApplicationMaster.
    ///
    /// # Errors
    /// Exit code 6 if it does not respond.
    pub async fn events(&self, from: u64) -> Result<EventPage, CommandFailure> {
        let am = self.am().await;
        match self.key_for_reading(&am).await {
            Some((run, secret)) => am.events_with(AmKey::operator(*run, secret), from).await,
            None => am.events(from).await,
        }
    }

    /// The key for reading from the ApplicationMaster directly; none where the pages are read instead. The secret is on HDFS;
    /// while HDFS does not respond, the pages show the same.
    async fn key_for_reading(&self, am: &Am) -> Option<&(RunId, Secret)> {
        if am.addresses.is_empty() || !self.is_own() {
            return None;
        }
        tokio::time::timeout(KEY_LIMIT, self.key()).await.ok()?.ok()
    }

    /// The report of the latest attempt that wrote one.
    ///
    /// # Errors
    /// The file system does not respond, or the report belongs to another user.
    pub async fn last_report(&self) -> Result<Option<JobReport>, CommandFailure> {
        const FACT: &str = "cannot read the report";
        let reports = self.reports()?;
        let storage = self.cluster.storage_of(reports)?;
        let listed = waiting::on(HDFS, storage.list(&path_of(reports)?)).await;
        let Some(entries) = if_present(listed, FACT)? else {
            return Ok(None);
        };
        // report-000002.json of a later attempt sorts after report-000001.json, and report.json counts without one.
        let mut names: Vec<_> = entries
            .iter()
            .filter(|entry| entry.name().starts_with("report-") && entry.name().ends_with(".json"))
            .map(|entry| entry.path.clone())
            .collect();
        names.sort();
        names.insert(0, path_of(&reports.join("report.json"))?);
        for path in names.iter().rev() {
            let read = waiting::on(HDFS, paths::read(&*storage, path)).await;
            if let Some(report) = read.or_fail_with(storage_failure, FACT)? {
                return Ok(Some(report));
            }
        }
        Ok(None)
    }

    /// As [`Application::last_report`]; `None` with a note if HDFS does not respond within [`FILES_LIMIT`].
    ///
    /// # Errors
    /// The report belongs to another user, or HDFS refuses the read.
    pub async fn last_report_soon(&self) -> Result<Option<JobReport>, CommandFailure> {
        self.with_files(self.last_report()).await.unwrap_or(Ok(None))
    }

    /// Removes the staging directory of an application that has ended, unless HDFS does not respond within [`FILES_LIMIT`]. Its
    /// ApplicationMaster removes it, unless it was killed or never ran.
    pub async fn remove_staging(&self) {
        let Ok(dirs) = self.dirs() else {
            return;
        };
        if self.is_over() && self.is_own() {
            // Not reported: the next command on the application tries again.
            let _best_effort = self.with_files(self.cluster.remove_dir(&dirs.staging)).await;
        }
    }
}
