//! Which leftovers of ended jobs are removed: a pure function of what exists, of the ResourceManager's answers and of
//! the age.
//!
//! Rule: an entry is removed only if its job has certainly ended and nothing that lives refers to it.
//!
//! | entry | its job has ended if |
//! | --- | --- |
//! | staging directory | the ResourceManager reports it; or the application was submitted to this ResourceManager, which no longer has it, and nothing in the directory changed for a day |
//! | report | the ResourceManager reports it; or it does not have the application, and there is no staging directory |
//! | uploaded data, program | no application that runs or may be on its way names it in its staging directory |
//! | run directory | the run has an outcome, or its ApplicationMaster's process does not exist |
//!
//! Rejected: age alone, since jobs run for weeks; "the ResourceManager does not have it" alone, since two clusters may
//! share a file system, and a submission writes its files before the ResourceManager has the application.

use std::collections::BTreeMap;

use heddle_yarn::ApplicationId;
use serde::Serialize;

use crate::runs::RunState;

/// An application that the ResourceManager does not have may be on its way to it, unless its files are this old.
const SUBMITTING_MAX_MS: u64 = 24 * 3600 * 1000;
/// A run without an ApplicationMaster may be starting, unless its files are this old.
const STARTING_MAX_MS: u64 = 10 * 60 * 1000;

/// What is old enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Age {
    /// Now, ms since 1970.
    pub now_ms: u64,
    /// The least age of an entry that is removed.
    pub min_ms: u64,
}

impl Age {
    /// Whether something that was last used then is old enough.
    pub fn is_reached(self, last_used_ms: u64) -> bool {
        self.is_older_than(last_used_ms, self.min_ms)
    }

    fn is_older_than(self, last_used_ms: u64, min_ms: u64) -> bool {
        self.now_ms.saturating_sub(last_used_ms) >= min_ms && last_used_ms <= self.now_ms
    }
}

/// The ResourceManager's answer about an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApplicationLiveness {
    /// It waits or runs, or is in a state that this version does not know.
    Live,
    /// It has ended then, ms since 1970.
    Ended(u64),
    /// The ResourceManager does not have it.
    Unknown,
}

/// A staging directory.
#[derive(Clone, Debug)]
pub struct StagingFound {
    /// Its application.
    pub application: ApplicationId,
    /// The newest change of anything in it, ms since 1970.
    pub modified_ms: u64,
    /// Whether its shipped configuration names the ResourceManager that was asked.
    pub of_this_cluster: bool,
    /// The texts in it that name uploaded data and the program; `None` if they are not complete.
    pub names: Option<String>,
}

/// A directory of a report.
#[derive(Clone, Copy, Debug)]
pub struct ReportFound {
    /// Its application.
    pub application: ApplicationId,
    /// Its newest change, ms since 1970.
    pub modified_ms: u64,
}

/// Uploaded data, a program, or an upload that was interrupted.
#[derive(Clone, Debug)]
pub struct SharedFound {
    /// Its name.
    pub name: String,
    /// Its newest change, ms since 1970.
    pub modified_ms: u64,
}

/// What the user has below `~/.heddle`, and what the ResourceManager reports of each application.
#[derive(Clone, Debug, Default)]
pub struct ClusterInventory {
    /// Staging directories, all of them.
    pub staging: Vec<StagingFound>,
    /// Reports.
    pub reports: Vec<ReportFound>,
    /// Uploaded data and programs.
    pub shared: Vec<SharedFound>,
    /// The user's applications, and those of the entries above. A missing one is unknown.
    pub liveness: BTreeMap<ApplicationId, ApplicationLiveness>,
}

/// Why an entry stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeptReason {
    /// It is not old enough.
    Young,
    /// Its application or run lives, or may use it.
    InUse,
    /// Its application may be about to be submitted, or its run about to start.
    Starting,
    /// It belongs to an application of another cluster, which this ResourceManager cannot know.
    OtherCluster,
    /// It can be continued.
    Unfinished,
    /// It contains the checkpoints or the model of its job.
    HoldsOutput,
}

