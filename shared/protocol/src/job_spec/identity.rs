//! Whether two specs are the same job: the digest, and the keys that may differ when a run resumes.
//!
//! A checkpoint holds positions by name: (phase, task or lane, step, part). What those names mean
//! follows from the data, the model and the training; change one of these and the positions point
//! into another job. Counts, memory and intervals do not change it. Locations (the paths of
//! checkpoints and run directories, ports) is not a part of the job.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::file::key::ResumeRule;
use super::file::keys as key_table;
use super::job::JobSpec;
use super::warm_start;
use crate::ids::CutId;

/// The field of the JSON form with the keys of the site's defaults.
const SITE_KEYS: &str = "site-keys";
/// The field of the JSON form with the keys that the data decides.
const UNDECIDED: &str = "undecided";
/// The field of the JSON form with the limit of batches: a continued run has that of its checkpoint.
const BATCH_FEATURES: &str = "batch-features";
/// The field of the JSON form with the way in which tasks are dealt to lanes: a continued run goes on as it began.
const LANES_KEEP_TASKS: &str = "lanes-keep-tasks";

/// SHA-256 over the keys of a spec that make it the job it is. Prints as 64 hex digits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SpecDigest(pub String);

impl SpecDigest {
    /// The digest over all keys that are part of the job.
    #[must_use]
    pub fn of(spec: &JobSpec) -> Self {
        let mut sha = Sha256::new();
        for (key, value) in keys(spec) {
            if rule(&key) != ResumeRule::Freely {
                // JSON escapes line ends, so that no value can look like the next key.
                sha.update(format!("{key}={value}\n"));
            }
        }
        Self(hex::encode(sha.finalize()))
    }
}

impl fmt::Display for SpecDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The rule for a key of the JSON form, `section.key`. A key that is not in the table never changes.
fn rule(key: &str) -> ResumeRule {
    key_table::find(key).map_or(ResumeRule::Never, |key| key.resume)
}

/// A key in which two specs differ, with both values as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// `section.key`.
    pub key: String,
    /// Of the spec the checkpoint was made with.
    pub before: String,
    /// Of the spec at hand.
    pub now: String,
    /// Whether `--resume` allows it.
    pub allowed_on_resume: bool,
}

/// Every key of the job with its value as compact JSON, sorted by key: the canonical form. Keys of the site's defaults are
/// left out.
fn keys(spec: &JobSpec) -> BTreeMap<String, String> {
    let json = serde_json::to_value(spec).expect("a spec has a JSON form");
    let mut keys = BTreeMap::new();
    for (section, value) in json.as_object().into_iter().flatten() {
        match value.as_object() {
            Some(values) => {
                for (key, value) in values {
                    keys.insert(format!("{section}.{key}"), canonical(value));
                }
            }
            None => {
                keys.insert(section.clone(), canonical(value));
            }
        }
    }
    keys.remove(SITE_KEYS);
    keys.remove(UNDECIDED);
    keys.remove(BATCH_FEATURES);
    keys.remove(LANES_KEEP_TASKS);
    // A run that began with the newest checkpoint of a folder is the same job whichever is the newest by now.
    if let Some(init) = &spec.model.init {
        keys.insert("model.init".to_owned(), warm_start::folder(init).to_string());
    }
    keys.retain(|key, _| !spec.site_keys.contains(key));
    keys
}

/// Takes the value of a key over from another spec.
type TakeOver = fn(&mut JobSpec, &JobSpec);

/// The keys that the data decides.
const DECIDED_KEYS: &[(&str, TakeOver)] = &[
    ("data.passes", |spec, before| spec.data.passes = before.data.passes),
    ("model.l2", |spec, before| spec.model.l2 = before.model.l2),
    ("model.scale-labels", |spec, before| spec.model.scale_labels = before.model.scale_labels),
    ("model.standardise", |spec, before| spec.model.standardise = before.model.standardise),
    ("training.batch", |spec, before| spec.training.batch = before.training.batch),
    ("training.early-stop", |spec, before| spec.training.early_stop = before.training.early_stop),
    ("training.keep", |spec, before| spec.training.keep = before.training.keep),
];

