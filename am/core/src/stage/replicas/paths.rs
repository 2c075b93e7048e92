//! Paths from primaries to backups that have failed: other pservers get the copies, while there are others.
//!
//! Two pservers that both reach the ApplicationMaster and the trainers may not reach each other. Neither is to blame, so neither is
//! replaced: only copies are placed elsewhere. A path counts as failed for a while and is then tried again, since nothing shows that it
//! works before something is sent on it.

use std::collections::{BTreeMap, BTreeSet};

use heddle_protocol::ids::Member;

use crate::time::MonotonicMs;

/// How long a failed path is avoided.
const AVOIDED_MS: u64 = 60_000;

/// When the path from a primary to a backup failed last.
#[derive(Clone, Debug, Default)]
pub(super) struct FailedPaths(BTreeMap<(Member, Member), MonotonicMs>);

impl FailedPaths {
    /// A primary has reported that a backup does not keep up, or cannot be filled.
    pub(super) fn fails(&mut self, primary: Member, backup: Member, now: MonotonicMs) {
        self.0.retain(|_, at| now.since(*at) < AVOIDED_MS);
        self.0.insert((primary, backup), now);
    }

    /// A backup has taken all of a copy.
    pub(super) fn works(&mut self, primary: Member, backup: Member) {
        self.0.remove(&(primary, backup));
    }

    /// The paths to be avoided now, each from a primary to a backup.
    pub(super) fn avoided(&self, now: MonotonicMs) -> BTreeSet<(Member, Member)> {
        let fresh = self.0.iter().filter(|(_, at)| now.since(**at) < AVOIDED_MS);
        fresh.map(|(path, _)| *path).collect()
    }
}

#[cfg(test)]
mod tests {
    use heddle_protocol::ids::{Incarnation, Slot};

    use super::*;

    #[test]
    fn failed_path_is_tried_again_after_a_while() {
        let pserver = |index| Member { slot: Slot::pserver(index), incarnation: Incarnation(1) };
        let mut paths = FailedPaths::default();
        paths.fails(pserver(0), pserver(1), MonotonicMs(1_000));
        let avoided = |paths: &FailedPaths, ms| !paths.avoided(MonotonicMs(ms)).is_empty();
        assert!(avoided(&paths, 1_000 + AVOIDED_MS - 1));
        assert!(!avoided(&paths, 1_000 + AVOIDED_MS));
        paths.works(pserver(0), pserver(1));
        assert!(!avoided(&paths, 1_000));
    }
}
