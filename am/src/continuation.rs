//! Whether a job may continue a checkpoint, by its keys: one rule for the ApplicationMaster and for `heddle submit`, which
//! applies it before it uploads anything. That for the data is [`crate::input::unchanged`].

use heddle_protocol::job_spec::{JobSpec, SpecDigest, identity};
use heddle_protocol::manifest::Manifest;

use crate::run_dir::ResumeMode;

/// Checks the keys of a job that continues the checkpoint `base` of the job `before`.
///
/// # Errors
/// The keys that differ, or too few passes, with the next step.
pub fn check_keys(
    earlier: ResumeMode,
    spec: &JobSpec,
    base: &Manifest,
    before: &JobSpec,
) -> Result<(), String> {
    if base.spec_digest == SpecDigest::of(spec).0 {
        return Ok(());
    }
    let differences = identity::differences(spec, before);
    let changes: Vec<_> = differences
        .iter()
        .map(|difference| {
            format!("{} was {} and is {}", difference.key, difference.before, difference.now)
        })
        .collect();
    let changes = changes.join(", ");
    if let Some(never) = differences.iter().find(|difference| !difference.allowed_on_resume) {
        return Err(format!(
            "checkpoint.dir holds a run of another spec ({changes}); {} cannot be changed when resuming: rerun with --fresh to start over, or use another checkpoint.dir",
            never.key
        ));
    }
    if !differences.is_empty() && earlier != ResumeMode::Resume {
        return Err(format!(
            "checkpoint.dir holds a run of another spec ({changes}): rerun with --resume to continue with the new values, or with --fresh to start over"
        ));
    }
    match identity::too_few_passes(spec, base.passes_begun(before), base.cut) {
        Some(refusal) => Err(format!("{refusal}; raise data.passes, or rerun with --fresh")),
        None => Ok(()),
    }
}
