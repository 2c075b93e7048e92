//! Which checkpoints count: the chain of claims, each continuing one checkpoint of an earlier one.

use std::collections::BTreeMap;

use heddle_protocol::ids::{Attempt, CutId, Generation, RunId};
use heddle_protocol::manifest::Salt;
use serde::{Deserialize, Serialize};

/// Who holds a claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "owner")]
pub enum Owner {
    /// An ApplicationMaster on YARN.
    Application {
        /// YARN's id, `application_…`.
        application: String,
        /// Its attempt.
        attempt: Attempt,
    },
    /// A run on one machine.
    Local {
        /// The machine's name.
        host: String,
        /// The process.
        pid: u32,
        /// When the process started, in the kernel's ticks since boot: tells it from a later process
        /// with the same id.
        start_ticks: u64,
        /// Names the boot of the machine, since pids and ticks begin anew with each.
        boot: String,
    },
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Application { application, attempt } => {
                write!(f, "{application} attempt {attempt}")
            }
            Self::Local { host, pid, .. } => write!(f, "process {pid} on {host}"),
        }
    }
}

/// Content of `claims/g<n>`: JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimRecord {
    /// Version of this format, 1.
    pub format_version: u32,
    /// The number claimed; repeats the file's name.
    pub generation: Generation,
    /// The run.
    pub run: RunId,
    /// Who.
    pub owner: Owner,
    /// The checkpoint that it continues; none: it starts from initial values.
    pub base: Option<CutId>,
    /// Tells this writer's files from another's after a lost reply.
    pub salt: Salt,
    /// Milliseconds since 1970 by the owner's clock. For people.
    pub at_ms: u64,
}

/// The claims of a directory, as far as they decide which checkpoints count.
///
/// A claim continues one checkpoint, its base. Whatever an older generation commits beyond the base
/// of the claim that followed it was done by a process that had been given up: it is outside the
/// lineage, is never restored, and is swept later.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lineage {
    bases: BTreeMap<Generation, Option<CutId>>,
}

impl Lineage {
    /// The lineage that these claims (generation, base) make.
    pub fn new(claims: impl IntoIterator<Item = (Generation, Option<CutId>)>) -> Self {
        Self { bases: claims.into_iter().collect() }
    }

    /// The highest claim; none in a new directory.
    pub fn highest(&self) -> Option<Generation> {
        self.bases.last_key_value().map(|(generation, _)| *generation)
    }

    /// What the highest claim continues.
    pub fn base(&self) -> Option<CutId> {
        self.bases.last_key_value().and_then(|(_, base)| *base)
    }

    /// Whether a checkpoint counts for whoever follows the highest claim.
    pub fn holds(&self, cut: CutId) -> bool {
        self.generations().any(|(generation, last)| {
            cut.generation == generation && last.is_none_or(|last| cut.number <= last)
        })
    }

    /// The generations that count, newest first, each with the last cut of it that counts (none: all
    /// of them do). Every later number of a generation is beyond what its successor continued.
    pub fn generations(&self) -> impl Iterator<Item = (Generation, Option<u32>)> {
        let mut next = self.highest().map(|highest| (highest, None));
        std::iter::from_fn(move || {
            let this = next?;
            // Downwards only: a claim that names a base of its own or a later generation is a
            // forgery, and would make the chain endless.
            next = self
                .bases
                .get(&this.0)
                .copied()
                .flatten()
                .filter(|base| base.generation < this.0)
                .map(|base| (base.generation, Some(base.number)));
            Some(this)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(generation: u32, number: u32) -> CutId {
        CutId { generation: Generation(generation), number }
    }

    fn lineage(claims: &[(u32, Option<CutId>)]) -> Lineage {
        Lineage::new(claims.iter().map(|(generation, base)| (Generation(*generation), *base)))
    }

    #[test]
    fn a_new_directory_has_none() {
        assert_eq!(lineage(&[]).highest(), None);
        assert!(!lineage(&[]).holds(cut(1, 1)));
    }

    #[test]
    fn what_a_predecessor_commits_beyond_the_base_is_outside() {
        let lineage = lineage(&[(1, None), (2, Some(cut(1, 4)))]);
        assert!(lineage.holds(cut(1, 3)) && lineage.holds(cut(1, 4)));
        assert!(!lineage.holds(cut(1, 5)));
        assert!(lineage.holds(cut(2, 1)) && lineage.holds(cut(2, 99)));
        assert!(!lineage.holds(cut(3, 1)));
    }

    #[test]
    fn a_generation_that_nobody_continued_is_outside() {
        // 2 claimed and died or was given up before its checkpoints counted; 3 continued 1.
        let lineage = lineage(&[(1, None), (2, Some(cut(1, 4))), (3, Some(cut(1, 4)))]);
        assert!(lineage.holds(cut(1, 4)) && lineage.holds(cut(3, 1)));
        assert!(!lineage.holds(cut(2, 1)));
    }

    #[test]
    fn training_anew_leaves_all_before_outside() {
        let lineage = lineage(&[(1, None), (2, None)]);
        assert!(!lineage.holds(cut(1, 1)) && lineage.holds(cut(2, 1)));
    }

    #[test]
    fn a_chain_that_bites_its_tail_ends() {
        let lineage = lineage(&[(1, Some(cut(2, 1))), (2, Some(cut(1, 1))), (3, Some(cut(3, 5)))]);
        assert_eq!(lineage.generations().count(), 1);
    }
}