/// Takes over what a spec leaves to defaults from the run that it continues: defaults depend on the program's version, and
/// automatic values on the data. `stated` are the fields of `model.optimizer` that the job file states.
pub fn keep_defaults(spec: &mut JobSpec, before: &JobSpec, stated: &BTreeSet<String>) {
    let undecided = std::mem::take(&mut spec.undecided);
    for (key, take_over) in DECIDED_KEYS {
        if undecided.contains(*key) {
            take_over(spec, before);
        }
    }
    spec.model.optimizer = spec.model.optimizer.with_unstated(stated, &before.model.optimizer);
}

/// Why a spec may not continue a run that has begun this many passes by its checkpoint `cut`, if so.
#[must_use]
pub fn too_few_passes(spec: &JobSpec, begun: u32, cut: CutId) -> Option<String> {
    let passes = spec.data.passes;
    (passes < begun).then(|| {
        format!(
            "data.passes must not be lower than the passes that the run in checkpoint.dir has begun, {begun} (got {passes}, checkpoint {cut})"
        )
    })
}

/// The keys that a job file leaves to the data unless it states them.
#[must_use]
pub fn decided_keys() -> BTreeSet<String> {
    DECIDED_KEYS.iter().map(|(key, _)| (*key).to_owned()).collect()
}

/// The keys in which a spec differs from the one a checkpoint was made with, sorted. Keys that may differ freely are left
/// out, and keys that one of the two has from its site's defaults.
#[must_use]
pub fn differences(spec: &JobSpec, before: &JobSpec) -> Vec<Difference> {
    let of_site = |key: &str| spec.site_keys.contains(key) || before.site_keys.contains(key);
    let (now, before) = (keys(spec), keys(before));
    let absent = "null".to_owned();
    let mut all: Vec<&String> = before.keys().chain(now.keys()).collect();
    all.sort();
    all.dedup();
    let differs = |key: &&String| before.get(*key) != now.get(*key);
    all.into_iter()
        .filter(differs)
        .filter(|key| rule(key) != ResumeRule::Freely && !of_site(key))
        .map(|key| {
            let before = before.get(key).unwrap_or(&absent).clone();
            let now = now.get(key).unwrap_or(&absent).clone();
            let allowed_on_resume = rule(key) != ResumeRule::Never;
            Difference { key: key.clone(), before, now, allowed_on_resume }
        })
        .collect()
}

