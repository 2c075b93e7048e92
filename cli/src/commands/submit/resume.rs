//! The run that a job with default folders continues, and the checkpoint that training continues from.
//!
//! Default folders contain the first digits of the run's id, so the run must be found first: as on one machine the
//! newest of the same name, if it left a checkpoint, has no model and has ended.

use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::ids::CutId;
use heddle_protocol::manifest::Manifest;
use heddle_protocol::model::MODEL_FILE;
use heddle_protocol::spec::{JobSpec, Location, identity};
use heddle_storage::checkpoint::{Candidate, CheckpointDir, Depth, Health};
use heddle_storage::{Entry, EntryKind, connect};
use heddle_yarn::ApplicationState;
use heddle_yarn::client::ApplicationFilter;

use crate::cluster::{APPLICATION_TYPE, ClusterContext, client_failure, path_of, storage_failure};
use crate::commands::checkpoint_source;
use crate::failure::CommandFailure;

/// The label in the default folders of the run to continue; `None` without such a run.
///
/// # Errors
/// The file system or the ResourceManager does not respond.
pub async fn label(
    cluster: &ClusterContext,
    outputs: &Location,
    name: &str,
) -> Result<Option<String>, CommandFailure> {
    let entries = match cluster.storage()?.list(&path_of(outputs)?).await {
        Ok(entries) => entries,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => {
            return Err(storage_failure(&format!("cannot read {outputs}"), &error));
        }
    };
    let Some((entry, label)) = newest(&entries, name) else {
        return Ok(None);
    };
    let folder = outputs.join(entry.name());
    if cluster.is_file(&folder.join("model").join(MODEL_FILE)).await?
        || base(&folder.join("checkpoints").url()).await?.is_none()
        || runs(cluster, name).await?
    {
        return Ok(None);
    }
    Ok(Some(label.to_owned()))
}

/// The newest folder `<name>-<8 hexadecimal digits>`.
fn newest<'e>(entries: &'e [Entry], name: &str) -> Option<(&'e Entry, &'e str)> {
    let ours = |entry: &'e Entry| {
        let label = entry.name().strip_prefix(name)?.strip_prefix('-')?;
        let plain = label.len() == 8 && label.bytes().all(|b| b.is_ascii_hexdigit());
        (plain && entry.kind == EntryKind::Dir).then_some((entry, label))
    };
    entries.iter().filter_map(ours).max_by_key(|(entry, _)| entry.modified_ms)
}

/// Whether a job of the user with that name runs on the cluster.
async fn runs(cluster: &ClusterContext, name: &str) -> Result<bool, CommandFailure> {
    let filter = ApplicationFilter {
        states: vec![
            ApplicationState::New,
            ApplicationState::NewSaving,
            ApplicationState::Submitted,
            ApplicationState::Accepted,
            ApplicationState::Running,
        ],
        kinds: vec![APPLICATION_TYPE.to_owned()],
        users: vec![cluster.user.short_name().to_owned()],
        name: Some(name.to_owned()),
        ..ApplicationFilter::default()
    };
    let running = cluster.client.applications(&filter).await;
    let running = running.map_err(|error| client_failure("cannot list applications", &error))?;
    Ok(running.iter().any(|application| application.name == name))
}

/// The checkpoint in `dir` (a URL) that training would continue from, if any.
///
/// # Errors
/// The file system fails, or a checkpoint cannot be read.
pub async fn base(dir: &str) -> Result<Option<ResumePoint>, CommandFailure> {
    let fact = format!("checkpoint.dir = {dir}");
    let location = checkpoint_source::location(dir)?;
    let storage = connect(&location).map_err(|error| storage_failure(&fact, &error))?;
    match storage.stat(location.path()).await {
        Ok(_) => {}
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(storage_failure(&fact, &error)),
    }
    let checkpoints = CheckpointDir::existing(storage, location.path().clone());
    let listing = checkpoints.listing(Depth::Shallow).await;
    let listing = listing.map_err(|error| checkpoint_source::failure(&fact, &error))?;
    let sound = |candidate: Candidate| match candidate.health {
        Health::Good(checkpoint) if candidate.in_lineage => Some(checkpoint.manifest),
        _ => None,
    };
    let newest = listing.into_iter().filter_map(sound).max_by_key(|manifest| manifest.cut);
    Ok(newest.map(|manifest| ResumePoint::of(&manifest)))
}

/// A checkpoint that training would continue from.
#[derive(Clone, Debug)]
pub struct ResumePoint {
    /// Its name.
    pub cut: CutId,
    /// The job in its manifest; `None` for one that another version wrote and this one cannot read.
    pub before: Option<JobSpec>,
    /// The passes that the job has begun.
    passes_begun: u32,
}

impl ResumePoint {
    fn of(manifest: &Manifest) -> Self {
        let before: Option<JobSpec> = serde_json::from_value(manifest.spec.clone()).ok();
        let passes_begun = before.as_ref().map_or(0, |before| manifest.passes_begun(before));
        Self { cut: manifest.cut, before, passes_begun }
    }
}

/// Rejects a job that cannot continue from that checkpoint even with `--resume`. Its ApplicationMaster would reject it
/// too, but only after the start of an application.
///
/// # Errors
/// Exit code 7 naming the key with both values.
pub fn check_resume(base: &ResumePoint, spec: &JobSpec) -> Result<(), CommandFailure> {
    // The ApplicationMaster decides about a checkpoint of another version.
    match identity::too_few_passes(spec, base.passes_begun, base.cut) {
        None => Ok(()),
        Some(refusal) => Err(CommandFailure::new(ExitCode::Input, refusal)
            .next("raise data.passes, or pass --fresh to start over")),
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
    use heddle_storage::StorePath;

    use super::*;

    fn entry(name: &str, modified_ms: u64) -> Entry {
        Entry {
            path: StorePath::parse(&format!("/u/heddle/{name}")).unwrap(),
            kind: EntryKind::Dir,
            bytes: 0,
            modified_ms,
        }
    }

    #[test]
    fn fewer_passes_than_the_run_has_begun_are_rejected() {
        let mut spec = heddle_protocol::spec::job::sample();
        let before = Some(spec.clone());
        let base = ResumePoint { cut: CutId::default(), before, passes_begun: 5 };
        spec.data.passes = 5;
        check_resume(&base, &spec).unwrap();
        spec.data.passes = 6;
        check_resume(&base, &spec).unwrap();
        spec.data.passes = 4;
        let refused = check_resume(&base, &spec).unwrap_err();
        assert_eq!(refused.exit, ExitCode::Input);
        assert!(refused.fact.contains("got 4"), "{}", refused.fact);
        assert!(refused.fact.contains('5'), "{}", refused.fact);
    }

    #[test]
    fn newest_folder_of_the_same_name_counts() {
        let entries = [
            entry("ctr-1a2b3c4d", 5),
            entry("ctr-2a2b3c4d", 7),
            entry("ctr-2-3a2b3c4d", 9),
            entry("ctr-latest", 11),
        ];
        assert_eq!(newest(&entries, "ctr").unwrap().1, "2a2b3c4d");
        assert_eq!(newest(&entries, "ctr-2").unwrap().1, "3a2b3c4d");
        assert!(newest(&entries, "c").is_none());
    }
}
