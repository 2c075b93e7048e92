//! BSP: lanes move away from slow trainers.
//!
//! **Intuition.** Every step waits for its slowest lane. A trainer on a machine that others load, or with a failing disk or
//! fan, slows down the whole job.
//!
//! **Rule.** Each heartbeat of a trainer has its own computing time for a record over its last 20 steps: waiting is not
//! part of it. A trainer is *slow* if it takes more than twice the median of the trainers with lanes. When one has been slow
//! for `overdue_ms` (10 s), lanes are divided by speed if that makes the predicted step at least 20 % shorter: each lane in
//! turn goes to the trainer that would have computed it first, which gives the shortest step that there is. (In proportion
//! to speeds, rounded, a trainer four times slower would keep one of eight lanes, and each step wait for it.) The prediction
//! is the longest product of lanes and computing time among the trainers. A trainer that takes more than ten times the
//! median for as long is drained, and replaced on another node. There is one decision at a time, and the next one at least
//! 30 s later.
//!
//! **Limits.** While lanes are divided by speed, another division needs the same gain for the same time, so that a trainer
//! that becomes fast again gets lanes back and noise moves nothing. A trainer without lanes cannot be measured: what it last
//! took holds for ten minutes. A slot is replaced for its speed at most once in ten minutes.
//!
//! Which trainer runs a lane changes no byte of the result (see [`super::lanes`]).

use std::collections::{BTreeMap, BTreeSet};

use heddle_protocol::ids::{Member, Slot};

use crate::time::MonotonicMs;

/// A trainer whose time for a record is above this multiple of the median, in per mille, is slow.
const SLOW: u64 = 2_000;
/// Above this one it is replaced.
const FAR_TOO_SLOW: u64 = 10_000;
/// The median.
const MEDIAN: u64 = 1_000;
/// Least time between two decisions.
const DECISIONS_MS: u64 = 30_000;
/// How long the last time of a trainer without lanes holds; and how long a slot is not replaced again.
const REMEMBERED_MS: u64 = 600_000;

/// What is done about slow trainers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LaneDecision {
    /// Lanes are divided by speed. The slowest trainer, and its time for a record in multiples of the median, per mille.
    Divide {
        /// The slowest trainer.
        slowest: Member,
        /// Its time.
        times: u64,
    },
    /// This trainer is replaced.
    Replace {
        /// The trainer.
        slowest: Member,
        /// Its time.
        times: u64,
    },
}

/// A trainer's time for a record in multiples of the median, per mille, by which lanes are divided.
#[derive(Clone, Copy, Debug)]
struct LaneShare {
    times: u64,
    measured: MonotonicMs,
}

/// Speeds of the trainers, and the division of lanes that follows from them.
#[derive(Clone, Debug, Default)]
pub(crate) struct LaneSpeeds {
    /// Computing time for a record in this phase, ns, by trainer.
    record_ns: BTreeMap<Member, u64>,
    /// Since when a trainer has been slow.
    slow_since: BTreeMap<Member, MonotonicMs>,
    far_too_slow_since: BTreeMap<Member, MonotonicMs>,
    /// Since when another division would be better.
    better_since: Option<MonotonicMs>,
    /// Empty: lanes are divided evenly.
    shares: BTreeMap<Member, LaneShare>,
    decided: Option<MonotonicMs>,
    replaced: BTreeMap<Slot, MonotonicMs>,
}

impl LaneSpeeds {
    /// A phase begins, or shards went back: steps are measured again, and the division stays.
    pub(crate) fn begin_phase(&mut self) {
        self.record_ns.clear();
        self.slow_since.clear();
        self.far_too_slow_since.clear();
        self.better_since = None;
    }

    /// A heartbeat about the present phase.
    pub(crate) fn measured(&mut self, trainer: Member, record_ns: u64) {
        if record_ns > 0 {
            self.record_ns.insert(trainer, record_ns);
        }
    }

    /// A trainer has left the job.
    pub(crate) fn release(&mut self, trainer: Member) {
        self.record_ns.remove(&trainer);
        self.slow_since.remove(&trainer);
        self.far_too_slow_since.remove(&trainer);
        self.shares.remove(&trainer);
        self.divide_evenly_without_slow();
    }

    fn divide_evenly_without_slow(&mut self) {
        if self.shares.values().all(|share| share.times <= SLOW) {
            self.shares.clear();
        }
    }

    /// How many lanes each trainer is to run; `None`: as even as possible. `loads`: those that each has, all trainers
    /// that can run lanes.
    pub(crate) fn division(
        &self,
        lanes: usize,
        loads: &BTreeMap<Member, usize>,
    ) -> Option<BTreeMap<Member, usize>> {
        if self.shares.is_empty() {
            return None;
        }
        let times = |member: &Member| self.shares.get(member).map_or(MEDIAN, |share| share.times);
        Some(divide(lanes, loads, times))
    }

