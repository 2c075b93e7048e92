//! Nodes on which containers could not be started, as their disk is full or their NodeManager is configured wrongly. Pure:
//! no clock.
//!
//! Intuition: the program has not begun, so the cause is the node's, and the next start there fails as well. The scheduler
//! offers such a node first, since nothing runs there. Rule: the node is avoided for the slot whose container failed there,
//! and for all slots from the second failure on, for [`AVOIDED_FOR`]. Limit: at most half of the nodes are avoided, those with
//! most failures. A cause that is the job's own, such as a file that was replaced, shows on every node.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use heddle_protocol::ids::Slot;

/// How long a failed start counts.
const AVOIDED_FOR: Duration = Duration::from_secs(600);
/// Failed starts after which no slot gets a container there.
const FAILURES_OF_ALL: usize = 2;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct FailedStarts {
    /// By host: the slots whose containers failed, and until when that counts.
    by_host: BTreeMap<String, Vec<(Slot, Duration)>>,
}

impl FailedStarts {
    /// Notes a container that could not be started. Returns whether all slots avoid the host from now on.
    pub(super) fn note(&mut self, host: &str, slot: Slot, now: Duration) -> bool {
        let failures = self.by_host.entry(host.to_owned()).or_default();
        failures.retain(|(_, until)| *until > now);
        failures.push((slot, now + AVOIDED_FOR));
        failures.len() == FAILURES_OF_ALL
    }

    /// Hosts that one of these slots avoids, of a cluster with this number of nodes.
    pub(super) fn avoided_by(&self, slots: &[Slot], nodes: usize, now: Duration) -> BTreeSet<&str> {
        let mut hosts: Vec<(usize, &str)> = Vec::new();
        for (host, failures) in &self.by_host {
            let mut counting = failures.iter().filter(|(_, until)| *until > now);
            let count = counting.clone().count();
            if count >= FAILURES_OF_ALL || counting.any(|(slot, _)| slots.contains(slot)) {
                hosts.push((count, host));
            }
        }
        hosts.sort_by_key(|(count, host)| (usize::MAX - count, *host));
        hosts.into_iter().take(nodes / 2).map(|(_, host)| host).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(100);

    fn avoided(starts: &FailedStarts, slot: Slot, nodes: usize, now: Duration) -> Vec<&str> {
        starts.avoided_by(&[slot], nodes, now).into_iter().collect()
    }

    #[test]
    fn node_is_taken_from_the_slot_then_from_the_job() {
        let (one, other) = (Slot::pserver(0), Slot::trainer(0));
        let mut starts = FailedStarts::default();
        assert!(!starts.note("bad", one, NOW));
        assert_eq!(avoided(&starts, one, 3, NOW), ["bad"]);
        assert!(avoided(&starts, other, 3, NOW).is_empty());
        assert!(starts.note("bad", one, NOW));
        assert!(!starts.note("bad", one, NOW), "reported once");
        assert_eq!(avoided(&starts, other, 3, NOW), ["bad"]);
        assert!(avoided(&starts, other, 3, NOW + AVOIDED_FOR).is_empty());
    }

    #[test]
    fn half_of_the_nodes_stay() {
        let slot = Slot::pserver(0);
        let mut starts = FailedStarts::default();
        for host in ["a", "b", "c", "c"] {
            starts.note(host, slot, NOW);
        }
        assert!(avoided(&starts, slot, 1, NOW).is_empty());
        assert_eq!(avoided(&starts, slot, 2, NOW), ["c"]);
        assert_eq!(avoided(&starts, slot, 4, NOW), ["a", "c"]);
    }
}