/// Whether an entry is removed (`None`), or why it stays.
pub type RemovalVerdict = Option<KeptReason>;

/// The verdicts about staging directories, reports and shared entries, each in the order of the inventory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterVerdicts {
    /// Of the staging directories.
    pub staging: Vec<RemovalVerdict>,
    /// Of the reports.
    pub reports: Vec<RemovalVerdict>,
    /// Of uploaded data and programs.
    pub shared: Vec<RemovalVerdict>,
}

/// Decides about everything on the cluster.
pub fn of_cluster(found: &ClusterInventory, age: Age) -> ClusterVerdicts {
    let liveness = |id: &ApplicationId| {
        found.liveness.get(id).copied().unwrap_or(ApplicationLiveness::Unknown)
    };
    let staging: Vec<RemovalVerdict> =
        found.staging.iter().map(|dir| of_staging(dir, liveness(&dir.application), age)).collect();
    let report = |report: &ReportFound| {
        let at = found.staging.iter().position(|dir| dir.application == report.application);
        let liveness = liveness(&report.application);
        match (liveness, at.and_then(|at| staging[at])) {
            // The staging directory shows that the application may live.
            (ApplicationLiveness::Unknown, Some(kept)) => Some(kept),
            _ => of_application(report.modified_ms, liveness, age),
        }
    };
    let reports = found.reports.iter().map(report).collect();
    // Applications that may use uploads: by their staging directories, or living without one.
    let mut users: Vec<Option<&str>> = Vec::new();
    for (dir, verdict) in found.staging.iter().zip(&staging) {
        let may_live = match liveness(&dir.application) {
            ApplicationLiveness::Live => true,
            ApplicationLiveness::Ended(_) => false,
            ApplicationLiveness::Unknown => verdict.is_some(),
        };
        if may_live {
            users.push(dir.names.as_deref());
        }
    }
    let has_staging = |id: &ApplicationId| found.staging.iter().any(|dir| dir.application == *id);
    let is_hidden = |(id, liveness): (&ApplicationId, &ApplicationLiveness)| {
        *liveness == ApplicationLiveness::Live && !has_staging(id)
    };
    if found.liveness.iter().any(is_hidden) {
        users.push(None);
    }
    let shared = found.shared.iter().map(|entry| of_shared(entry, &users, age)).collect();
    ClusterVerdicts { staging, reports, shared }
}

fn of_staging(dir: &StagingFound, liveness: ApplicationLiveness, age: Age) -> RemovalVerdict {
    match of_application(dir.modified_ms, liveness, age) {
        None if liveness == ApplicationLiveness::Unknown && !dir.of_this_cluster => {
            Some(KeptReason::OtherCluster)
        }
        verdict => verdict,
    }
}

fn of_application(modified_ms: u64, liveness: ApplicationLiveness, age: Age) -> RemovalVerdict {
    match liveness {
        ApplicationLiveness::Live => Some(KeptReason::InUse),
        ApplicationLiveness::Ended(at) => by_age(modified_ms.max(at), age),
        ApplicationLiveness::Unknown => match age.is_older_than(modified_ms, SUBMITTING_MAX_MS) {
            true => by_age(modified_ms, age),
            false => Some(KeptReason::Starting),
        },
    }
}

/// `users`: what each application names that may live, `None` if that is not known.
fn of_shared(entry: &SharedFound, users: &[Option<&str>], age: Age) -> RemovalVerdict {
    // An interrupted upload has the hidden name `.<final name>.<random>`, which no file names.
    if entry.name.starts_with('.') && !age.is_older_than(entry.modified_ms, SUBMITTING_MAX_MS) {
        return Some(KeptReason::Starting);
    }
    let is_used = users.iter().any(|names| names.is_none_or(|names| names.contains(&entry.name)));
    match is_used {
        true => Some(KeptReason::InUse),
        false => by_age(entry.modified_ms, age),
    }
}

fn by_age(last_used_ms: u64, age: Age) -> RemovalVerdict {
    match age.is_reached(last_used_ms) {
        true => None,
        false => Some(KeptReason::Young),
    }
}