    /// Compares the trainers. `loads`: the lanes of all that can run lanes; `overdue_ms`: for how long a trainer must be slow.
    pub(crate) fn check(
        &mut self,
        loads: &BTreeMap<Member, usize>,
        overdue_ms: u64,
        now: MonotonicMs,
    ) -> Option<LaneDecision> {
        let mut times: Vec<(u64, Member)> = loads
            .iter()
            .filter(|(_, lanes)| **lanes > 0)
            .filter_map(|(member, _)| Some((*self.record_ns.get(member)?, *member)))
            .collect();
        times.sort_unstable();
        // Of an even number the lower one: of two trainers one can be slow.
        let median = times.get(times.len().saturating_sub(1) / 2)?.0.max(1);
        let relative: BTreeMap<Member, u64> = times
            .iter()
            .map(|(ns, member)| (*member, ns.saturating_mul(MEDIAN) / median))
            .collect();
        keep_since(&mut self.slow_since, &relative, SLOW, now);
        keep_since(&mut self.far_too_slow_since, &relative, FAR_TOO_SLOW, now);
        if self.decided.is_some_and(|at| now.since(at) < DECISIONS_MS) {
            return None;
        }
        self.replacement(&relative, overdue_ms, now).or_else(|| {
            let &(_, slowest) = times.last()?;
            self.another_division(slowest, &relative, loads, overdue_ms, now)
        })
    }

    fn replacement(
        &mut self,
        relative: &BTreeMap<Member, u64>,
        overdue_ms: u64,
        now: MonotonicMs,
    ) -> Option<LaneDecision> {
        self.replaced.retain(|_, at| now.since(*at) < REMEMBERED_MS);
        let late = self.far_too_slow_since.iter().filter(|(member, since)| {
            now.since(**since) >= overdue_ms && !self.replaced.contains_key(&member.slot)
        });
        let worst = late.filter_map(|(member, _)| Some((*relative.get(member)?, *member))).max();
        let (times, slowest) = worst?;
        self.decided = Some(now);
        self.replaced.insert(slowest.slot, now);
        Some(LaneDecision::Replace { slowest, times })
    }

    fn another_division(
        &mut self,
        slowest: Member,
        relative: &BTreeMap<Member, u64>,
        loads: &BTreeMap<Member, usize>,
        overdue_ms: u64,
        now: MonotonicMs,
    ) -> Option<LaneDecision> {
        if self.slow_since.is_empty() && self.shares.is_empty() {
            self.better_since = None;
            return None;
        }
        let times = |member: &Member| match (relative.get(member), self.shares.get(member)) {
            (Some(times), _) => (*times).max(1),
            (None, Some(share)) if now.since(share.measured) < REMEMBERED_MS => share.times,
            (None, _) => MEDIAN,
        };
        let lanes = loads.values().sum();
        let divided = divide(lanes, loads, times);
        let (before, after) = (step(loads, times), step(&divided, times));
        if after.saturating_mul(5) > before.saturating_mul(4) {
            self.better_since = None;
            return None;
        }
        let since = *self.better_since.get_or_insert(now);
        if now.since(since) < overdue_ms {
            return None;
        }
        let shares: BTreeMap<Member, LaneShare> = loads
            .keys()
            .map(|member| {
                let known = self.shares.get(member).filter(|_| !relative.contains_key(member));
                let measured = known.map_or(now, |share| share.measured);
                (*member, LaneShare { times: times(member), measured })
            })
            .collect();
        self.shares = shares;
        self.divide_evenly_without_slow();
        self.better_since = None;
        self.decided = Some(now);
        let times = relative.get(&slowest).copied().unwrap_or(MEDIAN);
        Some(LaneDecision::Divide { slowest, times })
    }
}

/// Notes since when each trainer has been above a limit.
fn keep_since(
    since: &mut BTreeMap<Member, MonotonicMs>,
    relative: &BTreeMap<Member, u64>,
    limit: u64,
    now: MonotonicMs,
) {
    since.retain(|member, _| relative.get(member).is_some_and(|times| *times > limit));
    for (member, _) in relative.iter().filter(|(_, times)| **times > limit) {
        since.entry(*member).or_insert(now);
    }
}

/// The predicted length of a step.
fn step(loads: &BTreeMap<Member, usize>, times: impl Fn(&Member) -> u64) -> u64 {
    let longest = loads.iter().map(|(member, lanes)| (*lanes as u64).saturating_mul(times(member)));
    longest.max().unwrap_or(0)
}

/// Each lane in turn goes to the trainer that has computed it first, after those that it has by then: no other division has
/// a shorter step. Of equal ones to a trainer that has it now.
fn divide(
    lanes: usize,
    loads: &BTreeMap<Member, usize>,
    times: impl Fn(&Member) -> u64,
) -> BTreeMap<Member, usize> {
    let mut divided: BTreeMap<Member, usize> = loads.keys().map(|member| (*member, 0)).collect();
    let cost = |member: Member, has: usize| {
        let end = (has as u64 + 1).saturating_mul(times(&member).max(1));
        let moves = loads.get(&member).is_none_or(|load| has >= *load);
        (end, moves, member)
    };
    let mut next: BTreeSet<_> = loads.keys().map(|member| cost(*member, 0)).collect();
    for _ in 0..lanes {
        let Some((_, _, member)) = next.pop_first() else { break };
        let has = divided.entry(member).or_default();
        *has += 1;
        next.insert(cost(member, *has));
    }
    divided
}

#[cfg(test)]
mod tests;
