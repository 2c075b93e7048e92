//! The end of an application: report, logs, unregistration, staging directory.
//!
//! | how it ends | report | unregistered | staging deleted | exit code |
//! | --- | --- | --- | --- | --- |
//! | finished, failed, stopped, refused | yes | yes | yes | the outcome's |
//! | something could not be reached, attempts are left | no | no: YARN starts the next attempt | no | 6 |
//! | a later attempt leads | no | no | no | 9 |
//! | another application has taken the checkpoint directory over | yes | yes | yes | 9 |
//!
//! The report comes before unregistering, since the ResourceManager forgets the job's containers then. No failure
//! prevents unregistering: what is unavailable (logs of a lost node, a report on an unreachable HDFS) is left out.

use std::collections::BTreeMap;
use std::time::Duration;

use heddle_am_core::Outcome;
use heddle_fail_points::fail_point;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::job_spec::Bytes;
use heddle_protocol::view::{self, ApplicationView, JobState, JobView};
use heddle_storage::{Storage, StorageUrl, StorePath, chain, connect};
use heddle_yarn::client::ApplicationFilter;
use heddle_yarn::{ApplicationReport, ApplicationState, FinalStatus, YarnClient};

use super::inputs::{ContainerInputs, SubmittedFiles};
use super::token_keeper::TokenKeeper;
use crate::cluster::yarn::YarnCluster;
use crate::event_log::EventLog;
use crate::process::prepare::is_transient;
use crate::process::start_failure::StartFailure;
use crate::report::{
    JobReport, ReportFacts, RequestedContainers, diagnostics, logs, paths, tracking,
};
use crate::wall_clock::wall_ms;

/// For the logs of all containers that failed.
const LOGS_LIMIT: Duration = Duration::from_secs(10);
/// For the report, and again for the staging directory: longer than a NameNode's restart would keep a finished job
/// in the queue for nothing.
const STORE_LIMIT: Duration = Duration::from_secs(20);

/// For the list of the queue's applications.
const QUEUE_LIMIT: Duration = Duration::from_secs(3);
/// Most applications of the queue that are listed.
const LISTED_MAX: usize = 5;

/// Whether this attempt is superseded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fenced {
    /// It is not.
    Not,
    /// A later attempt of this application, which unregisters it.
    ByAttempt,
    /// Another application works in the checkpoint directory. This one is over, and another attempt of it would have
    /// nothing to do.
    ByAnother,
}

/// What the end needs.
pub(super) struct Unregistration<'a> {
    inputs: &'a ContainerInputs,
    files: &'a SubmittedFiles,
    cluster: YarnCluster,
    pub(super) application: ApplicationView,
    pub(super) events: EventLog,
    /// Cancelled when the application has ended, and kept for a next attempt.
    pub(super) tokens: Option<TokenKeeper>,
}

impl<'a> Unregistration<'a> {
    pub(super) fn new(
        inputs: &'a ContainerInputs,
        files: &'a SubmittedFiles,
        cluster: YarnCluster,
        queue: String,
        events: EventLog,
    ) -> Self {
        let application = ApplicationView {
            id: files.yarn.application.clone(),
            user: files.yarn.user.clone(),
            queue,
        };
        Self { inputs, files, cluster, application, events, tokens: None }
    }

    /// Ends an application whose job did not begin.
    pub(super) async fn refused(&self, refusal: StartFailure) -> ExitCode {
        refusal.print();
        let outcome = refusal.outcome();
        let fenced = if refusal.is_fenced { Fenced::ByAttempt } else { Fenced::Not };
        if fenced == Fenced::Not {
            let ended = view::JobEvent::Ended {
                state: outcome.state,
                exit_code: outcome.exit_code,
                message: outcome.message.clone(),
                model: None,
                view: Box::new(self.view(None, &outcome)),
            };
            self.events.publish(ended, |_, _| None);
        }
        self.end(outcome, None, fenced).await
    }

    /// Ends an application whose job is over.
    pub(super) async fn ended(
        &self,
        outcome: Outcome,
        view: Option<JobView>,
        fenced: Fenced,
    ) -> ExitCode {
        if outcome.exit_code != ExitCode::Ok {
            eprintln!("heddle: {}", outcome.message);
        }
        self.end(outcome, view, fenced).await
    }

