//! `heddle prune --yarn`: removes files of ended applications below `~/.heddle` on the cluster.
//!
//! Rule: remove only entries whose name Heddle gives, only of the calling user, only older than `--older-than`. A
//! report is removed unless the ResourceManager reports its application as running. Uploaded data and programs are
//! shared by all jobs of the user; a client cannot determine which job uses which, so they are removed only while no
//! application of the user runs or waits. Checkpoints and models are never touched.

use heddle_am::report::format;
use heddle_am::staging::HOME_DIR;
use heddle_am::wall_clock::wall_ms;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::spec::{DurationMs, Location};
use heddle_storage::{Entry, EntryKind};
use heddle_yarn::client::ApplicationFilter;
use heddle_yarn::{ApplicationId, ApplicationReport};

use crate::am_client;
use crate::cluster::{APPLICATION_TYPE, ClusterContext, client_failure, path_of, storage_failure};
use crate::failure::{CommandFailure, CommandResult};
use crate::output;
use crate::waiting::{self, HDFS};

/// The folders below `~/.heddle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Folder {
    Staging,
    Reports,
    Data,
    Bin,
}

impl Folder {
    const ALL: [Self; 4] = [Self::Staging, Self::Reports, Self::Data, Self::Bin];

    fn name(self) -> &'static str {
        match self {
            Self::Staging => "staging",
            Self::Reports => "reports",
            Self::Data => "data",
            Self::Bin => "bin",
        }
    }

    /// Whether Heddle gives such names in the folder.
    fn is_ours(self, entry: &Entry) -> bool {
        let is_hash =
            |text: &str| text.len() >= 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let (name, kind) = (entry.name(), entry.kind);
        match self {
            Self::Staging | Self::Reports => {
                kind == EntryKind::Dir && name.parse::<ApplicationId>().is_ok()
            }
            Self::Data => kind == EntryKind::Dir && is_hash(name),
            Self::Bin => {
                kind == EntryKind::File && name.strip_prefix("heddle-").is_some_and(is_hash)
            }
        }
    }
}

/// Removes entries that were last changed longer ago than `older_than`, or only lists them.
///
/// # Errors
/// Exit code 6 if the cluster does not respond, 5 if a removal is denied.
pub fn prune(older_than: DurationMs, dry_run: bool, json: bool) -> CommandResult {
    am_client::runtime()?.block_on(async {
        let cluster = ClusterContext::load()?;
        cluster.reach().await?;
        let known = applications(&cluster).await?;
        let before_ms = wall_ms().saturating_sub(older_than.0);
        let root = cluster.home()?.join(HOME_DIR);
        let (mut removed, mut bytes, mut shared) = (0u64, 0u64, 0usize);
        for folder in Folder::ALL {
            let place = root.join(folder.name());
            let entries = waiting::on(HDFS, list(&cluster, &place)).await?;
            let (old, in_use) = choose(folder, &entries, &known, before_ms);
            shared += in_use;
            for entry in old {
                let at = place.join(entry.name());
                if json {
                    output::json(&serde_json::json!({
                        "path": at.to_string(),
                        "modified_ms": entry.modified_ms,
                        "removed": !dry_run,
                    }))?;
                } else {
                    output::line(&format!("{}  {at}", format::time(entry.modified_ms)))?;
                }
                if !dry_run {
                    waiting::on(HDFS, remove(&cluster, &at, entry)).await?;
                }
                (removed, bytes) = (removed + 1, bytes.saturating_add(entry.bytes));
            }
        }
        if shared > 0 {
            eprintln!(
                "{shared} uploads and programs are kept: an application of yours runs or waits, and may use them"
            );
        }
        let size = match bytes {
            0 => String::new(),
            bytes => format!(" ({} of programs)", format::size(bytes)),
        };
        let verb = if dry_run { "would be removed" } else { "removed" };
        eprintln!("{removed} entries {verb}{size}");
        Ok(ExitCode::Ok)
    })
}

async fn applications(cluster: &ClusterContext) -> Result<Vec<ApplicationReport>, CommandFailure> {
    let filter = ApplicationFilter {
        kinds: vec![APPLICATION_TYPE.to_owned()],
        users: vec![cluster.user.short_name().to_owned()],
        ..ApplicationFilter::default()
    };
    let known = cluster.client.applications(&filter).await;
    known.map_err(|error| client_failure("applications cannot be listed", &error))
}

async fn list(cluster: &ClusterContext, place: &Location) -> Result<Vec<Entry>, CommandFailure> {
    match cluster.storage.list(&path_of(place)?).await {
        Ok(entries) => Ok(entries),
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        Err(error) => Err(storage_failure(&format!("{place} cannot be read"), &error)),
    }
}

