//! The end: report, logs, goodbye, staging.
//!
//! | how it ends | report | unregistered | staging deleted | exit code |
//! | --- | --- | --- | --- | --- |
//! | finished, failed, stopped, refused | yes | yes | yes | the outcome's |
//! | something could not be reached, attempts are left | no | no: YARN starts the next attempt | no | 6 |
//! | another attempt leads | no | no | no | 9 |
//!
//! The report comes before the goodbye, since the ResourceManager forgets the job's containers with it. Nothing
//! on the way stops the goodbye: what cannot be had (a dead node's logs, a report on an HDFS that is away) is left out.

use std::collections::BTreeMap;
use std::time::Duration;

use heddle_am_core::Outcome;
use heddle_protocol::spec::Bytes;
use heddle_protocol::view::{self, ApplicationView, JobState, JobView};
use heddle_storage::{Location, Storage, StorePath, chain, connect};
use heddle_yarn::FinalStatus;

use super::given::{Files, Given};
use super::{bare_view, outcome};
use crate::cluster::yarn::YarnCluster;
use crate::driver::{notice, wall_ms};
use crate::process::prepare::is_transient;
use crate::process::refusal::Refusal;
use crate::report::{Asked, Facts, Report, logs, place, tracking};

/// For the logs of all containers that failed.
const LOGS_LIMIT: Duration = Duration::from_secs(10);
/// For the report, and again for the staging directory: longer than a NameNode's restart would keep a finished job
/// in the queue for nothing.
const STORE_LIMIT: Duration = Duration::from_secs(20);

/// What the end needs.
pub(super) struct Ending<'a> {
    given: &'a Given,
    files: &'a Files,
    cluster: YarnCluster,
    pub(super) application: ApplicationView,
}

impl<'a> Ending<'a> {
    pub(super) fn new(
        given: &'a Given,
        files: &'a Files,
        cluster: YarnCluster,
        queue: String,
    ) -> Self {
        let application = ApplicationView {
            id: files.yarn.application.clone(),
            user: files.yarn.user.clone(),
            queue,
        };
        Self {
            given,
            files,
            cluster,
            application,
        }
    }

    /// Ends an application whose job did not begin.
    pub(super) async fn refused(&self, refusal: Refusal) -> u8 {
        super::said(&refusal);
        let outcome = outcome(&refusal);
        if !refusal.is_fenced {
            notice(&view::Event::Ended {
                state: outcome.state,
                exit_code: outcome.exit_code,
                message: outcome.message.clone(),
                model: None,
                view: Box::new(self.view(None, &outcome)),
            });
        }
        self.end(outcome, None, refusal.is_fenced).await
    }

    /// Ends an application whose job is over.
    pub(super) async fn ended(&self, outcome: Outcome, view: Option<JobView>) -> u8 {
        if outcome.exit_code != 0 {
            eprintln!("heddle: {}", outcome.message);
        }
        let fenced = outcome.exit_code == 9;
        self.end(outcome, view, fenced).await
    }

    async fn end(&self, outcome: Outcome, view: Option<JobView>, fenced: bool) -> u8 {
        if fenced {
            tracing::warn!(
                outcome.message,
                "another attempt leads; nothing is said in its name"
            );
            return outcome.exit_code;
        }
        let attempt = self.given.attempt().0;
        if is_transient(outcome.state, outcome.exit_code) && attempt < self.files.yarn.max_attempts
        {
            tracing::warn!(attempt, outcome.message, "left to the next attempt");
            return outcome.exit_code;
        }
        let view = self.view(view, &outcome);
        let facts = Facts {
            ended_ms: wall_ms(),
            checkpoint_dir: self.files.spec.checkpoint.dir.url(),
            asked: self.asked(),
        };
        let report = Report::new(&view, &outcome, facts);
        let (url, tracking) = self.report(&report).await;
        let status = match outcome.state {
            JobState::Finished => FinalStatus::Succeeded,
            JobState::Stopped => FinalStatus::Killed,
            _ => FinalStatus::Failed,
        };
        let said = self
            .cluster
            .finish(status, report.diagnostics(&url), tracking)
            .await;
        match said {
            Ok(()) => {
                tracing::info!(?status, "unregistered");
                self.clear().await;
            }
            // The next attempt finds the outcome in the journal.
            Err(error) => tracing::warn!(error = chain(&error), "not unregistered"),
        }
        outcome.exit_code
    }

