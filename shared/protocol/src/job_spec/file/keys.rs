//! All keys of the job file: the reference that `heddle config template` prints, and what reading goes by.
//!
//! The tables of the sections hold the keys. A key that is in none of them is unknown.

use super::super::sections::{
    AmSpec, CheckpointSpec, ControllerSpec, DataSpec, KIND, LivenessSpec, ModelSpec, NAME,
    NetworkSpec, OutputSpec, PserverSpec, RunSpec, TrainerSpec, TrainingSpec,
};
use super::super::yarn::{SubmitSpec, YarnSpec};
use super::key::{Group, Key};
use super::section::SpecSection;

/// The sections in the order of the reference.
pub const GROUPS: &[Group] = &[
    Group { name: "", doc: "", keys: &[NAME, KIND] },
    DataSpec::GROUP,
    ModelSpec::GROUP,
    TrainingSpec::GROUP,
    PserverSpec::GROUP,
    TrainerSpec::GROUP,
    CheckpointSpec::GROUP,
    OutputSpec::GROUP,
    AmSpec::GROUP,
    NetworkSpec::GROUP,
    LivenessSpec::GROUP,
    RunSpec::GROUP,
    ControllerSpec::GROUP,
    SubmitSpec::GROUP,
    YarnSpec::GROUP,
];

/// Every key, section by section.
pub fn keys() -> impl Iterator<Item = &'static Key> {
    GROUPS.iter().flat_map(|group| group.keys)
}

/// The key of that path.
#[must_use]
pub fn find(path: &str) -> Option<&'static Key> {
    keys().find(|key| key.path == path)
}

/// The key that an unknown one probably means: close by its whole path or by its last part.
#[must_use]
pub fn nearest(path: &str) -> Option<&'static str> {
    let last = |path: &'static str| path.rsplit('.').next().unwrap_or(path);
    let typed = path.rsplit('.').next().unwrap_or(path);
    let closeness = |key: &Key| {
        let whole = strsim::damerau_levenshtein(path, key.path);
        // The right name in the wrong section counts as two slips.
        let part = strsim::damerau_levenshtein(typed, last(key.path)) + 2;
        whole.min(part)
    };
    let best = keys().min_by_key(|key| closeness(key))?;
    // Beyond a third of the letters it is another word.
    (closeness(best) <= path.chars().count() / 3 + 1).then_some(best.path)
}

/// The key from which this path differs by one or two letters. Stricter than [`nearest`], for paths that may be keys of
/// another program.
#[must_use]
pub fn slip(path: &str) -> Option<&'static str> {
    let distance = |key: &&'static Key| strsim::damerau_levenshtein(path, key.path);
    let close = keys().filter(|key| (1..=2).contains(&distance(key)));
    close.min_by_key(|key| distance(key)).map(|key| key.path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_in_its_section_and_listed_once() {
        let mut seen = std::collections::BTreeSet::new();
        for group in GROUPS {
            for key in group.keys {
                let section = key.path.split_once('.').map_or("", |(section, _)| section);
                assert_eq!(section, group.name, "{}", key.path);
                assert!(seen.insert(key.path), "{}", key.path);
            }
        }
    }

    #[test]
    fn slips_lead_to_the_key_that_was_meant() {
        assert_eq!(nearest("trainers.mx"), Some("trainers.max"));
        assert_eq!(nearest("trainer.max"), Some("trainers.max"));
        assert_eq!(nearest("passes"), Some("data.passes"));
        assert_eq!(nearest("model.optimiser"), Some("model.optimizer"));
        assert_eq!(nearest("model.xyzzy-plugh"), None);
        assert_eq!(slip("yarn.quue"), Some("yarn.queue"));
        assert_eq!(slip("yarn.acl.enable"), None, "Hadoop's");
    }
}
