//! The matrix rule: which end of an outage between two processes is given up, if both reach the ApplicationMaster.
//!
//! The side that more peers can reach stays. One reporter alone proves nothing about a pserver, and neither do several on
//! one host, whose link may be the broken one. On one machine processes count as hosts.

use std::collections::{BTreeMap, BTreeSet};

use heddle_protocol::ids::{Member, Slot};

use crate::time::MonotonicMs;

/// A pserver, and the trainers that cannot reach it with the time since when, the longest first.
pub(super) type Reports = BTreeMap<Member, Vec<(MonotonicMs, Member)>>;

/// What the rule is applied to.
pub(super) struct OutageMatrix<'a> {
    /// The present.
    pub now: MonotonicMs,
    /// A report that is this old counts.
    pub suspect_ms: u64,
    /// A report that is this old asks for a decision.
    pub dead_ms: u64,
    /// All reports of containers that can be led.
    pub reports: &'a Reports,
    /// How many trainers need the pservers.
    pub trainers: usize,
    /// Pservers that a replaced trainer had not reached.
    pub suspects: &'a BTreeSet<Slot>,
    /// The host of each registered container.
    pub hosts: &'a BTreeMap<Slot, String>,
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OutageVerdict {
    /// The slot whose container is given up.
    pub given_up: Slot,
    /// The pserver that is not reached.
    pub pserver: Member,
}

impl OutageMatrix<'_> {
    /// The end that is given up, of the outage that most trainers report; among equals of the oldest one.
    pub(super) fn verdict(&self) -> Option<OutageVerdict> {
        let asks = |reporters: &[(MonotonicMs, Member)]| {
            self.older(reporters, self.dead_ms).next().is_some()
        };
        let worst = self.reports.iter().filter(|(_, reporters)| asks(reporters));
        let worst = worst.max_by_key(|(_, reporters)| {
            let count = self.older(reporters, self.suspect_ms).count();
            (count, std::cmp::Reverse(reporters.first()))
        });
        let (&pserver, reporters) = worst?;
        let most_miss_it = self.most_miss(reporters);
        let given_up = match reporters.first() {
            Some((_, trainer)) if !most_miss_it && !self.suspects.contains(&pserver.slot) => {
                trainer.slot
            }
            _ => pserver.slot,
        };
        Some(OutageVerdict { given_up, pserver })
    }

    /// Whether at least two reporters on two hosts, and more than half of the trainers, miss this pserver.
    fn most_miss(&self, reporters: &[(MonotonicMs, Member)]) -> bool {
        let count = self.older(reporters, self.suspect_ms).count();
        let distinct: BTreeSet<&String> = self.hosts.values().collect();
        let on: BTreeSet<Option<&String>> = self
            .older(reporters, self.suspect_ms)
            .map(|trainer| self.hosts.get(&trainer.slot))
            .collect();
        let hosts = if distinct.len() > 1 { on.len() } else { count };
        hosts >= 2 && 2 * count > self.trainers
    }

    fn older(&self, reporters: &[(MonotonicMs, Member)], ms: u64) -> impl Iterator<Item = Member> {
        let now = self.now;
        let old = move |(since, _): &(MonotonicMs, Member)| now.since(*since) >= ms;
        reporters.iter().copied().filter(old).map(|(_, member)| member)
    }
}

/// Most containers of a role that the rule may have given up and that are not replaced yet: a third, at least one.
pub(super) fn given_up_max(role_slots: usize) -> usize {
    (role_slots / 3).max(1)
}

#[cfg(test)]
mod tests {
    use heddle_protocol::ids::Incarnation;

    use super::*;

    const NOW: MonotonicMs = MonotonicMs(100_000);

    fn member(slot: Slot) -> Member {
        Member { slot, incarnation: Incarnation(1) }
    }

    /// Trainers on hosts named by letters; those whose letter is a capital have missed pserver-0 for `since_ms`.
    fn verdict(trainers: &str, since_ms: u64, suspects: &[Slot]) -> Option<Slot> {
        let mut hosts = BTreeMap::from([(Slot::pserver(0), "p".to_owned())]);
        let mut reporters = Vec::new();
        for (index, host) in trainers.chars().enumerate() {
            let slot = Slot::trainer(index as u32);
            hosts.insert(slot, host.to_ascii_lowercase().to_string());
            if host.is_ascii_uppercase() {
                reporters.push((MonotonicMs(NOW.0 - since_ms), member(slot)));
            }
        }
        let reports = Reports::from([(member(Slot::pserver(0)), reporters)]);
        let matrix = OutageMatrix {
            now: NOW,
            suspect_ms: 3_000,
            dead_ms: 10_000,
            reports: &reports,
            trainers: trainers.len(),
            suspects: &suspects.iter().copied().collect(),
            hosts: &hosts,
        };
        matrix.verdict().map(|verdict| verdict.given_up)
    }

    #[test]
    fn s38_no_end_is_given_up_before_dead() {
        assert_eq!(verdict("ABC", 9_999, &[]), None);
        assert_eq!(verdict("abc", 60_000, &[]), None, "no outage");
    }

    #[test]
    fn s39_side_that_more_peers_reach_stays() {
        let (pserver, trainer) = (Some(Slot::pserver(0)), |index| Some(Slot::trainer(index)));
        assert_eq!(verdict("XXyy", 10_000, &[]), trainer(0), "half or fewer: those of host X move");
        assert_eq!(verdict("xXyy", 10_000, &[]), trainer(1));
        assert_eq!(verdict("XXYY", 10_000, &[]), pserver, "none reaches it");
        assert_eq!(verdict("XXYyy", 10_000, &[]), pserver, "more than half, on two hosts");
    }

    #[test]
    fn s39_reporters_on_one_host_prove_nothing_about_a_pserver() {
        assert_eq!(verdict("XXXy", 10_000, &[]), Some(Slot::trainer(0)));
        assert_eq!(verdict("PPPp", 10_000, &[]), Some(Slot::pserver(0)), "one machine");
    }

    #[test]
    fn s38_one_trainer_goes_first_and_then_its_pserver() {
        assert_eq!(verdict("X", 10_000, &[]), Some(Slot::trainer(0)));
        assert_eq!(verdict("X", 10_000, &[Slot::pserver(0)]), Some(Slot::pserver(0)));
    }

    #[test]
    fn a_third_of_a_role_may_be_away() {
        assert_eq!([1, 2, 3, 5, 6, 100].map(given_up_max), [1, 1, 1, 1, 2, 33]);
    }
}
