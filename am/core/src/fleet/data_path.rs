//! A trainer and a pserver that cannot reach each other although both reach the ApplicationMaster.
//!
//! **Intuition.** A firewall between two nodes, or a broken link, cuts the data path and leaves the control path. Both
//! processes live and send heartbeats, so silence never decides, and no step is taken while it lasts.
//!
//! **Rule.** Trainers name the pservers that they cannot reach in every heartbeat. After [`WARN_MS`] people are told of
//! both ends. After `dead_ms`, if more than half of the trainers report the same pserver, each for [`WARN_MS`], the pserver
//! is given up; else the trainer that has reported it longest, since its replacement costs no rollback. (Trainers that
//! start at different times report at different times: each for `dead_ms` would class the first one.) A pserver that a replaced trainer
//! had reported is given up when another trainer reports it for as long. One decision at a time, the next one
//! `dead_ms` later: the first one may cure the rest.
//!
//! **Limits.** A pserver that does not send heartbeats is the business of `liveness`. A trainer that is alone is replaced
//! before its pserver. What is given up here counts as a kill does: a path that stays cut ends the job in the end.
//!
//! **Rejected.** A single report against a pserver: its loss costs every trainer the work since the last checkpoint.

use std::collections::{BTreeMap, BTreeSet};

use heddle_protocol::ids::{Member, Role, Slot};

use crate::context::deadlines::Purpose;
use crate::core::{Core, JobStage};
use crate::fleet::restart_policy::{Cause, FailureClass};
use crate::fleet::slots::RegisteredContainer;
use crate::time::MonotonicMs;

/// An outage this long is told. Connections that break come back within two seconds.
const WARN_MS: u64 = 5_000;
/// So many times `dead_ms` a pserver stays under suspicion after a trainer was replaced that did not reach it.
const SUSPECT_FOR: u64 = 5;
/// Trainers that are named in one message.
const NAMED_MAX: usize = 3;

/// What is remembered of outages beside the trainers' reports.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outages {
    /// Pservers whose outage was told.
    told: BTreeSet<Member>,
    /// Pservers that a replaced trainer had not reached.
    suspects: BTreeSet<Slot>,
    /// When a container was last given up.
    decided: Option<MonotonicMs>,
}

/// A pserver, and the trainers that cannot reach it with the time since when, the longest first.
type Reports = BTreeMap<Member, Vec<(MonotonicMs, Member)>>;

impl Core {
    /// A trainer's heartbeat names these pservers as unreachable.
    pub(crate) fn note_outages(&mut self, trainer: Member, unreachable: &[Member]) {
        let now = self.now.mono;
        let Some(holder) = self.slots.holder_mut(trainer.slot) else {
            return;
        };
        if holder.unreachable.is_empty() && unreachable.is_empty() {
            return;
        }
        holder.unreachable.retain(|member, _| unreachable.contains(member));
        for member in unreachable {
            holder.unreachable.entry(*member).or_insert(now);
        }
        self.deadlines.at_latest(Purpose::Outage, now + WARN_MS);
    }

    /// The outages between containers that both send heartbeats.
    fn outages(&self) -> Reports {
        let (now, suspect_ms) = (self.now.mono, self.config.limits.suspect_ms);
        let speaks = |holder: &RegisteredContainer| {
            holder.connection.is_some() && now.since(holder.heard) < suspect_ms
        };
        let mut reports = Reports::new();
        for trainer in self.slots.holders(Role::Trainer) {
            if !trainer.joined || trainer.unreachable.is_empty() || !speaks(trainer) {
                continue;
            }
            for (pserver, since) in &trainer.unreachable {
                if self.slots.member(*pserver).is_some_and(speaks) {
                    let of = reports.entry(*pserver).or_default();
                    of.push((*since, trainer.member));
                }
            }
        }
        for trainers in reports.values_mut() {
            trainers.sort_unstable();
        }
        reports
    }