    async fn end(&self, outcome: Outcome, view: Option<JobView>, fenced: Fenced) -> ExitCode {
        if fenced == Fenced::ByAttempt {
            tracing::warn!(outcome.message, "attempt_superseded");
            return outcome.exit_code;
        }
        let attempt = self.inputs.attempt().0;
        if is_transient(outcome.state, outcome.exit_code) && attempt < self.files.yarn.max_attempts
        {
            tracing::warn!(attempt, outcome.message, "job_left_to_next_attempt");
            return outcome.exit_code;
        }
        let mut outcome = outcome;
        if matches!(outcome.exit_code, ExitCode::Refused | ExitCode::Busy) {
            outcome.message.push_str(&self.queue_usage().await);
        }
        let view = self.view(view, &outcome);
        let facts = ReportFacts {
            ended_ms: wall_ms(),
            checkpoint_dir: self.files.spec.checkpoint.dir.url(),
            requested: self.requested(),
            events: self.events.recent(),
        };
        let report = JobReport::new(&view, &outcome, facts);
        let (report, url, tracking) = self.report(report).await;
        let status = match outcome.state {
            JobState::Finished => FinalStatus::Succeeded,
            JobState::Stopped => FinalStatus::Killed,
            _ => FinalStatus::Failed,
        };
        fail_point!("before-unregister", attempt = self.inputs.attempt());
        let finished = self.cluster.finish(status, diagnostics(&report, &url), tracking).await;
        match finished {
            Ok(()) => {
                tracing::info!(?status, "application_unregistered");
                fail_point!("after-unregister", attempt = self.inputs.attempt());
                self.clear().await;
                if let Some(tokens) = &self.tokens {
                    tokens.cancel().await;
                }
            }
            // The next attempt finds the outcome in the journal.
            Err(error) => tracing::warn!(error = chain(&error), "application_not_unregistered"),
        }
        outcome.exit_code
    }

    /// Lines for a job that got too few containers: the largest applications of its queue. Empty when there are none, or the
    /// ResourceManager does not answer.
    async fn queue_usage(&self) -> String {
        let queue = &self.application.queue;
        let client = YarnClient::new(&self.inputs.cluster);
        let filter = ApplicationFilter {
            states: vec![ApplicationState::Running],
            // ResourceManagers differ in whether they compare paths or names.
            queues: vec![queue.clone(), queue.rsplit('.').next().unwrap_or_default().to_owned()],
            ..ApplicationFilter::default()
        };
        let found = tokio::time::timeout(QUEUE_LIMIT, client.applications(&filter)).await;
        match found {
            Ok(Ok(mut found)) => {
                found.retain(|one| one.id.to_string() != self.application.id);
                largest_applications(queue, found)
            }
            Ok(Err(error)) => {
                tracing::info!(error = chain(&error), "queue_usage_unknown");
                String::new()
            }
            Err(_) => String::new(),
        }
    }

    fn view(&self, view: Option<JobView>, outcome: &Outcome) -> JobView {
        JobView {
            application: Some(self.application.clone()),
            ..view.unwrap_or_else(|| self.files.empty_view(self.inputs.attempt(), outcome))
        }
    }

    /// Writes the report and keeps the logs of what failed; returns the report that counts, where it is and where a
    /// browser finds it.
    async fn report(&self, report: JobReport) -> (JobReport, String, String) {
        // YARN shows this directory as the container's logs, and a browser shows those as text.
        let mut page = None;
        if let Some(dir) = self.inputs.environment.log_dirs.first() {
            match tokio::fs::write(dir.join("report.txt"), report.to_string()).await {
                Ok(()) => {
                    let placement = self.inputs.placement();
                    let user = &self.files.yarn.user;
                    page = tracking::log_page(&self.inputs.configuration, &placement, user);
                }
                Err(error) => {
                    tracing::warn!(error = chain(&error), "report_not_written_to_logs");
                }
            }
        }
        let Some((storage, location)) = self.storage(&self.files.yarn.reports) else {
            return (report, String::new(), page.unwrap_or_default());
        };
        let user = &self.files.yarn.user;
        let kept = logs::keep(&*storage, location.path(), &report, user, LOGS_LIMIT).await;
        for one in kept.iter().filter(|one| !one.problem.is_empty()) {
            tracing::info!(slot = %one.end.slot, one.problem, "logs_not_copied");
        }
        let writing = async {
            let written = paths::write(&*storage, location.path(), &report).await?;
            // The report of an earlier attempt counts: that attempt has seen the end.
            let existing = paths::read(&*storage, &written.json).await?;
            Ok::<_, paths::WriteReportError>((written, existing))
        };
        let (text, report) = match tokio::time::timeout(STORE_LIMIT, writing).await {
            Ok(Ok((written, existing))) => {
                (location.with_path(written.text).to_string(), existing.unwrap_or(report))
            }
            Ok(Err(error)) => {
                tracing::warn!(error = chain(&error), "report_not_written");
                return (report, String::new(), page.unwrap_or_default());
            }
            Err(_) => {
                tracing::warn!(error = "the storage does not answer", "report_not_written");
                return (report, String::new(), page.unwrap_or_default());
            }
        };
        let tracking = match page {
            Some(page) => page,
            None => tracking::find(&self.inputs.configuration, &text, user).await,
        };
        tracing::info!(report = text, tracking, "report_written");
        (report, text, tracking)
    }