/// A run directory of this machine.
#[derive(Clone, Copy, Debug)]
pub struct RunFound {
    /// The state of its run; `None` if the directory is incomplete, so that no run can continue it.
    pub state: Option<RunState>,
    /// The newest change of anything in it, ms since 1970.
    pub modified_ms: u64,
    /// Whether it contains the checkpoints or the model of its job.
    pub holds_output: bool,
}

/// Decides about a run directory. `unfinished`: whether runs go that could be continued.
pub fn of_run(run: RunFound, unfinished: bool, age: Age) -> RemovalVerdict {
    let is_starting = || !age.is_older_than(run.modified_ms, STARTING_MAX_MS);
    match run.state {
        Some(RunState::Running) => Some(KeptReason::InUse),
        Some(RunState::Died) | None if is_starting() => Some(KeptReason::Starting),
        _ if run.holds_output => Some(KeptReason::HoldsOutput),
        Some(RunState::Failed | RunState::Stopped | RunState::Died) if !unfinished => {
            Some(KeptReason::Unfinished)
        }
        Some(RunState::Finished | RunState::Failed | RunState::Stopped | RunState::Died) | None => {
            by_age(run.modified_ms, age)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 24 * 3600 * 1000;
    const NOW: u64 = 1000 * DAY;
    const WEEK: Age = Age { now_ms: NOW, min_ms: 7 * DAY };
    const ANY: Age = Age { now_ms: NOW, min_ms: 0 };

    fn id(number: u32) -> ApplicationId {
        format!("application_1_{number:04}").parse().expect("an id")
    }

    fn staging(number: u32, days: u64) -> StagingFound {
        StagingFound {
            application: id(number),
            modified_ms: NOW - days * DAY,
            of_this_cluster: true,
            names: Some(String::new()),
        }
    }

    fn shared(name: &str, days: u64) -> SharedFound {
        SharedFound { name: name.to_owned(), modified_ms: NOW - days * DAY }
    }

    fn one(dir: StagingFound, liveness: ApplicationLiveness, age: Age) -> RemovalVerdict {
        let liveness = BTreeMap::from([(dir.application, liveness)]);
        of_cluster(&ClusterInventory { staging: vec![dir], liveness, ..Default::default() }, age)
            .staging[0]
    }

    #[test]
    fn staging_of_a_living_application_stays_at_any_age() {
        let kept = one(staging(1, 900), ApplicationLiveness::Live, ANY);
        assert_eq!(kept, Some(KeptReason::InUse));
    }

    #[test]
    fn age_counts_from_the_end_of_the_application() {
        let ended = |days: u64| ApplicationLiveness::Ended(NOW - days * DAY);
        assert_eq!(one(staging(1, 30), ended(8), WEEK), None);
        assert_eq!(one(staging(1, 30), ended(6), WEEK), Some(KeptReason::Young));
        assert_eq!(one(staging(1, 6), ended(30), WEEK), Some(KeptReason::Young));
        assert_eq!(one(staging(1, 0), ended(0), ANY), None);
    }

    #[test]
    fn clock_that_is_behind_removes_nothing() {
        let ahead = StagingFound { modified_ms: NOW + DAY, ..staging(1, 0) };
        assert_eq!(one(ahead, ApplicationLiveness::Ended(0), ANY), Some(KeptReason::Young));
    }

    #[test]
    fn unknown_application_needs_a_day_and_this_cluster() {
        let unknown = ApplicationLiveness::Unknown;
        assert_eq!(one(staging(1, 0), unknown, ANY), Some(KeptReason::Starting));
        assert_eq!(one(staging(1, 2), unknown, ANY), None);
        assert_eq!(one(staging(1, 2), unknown, WEEK), Some(KeptReason::Young));
        let elsewhere = StagingFound { of_this_cluster: false, ..staging(1, 900) };
        assert_eq!(one(elsewhere, unknown, ANY), Some(KeptReason::OtherCluster));
    }

    #[test]
    fn report_of_a_forgotten_application_follows_its_staging() {
        let report = |number| ReportFound { application: id(number), modified_ms: NOW - 9 * DAY };
        let found = ClusterInventory {
            staging: vec![
                StagingFound { of_this_cluster: false, ..staging(1, 9) },
                staging(2, 9),
                staging(3, 9),
            ],
            reports: [1, 2, 3, 4].map(report).into(),
            liveness: BTreeMap::from([(id(3), ApplicationLiveness::Live)]),
            ..Default::default()
        };
        let verdicts = of_cluster(&found, WEEK).reports;
        let other = Some(KeptReason::OtherCluster);
        assert_eq!(verdicts, [other, None, Some(KeptReason::InUse), None]);
    }

    #[test]
    fn uploads_stay_while_a_job_that_may_live_names_them() {
        let names = |text: &str| Some(text.to_owned());
        let found = ClusterInventory {
            staging: vec![
                StagingFound { names: names("…/bin/heddle-aa …/data/bb/0"), ..staging(1, 90) },
                // It has ended, and its directory is too young: it uses nothing any more.
                StagingFound { names: names("cc"), ..staging(2, 1) },
                // It is on its way.
                StagingFound { names: names("dd"), ..staging(3, 0) },
            ],
            shared: ["heddle-aa", "bb", "cc", "dd", "ee", ".ee.x"].map(|n| shared(n, 90)).into(),
            liveness: BTreeMap::from([
                (id(1), ApplicationLiveness::Live),
                (id(2), ApplicationLiveness::Ended(NOW - DAY)),
            ]),
            ..Default::default()
        };
        let used = Some(KeptReason::InUse);
        assert_eq!(of_cluster(&found, WEEK).shared, [used, used, None, used, None, None]);
    }

    #[test]
    fn uploads_stay_while_it_is_unclear_what_a_job_uses() {
        let lives = BTreeMap::from([(id(1), ApplicationLiveness::Live)]);
        let incomplete = StagingFound { names: None, ..staging(1, 90) };
        for staging in [vec![incomplete], Vec::new()] {
            let found = ClusterInventory {
                staging,
                shared: vec![shared("aa", 90)],
                liveness: lives.clone(),
                ..Default::default()
            };
            assert_eq!(of_cluster(&found, WEEK).shared, [Some(KeptReason::InUse)], "{found:?}");
        }
        let found = ClusterInventory {
            shared: vec![shared("aa", 90), shared(".aa.x", 0)],
            ..Default::default()
        };
        assert_eq!(of_cluster(&found, ANY).shared, [None, Some(KeptReason::Starting)]);
    }

    #[test]
    fn only_runs_that_cannot_go_on_are_removed() {
        let run = |state, days: u64| RunFound {
            state,
            modified_ms: NOW - days * DAY,
            holds_output: false,
        };
        let all = [RunState::Finished, RunState::Failed, RunState::Stopped, RunState::Died];
        let verdicts = |unfinished| all.map(|state| of_run(run(Some(state), 9), unfinished, WEEK));
        let unfinished = Some(KeptReason::Unfinished);
        assert_eq!(verdicts(false), [None, unfinished, unfinished, unfinished]);
        assert_eq!(verdicts(true), [None; 4]);
        for state in all {
            let young = of_run(run(Some(state), 6), true, WEEK);
            assert_eq!(young, Some(KeptReason::Young));
        }
        assert_eq!(of_run(run(Some(RunState::Running), 900), true, ANY), Some(KeptReason::InUse));
        // Before its ApplicationMaster is there, a run looks as if it had died.
        for state in [Some(RunState::Died), None] {
            assert_eq!(of_run(run(state, 0), true, ANY), Some(KeptReason::Starting));
        }
        assert_eq!(of_run(run(None, 9), false, WEEK), None);
        let holds = RunFound { holds_output: true, ..run(Some(RunState::Finished), 900) };
        assert_eq!(of_run(holds, true, ANY), Some(KeptReason::HoldsOutput));
    }
}
