//! What earlier applications of the user left behind on the cluster.
//!
//! An ApplicationMaster removes its staging directory when it has said goodbye, and so does a client that sees the end.
//! An application that is killed past both leaves it: some MB, and a secret that nobody needs any more. Whoever submits
//! next removes what belongs to applications that are over. Rule: the ResourceManager has to say so, for each by its
//! id; one that it does not know may be on the way to it, or be another cluster's. Rejected: an age, since
//! clocks of machines differ and jobs run for weeks.

use std::sync::Arc;
use std::time::Duration;

use heddle_am::staging::HOME_DIR;
use heddle_storage::Entry;
use heddle_yarn::client::ApplicationFilter;
use heddle_yarn::{ApplicationId, ApplicationReport};
use tokio::task::JoinSet;

use super::launch::KIND;
use crate::cluster::{ClusterContext, client_failure, path_of, storage_failure};
use crate::failure::Failure;

/// Directories that one submission removes; the next one goes on.
const AT_ONCE: usize = 16;
/// For all of it: it is nobody's business to wait for.
const LIMIT: Duration = Duration::from_secs(10);

/// Removes staging directories of applications that are over, as far as that is easily done.
pub async fn collect(cluster: Arc<ClusterContext>) {
    // What fails here fails the next submission too, which then has a reason to say so.
    let _best_effort = tokio::time::timeout(LIMIT, try_collect(&cluster)).await;
}

async fn try_collect(cluster: &Arc<ClusterContext>) -> Result<(), Failure> {
    let all = cluster.home()?.join(HOME_DIR).join("staging");
    let entries = cluster
        .storage
        .list(&path_of(&all)?)
        .await
        .map_err(|error| storage_failure(&format!("{all} cannot be read"), &error))?;
    let filter = ApplicationFilter {
        kinds: vec![KIND.to_owned()],
        users: vec![cluster.user.short_name().to_owned()],
        ..ApplicationFilter::default()
    };
    let known = cluster
        .client
        .applications(&filter)
        .await
        .map_err(|error| client_failure("applications cannot be listed", &error))?;
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

/// Applications whose staging directory nobody needs any more.
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
    use heddle_storage::{Kind, StorePath};
    use heddle_yarn::proto;

    use super::*;
    use crate::application::samples::report;

    fn entry(name: &str) -> Entry {
        let path = format!("/user/alice/.heddle/staging/{name}");
        Entry {
            path: StorePath::parse(&path).expect("absolute"),
            kind: Kind::Dir,
            bytes: 0,
            modified_ms: 0,
        }
    }

    #[test]
    fn what_belongs_to_ended_applications_goes_and_nothing_else() {
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
            "the second lives, of the fifth nothing is known"
        );
    }
}