/// Compact JSON with the keys of objects sorted, whatever map serde_json was built with.
fn canonical(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::Object(map) => {
            let sorted: BTreeMap<_, _> = map.iter().map(|(k, v)| (k, canonical(v))).collect();
            let fields: Vec<_> = sorted
                .iter()
                .map(|(key, value)| format!("{}:{value}", serde_json::Value::from(key.as_str())))
                .collect();
            format!("{{{}}}", fields.join(","))
        }
        serde_json::Value::Array(values) => {
            format!("[{}]", values.iter().map(canonical).collect::<Vec<_>>().join(","))
        }
        plain => plain.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use heddle_optimizer::Optimizer;

    use super::*;
    use crate::job_spec::batch_features::BatchFeatures;
    use crate::job_spec::job::sample;
    use crate::job_spec::value::{Bytes, PortRange};

    fn changed(change: impl FnOnce(&mut JobSpec)) -> (bool, Vec<(String, bool)>) {
        let before = sample();
        let mut now = sample();
        change(&mut now);
        let differences = differences(&now, &before);
        let keys = differences.into_iter().map(|d| (d.key, d.allowed_on_resume)).collect();
        (SpecDigest::of(&now) == SpecDigest::of(&before), keys)
    }

    #[test]
    fn the_same_spec_has_the_same_digest() {
        assert_eq!(changed(|_| {}), (true, vec![]));
        assert_eq!(SpecDigest::of(&sample()).0.len(), 64);
    }

    #[test]
    fn ports_and_folders_are_not_part_of_the_job() {
        let ports = PortRange { first: 7000, last: 7001 };
        assert_eq!(changed(|spec| spec.network.ports = Some(ports)), (true, vec![]));
        assert_eq!(changed(|spec| spec.run.work_dir = Some("/w".into())), (true, vec![]));
        assert_eq!(changed(|spec| spec.yarn.queue.push('x')), (true, vec![]));
    }

    #[test]
    fn counts_and_memory_may_change_on_resume() {
        let (same, keys) = changed(|spec| {
            spec.trainers.max = 4;
            spec.pservers.memory = Bytes::mib(512);
        });
        assert!(!same);
        assert_eq!(keys, [("pservers.memory".to_owned(), true), ("trainers.max".to_owned(), true)]);
    }

    #[test]
    fn keys_that_define_positions_never_change() {
        for change in [
            (|spec| spec.training.batch = 9) as fn(&mut JobSpec),
            |spec| spec.training.lanes = 3,
            |spec| spec.training.seed = 1,
            |spec| spec.pservers.shards = 8,
            |spec| spec.model.standardise = true,
            |spec| spec.data.test = spec.data.train.clone(),
        ] {
            let (same, keys) = changed(change);
            assert!(!same && keys.len() == 1 && !keys[0].1, "{keys:?}");
        }
    }

    #[test]
    fn a_resumed_run_keeps_the_defaults_it_began_with() {
        let mut before = sample();
        // As a program wrote it that knew means alone.
        let json = r#"{"kind":"ftrl","alpha":0.1,"beta":1.0,"l1":0.0,"l2":0.0}"#;
        before.model.optimizer = serde_json::from_str(json).expect("an optimizer");
        (before.training.batch, before.data.passes, before.model.standardise) = (256, 12, true);
        let mut now = sample();
        now.undecided = decided_keys();
        now.model.optimizer = Optimizer::ftrl(0.2, 1.0, 0.0, 0.0);
        let mut stated = now.clone();
        keep_defaults(&mut now, &before, &BTreeSet::new());
        assert_eq!(now.undecided, BTreeSet::new());
        assert_eq!(differences(&now, &before), []);
        assert_eq!(SpecDigest::of(&now), SpecDigest::of(&before));
        keep_defaults(&mut stated, &before, &BTreeSet::from(["alpha".to_owned()]));
        let differ = differences(&stated, &before);
        let differ: Vec<_> = differ.into_iter().map(|difference| difference.key).collect();
        assert_eq!(differ, ["model.optimizer"], "what is stated holds");
    }

    #[test]
    fn rules_of_the_run_are_not_part_of_the_job() {
        let limit = BatchFeatures::of(Bytes::mib(64));
        assert_eq!(changed(|spec| spec.batch_features = limit), (true, vec![]));
        assert_eq!(changed(|spec| spec.lanes_keep_tasks = true), (true, vec![]));
    }

    #[test]
    fn newest_checkpoint_of_a_folder_is_the_same_job() {
        let at = |text: &str| Some(text.parse().expect("a location"));
        let mut before = sample();
        before.model.init = at("/other/checkpoints/g1-c4");
        let mut now = sample();
        now.model.init = at("/other/checkpoints");
        assert_eq!(differences(&now, &before), []);
        assert_eq!(SpecDigest::of(&now), SpecDigest::of(&before));
        now.model.init = at("/another/checkpoints");
        let differ = differences(&now, &before);
        assert!(differ.len() == 1 && !differ[0].allowed_on_resume, "{differ:?}");
        assert_eq!(
            changed(|spec| spec.model.init = at("/other")).1,
            [("model.init".to_owned(), false)]
        );
    }
}