    fn view(&self, view: Option<JobView>, outcome: &Outcome) -> JobView {
        JobView {
            application: Some(self.application.clone()),
            ..view.unwrap_or_else(|| bare_view(self.given, self.files, outcome))
        }
    }

    /// Writes the report and keeps the logs of what failed; returns where the report is and where a browser finds it.
    async fn report(&self, report: &Report) -> (String, String) {
        let nowhere = (String::new(), String::new());
        let Some((storage, location)) = self.storage(&self.files.yarn.reports) else {
            return nowhere;
        };
        let user = &self.files.yarn.user;
        let kept = logs::keep(&*storage, location.path(), report, user, LOGS_LIMIT).await;
        for one in kept.iter().filter(|one| !one.problem.is_empty()) {
            tracing::info!(slot = %one.end.slot, one.problem, "logs not kept");
        }
        let writing = place::write(&*storage, location.path(), report);
        let text = match tokio::time::timeout(STORE_LIMIT, writing).await {
            Ok(Ok(written)) => location.with_path(written.text).to_string(),
            Ok(Err(error)) => {
                tracing::warn!(error = chain(&error), "no report");
                return nowhere;
            }
            Err(_) => {
                tracing::warn!("no report: the storage does not answer");
                return nowhere;
            }
        };
        let tracking = tracking::find(&self.given.configuration, &text, user).await;
        tracing::info!(report = text, tracking, "report written");
        (text, tracking)
    }

    /// Removes the staging directory: nobody needs it any more.
    async fn clear(&self) {
        let Some((storage, location)) = self.storage(&self.files.yarn.staging) else {
            return;
        };
        if !is_staging(location.path(), &self.files.yarn.application) {
            tracing::warn!(
                staging = self.files.yarn.staging,
                "this is no staging directory, it stays"
            );
            return;
        }
        let deleting = storage.delete_dir(location.path());
        match tokio::time::timeout(STORE_LIMIT, deleting).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) if error.error().is_not_found() => {}
            Ok(Err(error)) => tracing::warn!(error = chain(&error), "the staging directory stays"),
            Err(_) => tracing::warn!("the staging directory stays: the storage does not answer"),
        }
    }

    fn storage(&self, url: &str) -> Option<(std::sync::Arc<dyn Storage>, Location)> {
        let location = match Location::parse(url) {
            Ok(location) => location,
            Err(error) => {
                tracing::warn!(url, error = chain(&error), "no place");
                return None;
            }
        };
        match connect(&location) {
            Ok(storage) => Some((storage, location)),
            Err(error) => {
                tracing::warn!(url, error = chain(&error), "no storage");
                None
            }
        }
    }

    fn asked(&self) -> Vec<Asked> {
        let spec = &self.files.spec;
        let one = |kind: &str, containers: u32, memory: Bytes, vcores: u32| Asked {
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
            one("pserver", pservers.count, pservers.memory, pservers.vcores),
            Asked {
                other: trainers.resources.iter().map(named).collect(),
                ..one("trainer", trainers.max, trainers.memory, trainers.vcores)
            },
        ]
    }
}

/// Whether a directory is the one that a submission made for this application. What is deleted with all it
/// holds is looked at twice.
fn is_staging(path: &StorePath, application: &str) -> bool {
    path.name() == application
        && path
            .parent()
            .is_some_and(|parent| parent.name() == "staging")
}

#[cfg(test)]
mod tests {
    use super::*;

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
