//! The run that a job with default folders continues, and the checkpoint that training continues from.
//!
//! Default folders contain the first digits of the run's id, so the run must be found first: as on one machine the
//! newest of the same name, if it left a checkpoint, has no model and has ended.

use heddle_am::continuation::check_keys;
use heddle_am::input::unchanged;
use heddle_am::run_dir::ResumeMode;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::job_spec::{JobSpec, Location};
use heddle_protocol::manifest::{InputPlan, Manifest};
use heddle_protocol::model::MODEL_FILE;
use heddle_storage::checkpoint::{Candidate, CheckpointDir, Depth, Health};
use heddle_storage::{Entry, EntryKind, connect};
use heddle_yarn::ApplicationState;
use heddle_yarn::client::ApplicationFilter;

use crate::cluster::{
    APPLICATION_TYPE, ClusterContext, client_failure, if_present, path_of, storage_failure,
};
use crate::commands::checkpoint_source;
use crate::failure::{CommandFailure, OrFail};

/// The label in the default folders of the run to continue; `None` without such a run.
///
/// # Errors
/// The file system or the ResourceManager does not respond.
pub async fn label(
    cluster: &ClusterContext,
    outputs: &Location,
    name: &str,
) -> Result<Option<String>, CommandFailure> {
    let entries = cluster.storage()?.list(&path_of(outputs)?).await;
    let entries = if_present(entries, format_args!("cannot read {outputs}"))?;
    let Some((entry, label)) = newest(entries.as_deref().unwrap_or_default(), name) else {
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
    let running = running.or_fail_with(client_failure, "cannot list applications")?;
    Ok(running.iter().any(|application| application.name == name))
}

/// The checkpoint in `dir` (a URL) that training would continue from, if any.
///
/// # Errors
/// The file system fails, or a checkpoint cannot be read.
pub async fn base(dir: &str) -> Result<Option<ResumePoint>, CommandFailure> {
    let fact = format!("checkpoint.dir = {dir}");
    let location = checkpoint_source::location(dir)?;
    let storage = connect(&location).or_fail_with(storage_failure, &fact)?;
    if if_present(storage.stat(location.path()).await, &fact)?.is_none() {
        return Ok(None);
    }
    let checkpoints = CheckpointDir::existing(storage, location.path().clone());
    let listing = checkpoints.listing(Depth::Shallow).await;
    let listing = listing.or_fail_with(checkpoint_source::failure, &fact)?;
    let sound = |candidate: Candidate| match candidate.health {
        Health::Good(checkpoint) if candidate.in_lineage => Some(checkpoint.manifest),
        _ => None,
    };
    let newest = listing.into_iter().filter_map(sound).max_by_key(|manifest| manifest.cut);
    Ok(newest.map(|manifest| ResumePoint {
        before: serde_json::from_value(manifest.spec.clone()).ok(),
        manifest,
    }))
}

/// A checkpoint that training would continue from.
#[derive(Clone, Debug)]
pub struct ResumePoint {
    /// Its manifest.
    pub manifest: Manifest,
    /// The job in it; `None` for one that another version wrote and this one cannot read.
    pub before: Option<JobSpec>,
}

/// Rejects a job that its ApplicationMaster would not let continue from that checkpoint, which would cost an application.
/// `input`: the files of its data, where these are not uploaded.
///
/// # Errors
/// Exit code 7 naming the keys with both values, or the file.
pub fn check_resume(
    base: &ResumePoint,
    earlier: ResumeMode,
    take_over: bool,
    spec: &JobSpec,
    input: Option<&InputPlan>,
) -> Result<(), CommandFailure> {
    let ResumePoint { manifest, before: Some(before) } = base else {
        // The ApplicationMaster decides about a checkpoint of another version.
        return Ok(());
    };
    let checked = check_keys(earlier, spec, manifest, before).and_then(|()| match input {
        Some(found) => unchanged(manifest.plan.clone(), found).map(drop),
        None => Ok(()),
    });
    match checked {
        // It starts over there.
        Err(_) if manifest.is_untrained() && !take_over => Ok(()),
        checked => checked.map_err(|refusal| CommandFailure::new(ExitCode::Input, refusal)),
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
    use heddle_protocol::ids::{PhaseNo, Step};
    use heddle_protocol::job_spec::{JobPhase, SpecDigest, job_phase};
    use heddle_protocol::manifest::Work;
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
    fn what_the_application_master_would_refuse_is_refused_before() {
        let mut spec = heddle_protocol::job_spec::job::sample();
        spec.data.passes = 3;
        let json = include_bytes!("../../../../shared/protocol/testdata/manifest-v2.json");
        let mut manifest = Manifest::from_json(json).unwrap();
        manifest.spec = serde_json::to_value(&spec).unwrap();
        manifest.spec_digest = SpecDigest::of(&spec).0;
        manifest.phase = (0..)
            .map(PhaseNo)
            .find(|phase| job_phase(&spec, *phase) == Some(JobPhase::training(1)))
            .unwrap();
        manifest.work = Work::Lanes { step: Step(3) };
        let base = ResumePoint { manifest, before: Some(spec.clone()) };
        let check = |base: &ResumePoint, mode, change: fn(&mut JobSpec)| {
            let mut spec = spec.clone();
            change(&mut spec);
            check_resume(base, mode, false, &spec, Some(&base.manifest.plan))
                .map_err(|refused| (refused.exit, refused.fact))
        };
        let (same, resume) = (ResumeMode::ContinueSame, ResumeMode::Resume);
        check(&base, same, |_| {}).unwrap();
        check(&base, resume, |spec| spec.pservers.count += 1).unwrap();
        check(&base, resume, |spec| spec.data.passes = 2).unwrap();
        type Change = fn(&mut JobSpec);
        let refusals: [(ResumeMode, Change, &str); 4] = [
            (same, |spec| spec.pservers.count += 1, "pservers.count was"),
            (same, |spec| spec.data.passes += 1, "rerun with --resume"),
            (resume, |spec| spec.training.seed += 1, "training.seed cannot be changed"),
            (resume, |spec| spec.data.passes = 1, "begun, 2 (got 1"),
        ];
        for (mode, change, words) in refusals {
            let (exit, fact) = check(&base, mode, change).unwrap_err();
            assert_eq!(exit, ExitCode::Input, "{fact}");
            assert!(fact.contains(words), "{words} in {fact}");
        }
        let refused = check_resume(&base, same, false, &spec, Some(&InputPlan::default()));
        assert!(refused.unwrap_err().fact.contains("data.test: /a was added"));
        let mut untrained = base.clone();
        untrained.manifest.phase = PhaseNo(0);
        untrained.manifest.work = Work::Lanes { step: Step(0) };
        check(&untrained, same, |spec| spec.training.seed += 1).unwrap();
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
