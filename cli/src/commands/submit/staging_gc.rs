//! Garbage collection of staging directories that earlier applications of the user left on the cluster.
//!
//! An ApplicationMaster removes its staging directory after it has unregistered, and so does a client that observes the
//! end. An application that is killed without both leaves the directory: some MB, and an obsolete secret. The next
//! submission removes the directories of ended applications. Rule: the ResourceManager must report each application as
//! ended. An unknown one may be about to be submitted, or belong to another cluster. Rejected: a rule by age, since
//! clocks of machines differ and jobs run for weeks.

use std::sync::Arc;
use std::time::Duration;

use heddle_am::staging::HOME_DIR;
use heddle_storage::Entry;
use heddle_yarn::client::ApplicationFilter;
use heddle_yarn::{ApplicationId, ApplicationReport};
use tokio::task::JoinSet;

use crate::cluster::{APPLICATION_TYPE, ClusterContext, client_failure, path_of, storage_failure};
use crate::failure::{CommandFailure, OrFail};

/// Directories that one submission removes; the next submission removes more.
const AT_ONCE: usize = 16;
/// Limit for the whole collection: the user does not wait for it.
const LIMIT: Duration = Duration::from_secs(10);

/// Removes staging directories of ended applications, best effort.
pub async fn collect(cluster: Arc<ClusterContext>) {
    // A failure here is not reported: it does not affect the submitted job.
    let _best_effort = tokio::time::timeout(LIMIT, try_collect(&cluster)).await;
}

async fn try_collect(cluster: &Arc<ClusterContext>) -> Result<(), CommandFailure> {
    let all = cluster.home()?.join(HOME_DIR).join("staging");
    let entries = cluster
        .storage()?
        .list(&path_of(&all)?)
        .await
        .or_fail_with(storage_failure, format_args!("cannot read {all}"))?;
    let filter = ApplicationFilter {
        kinds: vec![APPLICATION_TYPE.to_owned()],
        users: vec![cluster.user.short_name().to_owned()],
        ..ApplicationFilter::default()
    };
    let known = cluster
        .client
        .applications(&filter)
        .await
        .or_fail_with(client_failure, "cannot list applications")?;
    let mut removing = JoinSet::new();
    for id in left(&entries, &known) {
        let cluster = Arc::clone(cluster);
        removing.spawn(async move {
            let dir = cluster.staging(cluster.user.short_name(), id)?;
            cluster.remove_dir(&dir).await
        });
    }
    while let Some(removed) = removing.join_next().await {
        if let Ok(Err(failure)) = removed {
            return Err(failure);
        }
    }
    Ok(())
}

/// Ended applications with a staging directory.
fn left(entries: &[Entry], known: &[ApplicationReport]) -> Vec<ApplicationId> {
    let is_over = |id: &ApplicationId| {
        known
            .iter()
            .any(|report| report.id == *id && report.state.is_some_and(|state| state.is_final()))
    };
    entries
        .iter()
        .filter_map(|entry| entry.name().parse().ok())
        .filter(is_over)
        .take(AT_ONCE)
        .collect()
}

#[cfg(test)]
mod tests {
    use heddle_storage::{EntryKind, StorePath};
    use heddle_yarn::proto;

    use super::*;
    use crate::application::samples::report;

    fn entry(name: &str) -> Entry {
        let path = format!("/user/alice/.heddle/staging/{name}");
        Entry {
            path: StorePath::parse(&path).expect("absolute"),
            kind: EntryKind::Dir,
            bytes: 0,
            modified_ms: 0,
        }
    }

    #[test]
    fn only_directories_of_ended_applications_are_removed() {
        use proto::YarnApplicationStateProto as State;
        let entries = [
            entry("application_1_0001"),
            entry("application_1_0002"),
            entry("application_1_0003"),
            entry("application_1_0004"),
            entry("application_1_0005"),
            entry("my-notes"),
        ];
        let known = [
            report(1, State::Finished),
            report(2, State::Running),
            report(3, State::Killed),
            report(4, State::Failed),
            report(9, State::Finished),
        ];
        let left: Vec<String> = left(&entries, &known).iter().map(ToString::to_string).collect();
        assert_eq!(
            left,
            ["application_1_0001", "application_1_0003", "application_1_0004"],
            "the second runs, the fifth is unknown"
        );
    }
}