async fn remove(
    cluster: &ClusterContext,
    at: &Location,
    entry: &Entry,
) -> Result<(), CommandFailure> {
    let path = path_of(at)?;
    let removed = match entry.kind {
        EntryKind::Dir => cluster.storage.delete_dir(&path).await,
        EntryKind::File | EntryKind::Other => cluster.storage.delete_file(&path).await,
    };
    match removed {
        Err(error) if !error.error().is_not_found() => {
            Err(storage_failure(&format!("{at} cannot be removed"), error.error()))
        }
        _ => Ok(()),
    }
}

/// A staging directory of an application unknown to the ResourceManager may belong to one that is on the way to
/// it, unless it is this old.
const SUBMITTING_MAX_MS: u64 = 24 * 3600 * 1000;

/// What may go, and how many old entries stay since a job may use them.
fn choose<'e>(
    folder: Folder,
    entries: &'e [Entry],
    known: &[ApplicationReport],
    before_ms: u64,
) -> (Vec<&'e Entry>, usize) {
    let is_over = |report: &ApplicationReport| report.state.is_some_and(|state| state.is_final());
    let runs = |name: &str| {
        let id = name.parse::<ApplicationId>().ok();
        known.iter().any(|report| Some(report.id) == id && !is_over(report))
    };
    let old: Vec<&Entry> = entries
        .iter()
        .filter(|entry| folder.is_ours(entry) && entry.modified_ms < before_ms)
        .collect();
    let is_known = |name: &str| {
        let id = name.parse::<ApplicationId>().ok();
        known.iter().any(|report| Some(report.id) == id)
    };
    match folder {
        Folder::Staging => {
            let surely_old = wall_ms().saturating_sub(SUBMITTING_MAX_MS);
            let over = old.into_iter().filter(|entry| {
                let known = is_known(entry.name());
                !runs(entry.name()) && (known || entry.modified_ms < surely_old)
            });
            (over.collect(), 0)
        }
        Folder::Reports => {
            let over = old.into_iter().filter(|entry| !runs(entry.name()));
            (over.collect(), 0)
        }
        Folder::Data | Folder::Bin if known.iter().all(is_over) => (old, 0),
        Folder::Data | Folder::Bin => (Vec::new(), old.len()),
    }
}

#[cfg(test)]
mod tests {
    use heddle_storage::StorePath;
    use heddle_yarn::proto;

    use super::*;
    use crate::application::samples::report;

    fn entry(folder: Folder, name: &str, kind: EntryKind, modified_ms: u64) -> Entry {
        let path = format!("/user/alice/.heddle/{}/{name}", folder.name());
        Entry { path: StorePath::parse(&path).expect("absolute"), kind, bytes: 1, modified_ms }
    }

    fn names<'e>(chosen: &(Vec<&'e Entry>, usize)) -> Vec<&'e str> {
        chosen.0.iter().map(|entry| entry.name()).collect()
    }

    #[test]
    fn only_old_unused_entries_of_heddle_are_chosen() {
        use proto::YarnApplicationStateProto::{Finished, Running};
        let (dir, file) = (EntryKind::Dir, EntryKind::File);
        let reports = [
            entry(Folder::Reports, "application_1_0001", dir, 5),
            entry(Folder::Reports, "application_1_0002", dir, 5),
            entry(Folder::Reports, "application_1_0003", dir, 5),
            entry(Folder::Reports, "application_1_0004", dir, 50),
            entry(Folder::Reports, "mine", dir, 5),
        ];
        let known = [report(1, Finished), report(2, Running)];
        let chosen = choose(Folder::Reports, &reports, &known, 10);
        // The ResourceManager has forgotten the third, so it has ended.
        assert_eq!(names(&chosen), ["application_1_0001", "application_1_0003"]);
        let hash = "0123456789abcdef0123456789abcdef";
        let bin = [
            entry(Folder::Bin, &format!("heddle-{hash}"), file, 5),
            entry(Folder::Bin, "heddle-mine", file, 5),
            entry(Folder::Bin, &format!("heddle-{hash}1"), file, 50),
        ];
        assert_eq!(choose(Folder::Bin, &bin, &known, 10).1, 1);
        assert!(names(&choose(Folder::Bin, &bin, &known, 10)).is_empty());
        let over = [report(1, Finished)];
        assert_eq!(names(&choose(Folder::Bin, &bin, &over, 10)), [format!("heddle-{hash}")]);
    }
}
