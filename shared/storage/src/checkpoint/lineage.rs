//! Which checkpoints count: a chain of claims, each of which continues a checkpoint of an earlier one.

use std::collections::BTreeMap;

use heddle_protocol::ids::{Attempt, CutId, Generation, RunId};
use heddle_protocol::manifest::Salt;
use serde::{Deserialize, Serialize};

/// Owner of a claim.
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
        /// Start of the process in the kernel's ticks since boot. Distinguishes it from a later process with the same id.
        start_ticks: u64,
        /// Id of the machine's boot, since process ids and ticks begin again with each.
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
    /// The owner.
    pub owner: Owner,
    /// The checkpoint that it continues; `None` for a start from initial values.
    pub base: Option<CutId>,
    /// Distinguishes the files of this writer from others after a lost response.
    pub salt: Salt,
    /// Milliseconds since 1970 by the owner's clock. Only displayed.
    pub at_ms: u64,
}

/// The claims that decide which checkpoints of a directory count.
///
/// A claim continues one checkpoint, its base. Later checkpoints of the older generation come from a stale process. They are
/// outside the lineage: they are never restored, and retention deletes them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lineage {
    bases: BTreeMap<Generation, Option<CutId>>,
}

impl Lineage {
    /// The lineage of these claims (generation, base).
    pub fn new(claims: impl IntoIterator<Item = (Generation, Option<CutId>)>) -> Self {
        Self { bases: claims.into_iter().collect() }
    }

    /// The highest claim; `None` in a new directory.
    pub fn highest(&self) -> Option<Generation> {
        self.bases.last_key_value().map(|(generation, _)| *generation)
    }

    /// The base of the highest claim.
    pub fn base(&self) -> Option<CutId> {
        self.bases.last_key_value().and_then(|(_, base)| *base)
    }

    /// Whether a checkpoint counts for the successor of the highest claim.
    pub fn holds(&self, cut: CutId) -> bool {
        self.generations().any(|(generation, last)| {
            cut.generation == generation && last.is_none_or(|last| cut.number <= last)
        })
    }

    /// The generations that count, newest first, each with its last cut that counts (`None`: all of them).
    pub fn generations(&self) -> impl Iterator<Item = (Generation, Option<u32>)> {
        let mut next = self.highest().map(|highest| (highest, None));
        std::iter::from_fn(move || {
            let this = next?;
            // Only downwards: a claim with a base of its own or a later generation is invalid, and would make the chain
            // endless.
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
    fn new_directory_has_no_claim() {
        assert_eq!(lineage(&[]).highest(), None);
        assert!(!lineage(&[]).holds(cut(1, 1)));
    }

    #[test]
    fn checkpoints_beyond_the_base_are_outside() {
        let lineage = lineage(&[(1, None), (2, Some(cut(1, 4)))]);
        assert!(lineage.holds(cut(1, 3)) && lineage.holds(cut(1, 4)));
        assert!(!lineage.holds(cut(1, 5)));
        assert!(lineage.holds(cut(2, 1)) && lineage.holds(cut(2, 99)));
        assert!(!lineage.holds(cut(3, 1)));
    }

    #[test]
    fn generation_without_successor_is_outside() {
        // Generation 2 claimed and ended before its checkpoints counted; generation 3 continued generation 1.
        let lineage = lineage(&[(1, None), (2, Some(cut(1, 4))), (3, Some(cut(1, 4)))]);
        assert!(lineage.holds(cut(1, 4)) && lineage.holds(cut(3, 1)));
        assert!(!lineage.holds(cut(2, 1)));
    }

    #[test]
    fn start_over_leaves_all_earlier_ones_outside() {
        let lineage = lineage(&[(1, None), (2, None)]);
        assert!(!lineage.holds(cut(1, 1)) && lineage.holds(cut(2, 1)));
    }

    #[test]
    fn circular_chain_ends() {
        let lineage = lineage(&[(1, Some(cut(2, 1))), (2, Some(cut(1, 1))), (3, Some(cut(3, 5)))]);
        assert_eq!(lineage.generations().count(), 1);
    }
}