    /// Tells outages that last, and gives up one end of one that lasts too long.
    pub(crate) fn look_at_outages(&mut self) {
        let (now, dead_ms) = (self.now.mono, self.config.limits.dead_ms);
        let reports = self.outages();
        self.outages.told.retain(|pserver| reports.contains_key(pserver));
        if reports.is_empty() {
            return;
        }
        let old = |at: MonotonicMs| now.since(at) > SUSPECT_FOR * dead_ms;
        if self.outages.decided.is_some_and(old) {
            self.outages.suspects.clear();
        }
        for (pserver, trainers) in &reports {
            let lasts = trainers.first().is_some_and(|(since, _)| now.since(*since) >= WARN_MS);
            if lasts && self.outages.told.insert(*pserver) {
                self.warn(format!(
                    "{}; it is replaced, or they are, after {} s",
                    self.words_of_outage(*pserver, trainers),
                    dead_ms / 1000
                ));
            }
        }
        let works = matches!(
            self.stage,
            JobStage::Idle(_) | JobStage::Beginning { .. } | JobStage::Working
        );
        let rests = self.outages.decided.is_some_and(|at| now.since(at) < dead_ms);
        if works && !rests {
            self.decide_outage(&reports);
        }
        self.deadlines.at_latest(Purpose::Outage, now + WARN_MS);
    }

    fn decide_outage(&mut self, reports: &Reports) {
        let (now, dead_ms) = (self.now.mono, self.config.limits.dead_ms);
        let joined = self.joined().len();
        let for_ms = |trainers: &[(MonotonicMs, Member)], ms: u64| {
            let lasts = |(since, _): &&(MonotonicMs, Member)| now.since(*since) >= ms;
            trainers.iter().filter(lasts).count()
        };
        let lasting = |trainers: &[(MonotonicMs, Member)]| for_ms(trainers, WARN_MS.min(dead_ms));
        // The pserver that most trainers miss, and among equals the one that was missed first.
        let worst = reports
            .iter()
            .filter(|(_, trainers)| for_ms(trainers, dead_ms) > 0)
            .max_by_key(|(_, trainers)| (lasting(trainers), std::cmp::Reverse(trainers.first())));
        let Some((&pserver, trainers)) = worst else {
            return;
        };
        let words = self.words_of_outage(pserver, trainers);
        let count = lasting(trainers);
        self.outages.decided = Some(now);
        let is_pserver =
            (count > 1 && 2 * count > joined) || self.outages.suspects.contains(&pserver.slot);
        let slot = match trainers.first() {
            Some((_, trainer)) if !is_pserver => {
                self.outages.suspects.insert(pserver.slot);
                trainer.slot
            }
            _ => {
                self.outages.suspects.remove(&pserver.slot);
                pserver.slot
            }
        };
        let node = self.slots.node(slot).unwrap_or_default().to_owned();
        let cause = Cause::plain(&format!("is given up: {words}"));
        self.lose_for(slot, &cause, FailureClass::Killed, &node);
    }

    /// `trainer-0 on node-a cannot reach pserver-1 on node-b since 7 s, although both reach the ApplicationMaster`.
    fn words_of_outage(&self, pserver: Member, trainers: &[(MonotonicMs, Member)]) -> String {
        let place = |slot: Slot| match self.slots.holder(slot) {
            Some(holder) if !holder.host.is_empty() => format!("{slot} on {}", holder.host),
            _ => slot.to_string(),
        };
        let named: Vec<String> =
            trainers.iter().take(NAMED_MAX).map(|(_, trainer)| place(trainer.slot)).collect();
        let more = match trainers.len().saturating_sub(NAMED_MAX) {
            0 => String::new(),
            more => format!(" and {more} more trainers"),
        };
        let since = trainers.first().map_or(self.now.mono, |(since, _)| *since);
        format!(
            "{}{more} cannot reach the data port of {} for {} s, though both ends reach the ApplicationMaster (a firewall or a broken link between them?)",
            named.join(", "),
            place(pserver.slot),
            self.now.mono.since(since) / 1000
        )
    }

    /// The worst outage that was told, for the status message.
    pub(crate) fn outage_text(&self) -> Option<String> {
        if self.outages.told.is_empty() {
            return None;
        }
        let reports = self.outages();
        let told = |(pserver, _): &(&Member, &Vec<(MonotonicMs, Member)>)| {
            self.outages.told.contains(pserver)
        };
        let worst = reports.iter().filter(told).max_by_key(|(_, trainers)| trainers.len());
        worst.map(|(pserver, trainers)| self.words_of_outage(*pserver, trainers))
    }
}