    /// Deletes the staging directory.
    async fn clear(&self) {
        let Some((storage, location)) = self.storage(&self.files.yarn.staging) else {
            return;
        };
        if !is_staging(location.path(), &self.files.yarn.application) {
            let staging = &self.files.yarn.staging;
            tracing::warn!(staging, error = "not a staging directory", "staging_not_deleted");
            return;
        }
        let deleting = storage.delete_dir(location.path());
        match tokio::time::timeout(STORE_LIMIT, deleting).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) if error.error().is_not_found() => {}
            Ok(Err(error)) => tracing::warn!(error = chain(&error), "staging_not_deleted"),
            Err(_) => tracing::warn!(error = "the storage does not answer", "staging_not_deleted"),
        }
    }

    fn storage(&self, url: &str) -> Option<(std::sync::Arc<dyn Storage>, StorageUrl)> {
        let location = match StorageUrl::parse(url) {
            Ok(location) => location,
            Err(error) => {
                tracing::warn!(url, error = chain(&error), "location_invalid");
                return None;
            }
        };
        match connect(&location) {
            Ok(storage) => Some((storage, location)),
            Err(error) => {
                tracing::warn!(url, error = chain(&error), "storage_not_connected");
                None
            }
        }
    }

    fn requested(&self) -> Vec<RequestedContainers> {
        let spec = &self.files.spec;
        let one = |kind: &str, containers: u32, memory: Bytes, vcores: u32| RequestedContainers {
            kind: kind.to_owned(),
            containers,
            memory_mib: spec.container_memory(memory).0.div_ceil(1 << 20),
            vcores,
            other: BTreeMap::new(),
        };
        let (pservers, trainers) = (&spec.pservers, &spec.trainers);
        let named = |(name, amount): (&String, &u64)| (name.clone(), amount.to_string());
        vec![
            one("am", 1, spec.am.memory, spec.am.vcores),
            one("pserver", pservers.slots(), pservers.memory, pservers.vcores),
            RequestedContainers {
                other: trainers.resources.iter().map(named).collect(),
                ..one("trainer", trainers.slots(), trainers.memory, trainers.vcores)
            },
        ]
    }
}

/// The largest applications of a queue, one a line.
fn largest_applications(queue: &str, mut found: Vec<ApplicationReport>) -> String {
    found.sort_by_key(|one| std::cmp::Reverse(one.usage.used.memory));
    found
        .iter()
        .take(LISTED_MAX)
        .map(|one| {
            format!(
                "\nin queue {queue}: {} of {} has {} containers with {}",
                one.id, one.user, one.usage.containers, one.usage.used
            )
        })
        .collect()
}

/// Whether a directory is the one that a submission made for this application. A recursive deletion is checked twice.
fn is_staging(path: &StorePath, application: &str) -> bool {
    path.name() == application && path.parent().is_some_and(|parent| parent.name() == "staging")
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_yarn::proto;

    #[test]
    fn largest_applications_of_the_queue_come_first() {
        let one = |number: i32, memory: i64| {
            let resources = proto::ResourceProto {
                memory: Some(memory),
                virtual_cores: Some(2),
                ..Default::default()
            };
            let usage = proto::ApplicationResourceUsageReportProto {
                num_used_containers: Some(2),
                used_resources: Some(resources),
                ..Default::default()
            };
            let message = proto::ApplicationReportProto {
                application_id: Some(proto::ApplicationIdProto {
                    id: Some(number),
                    cluster_timestamp: Some(1),
                }),
                user: Some("bob".to_owned()),
                app_resource_usage: Some(usage),
                ..Default::default()
            };
            ApplicationReport::try_from(&message).expect("it has an id")
        };
        let text =
            largest_applications("root.a", (1..9).map(|n| one(n, i64::from(n) * 1024)).collect());
        let lines: Vec<_> = text.lines().skip(1).collect();
        assert_eq!(lines.len(), LISTED_MAX);
        assert_eq!(
            lines[0],
            "in queue root.a: application_1_0008 of bob has 2 containers with 8192 MiB, 2 vcores"
        );
    }

    #[test]
    fn only_the_staging_directory_of_this_application_is_deleted() {
        let is = |path: &str| {
            let path = StorePath::parse(path).expect("absolute");
            is_staging(&path, "application_1_0001")
        };
        assert!(is("/user/alice/.heddle/staging/application_1_0001"));
        assert!(!is("/user/alice/.heddle/staging/application_1_0002"));
        assert!(!is("/user/alice/.heddle/reports/application_1_0001"));
        assert!(!is("/user/alice/.heddle/staging"));
    }
}
