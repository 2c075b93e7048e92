//! The data path: a trainer and a pserver that cannot reach each other although both reach the ApplicationMaster.
//!
//! **Intuition.** A firewall between two nodes, or a broken link, cuts the data path and leaves the control path. Both
//! processes live and send heartbeats, so silence never decides, and no step is taken while it lasts.
//!
//! **Rule.** Trainers name the pservers that they cannot reach in every heartbeat. After `suspect_ms` a warning names both
//! ends. After `dead_ms` the matrix rule (`outage_matrix`) names the end that is given up: the pserver, if more than half
//! of the trainers, on at least two hosts, report it, each for `suspect_ms`; else the trainer that has reported it longest,
//! since its replacement costs no rollback. (Trainers that start at different times report at different times: each for
//! `dead_ms` would blame the first one.) A pserver that a replaced trainer had reported is given up when another trainer
//! reports it for as long. One decision at a time, the next one `dead_ms` later: the first one may cure the rest. Never
//! more than a third of a role is away because of outages.
//!
//! **Limits.** Pservers that do not send heartbeats are handled in `liveness`. A trainer that is alone is replaced before
//! its pserver. A container that is given up here counts as a kill does: a path that stays cut ends the job in the end.
//!
//! **Rejected.** A single report against a pserver: its loss costs every trainer the work since the last checkpoint.

use std::collections::BTreeSet;

use heddle_protocol::control::HeartbeatStats;
use heddle_protocol::ids::{Member, Role, Slot};
use heddle_protocol::view::WarningCode;

use super::outage_matrix::{OutageMatrix, OutageVerdict, Reports, given_up_max};
use super::restart_policy::{Cause, FailureClass};
use super::slots::RegisteredContainer;
use super::{Fleet, Loss};
use crate::context::Context;
use crate::context::deadlines::Purpose;
use crate::time::MonotonicMs;

/// A pserver stays under suspicion for this many times `dead_ms` after a trainer was replaced that did not reach it.
const SUSPECT_FOR: u64 = 5;
/// Trainers that are named in one message.
const NAMED_MAX: usize = 3;

/// What is remembered of outages beside the trainers' reports.
#[derive(Clone, Debug, Default)]
pub(crate) struct DataPath {
    /// Pservers whose outage was reported.
    reported: BTreeSet<Member>,
    /// Pservers that a replaced trainer had not reached.
    suspects: BTreeSet<Slot>,
    /// Slots whose containers were given up, until they are filled again.
    given_up: BTreeSet<Slot>,
    /// When a container was last given up.
    decided: Option<MonotonicMs>,
}

/// The present, and the times in force.
fn times(ctx: &Context) -> (MonotonicMs, u64, u64) {
    (ctx.now(), ctx.limits().suspect_ms, ctx.limits().dead_ms)
}

impl Fleet {
    /// A trainer's heartbeat names these pservers as unreachable.
    pub(super) fn note_unreachable(
        &mut self,
        trainer: Member,
        beat: &HeartbeatStats,
        ctx: &mut Context,
    ) {
        let (now, limits) = (ctx.now(), ctx.limits());
        let Some(holder) = self.slots.holder_mut(trainer.slot) else {
            return;
        };
        let unreachable = &beat.unreachable;
        if holder.unreachable.is_empty() && unreachable.is_empty() {
            return;
        }
        holder.unreachable.retain(|member, _| unreachable.contains(member));
        for (index, member) in unreachable.iter().enumerate() {
            // A trainer whose control connection was lost reports late. The first report never decides alone.
            let for_ms = beat.unreachable_ms.get(index).copied().unwrap_or_default();
            let since = MonotonicMs(now.0.saturating_sub(for_ms.min(limits.suspect_ms)));
            holder.unreachable.entry(*member).or_insert(since);
        }
        ctx.set_deadline_at_latest(Purpose::Outage, now + limits.heartbeat_ms);
    }

    /// The outages between containers that both send heartbeats.
    fn outages(&self, ctx: &Context) -> Reports {
        let (now, suspect_ms) = (ctx.now(), ctx.limits().suspect_ms);
        let speaks = |holder: &RegisteredContainer| {
            holder.link.is_connected() && now.since(holder.last_seen) < suspect_ms
        };
        let mut reports = Reports::new();
        for trainer in self.slots.holders(Role::Trainer) {
            if !trainer.joined || trainer.unreachable.is_empty() || !speaks(trainer) {
                continue;
            }
            for (pserver, since) in &trainer.unreachable {
                // One of its threads hangs: `progress` decides, and the path is not at fault.
                let turns = |holder: &RegisteredContainer| holder.heartbeat.slow_thread.is_none();
                if self.slots.member(*pserver).is_some_and(|it| speaks(it) && turns(it)) {
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

    /// Warns of outages that last. Returns one end of an outage that lasts too long, if the job `works`.
    pub(crate) fn check_data_path(&mut self, works: bool, ctx: &mut Context) -> Option<Loss> {
        let (now, suspect_ms, dead_ms) = times(ctx);
        let reports = self.outages(ctx);
        self.data_path.reported.retain(|pserver| reports.contains_key(pserver));
        if reports.is_empty() {
            return None;
        }
        let old = |at: MonotonicMs| now.since(at) > SUSPECT_FOR * dead_ms;
        if self.data_path.decided.is_some_and(old) {
            self.data_path.suspects.clear();
        }
        for (pserver, trainers) in &reports {
            let lasts = trainers.first().is_some_and(|(since, _)| now.since(*since) >= suspect_ms);
            if lasts && self.data_path.reported.insert(*pserver) {
                ctx.warn(
                    WarningCode::PserverUnreachable,
                    format!(
                        "{}; it is replaced, or they are, after {} s",
                        self.outage_text_of(*pserver, trainers, ctx.now()),
                        dead_ms / 1000
                    ),
                );
            }
        }
        let rests = self.data_path.decided.is_some_and(|at| now.since(at) < dead_ms);
        let loss = if works && !rests { self.decide_outage(&reports, ctx) } else { None };
        ctx.set_deadline_at_latest(Purpose::Outage, now + ctx.limits().heartbeat_ms);
        loss
    }

    fn decide_outage(&mut self, reports: &Reports, ctx: &Context) -> Option<Loss> {
        let (now, suspect_ms, dead_ms) = times(ctx);
        let hosts =
            [Role::Pserver, Role::Trainer].into_iter().flat_map(|role| self.slots.holders(role));
        let hosts = hosts.map(|holder| (holder.member.slot, holder.host.clone())).collect();
        let trainers = self.joined().len();
        let (suspects, hosts) = (&self.data_path.suspects, &hosts);
        let matrix = OutageMatrix { now, suspect_ms, dead_ms, reports, trainers, suspects, hosts };
        let OutageVerdict { given_up, pserver } = matrix.verdict()?;
        if !self.may_give_up(given_up) {
            return None;
        }
        let words = self.outage_text_of(pserver, reports.get(&pserver)?, now);
        self.data_path.decided = Some(now);
        self.data_path.given_up.insert(given_up);
        if given_up == pserver.slot {
            self.data_path.suspects.remove(&pserver.slot);
        } else {
            self.data_path.suspects.insert(pserver.slot);
        }
        let node = self.slots.node(given_up).unwrap_or_default().to_owned();
        self.slow_nodes.leave(given_up, &node);
        let cause = Cause::plain(&format!("is given up: {words}"));
        Some(Loss { slot: given_up, cause, class: FailureClass::Killed, node })
    }

    /// Whether so few of its role are away because of outages that another one may be given up.
    fn may_give_up(&mut self, slot: Slot) -> bool {
        let mut given_up = std::mem::take(&mut self.data_path.given_up);
        given_up.retain(|slot| self.slots.holder(*slot).is_none());
        let away = given_up.iter().filter(|away| away.role == slot.role).count();
        self.data_path.given_up = given_up;
        let of_role = self.slots.entries.keys().filter(|other| other.role == slot.role).count();
        away < given_up_max(of_role)
    }

    /// `trainer-0 on node-a cannot reach pserver-1 on node-b since 7 s, although both reach the ApplicationMaster`.
    fn outage_text_of(
        &self,
        pserver: Member,
        trainers: &[(MonotonicMs, Member)],
        now: MonotonicMs,
    ) -> String {
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
        let since = trainers.first().map_or(now, |(since, _)| *since);
        format!(
            "{}{more} cannot reach the data port of {} for {} s, though both ends reach the ApplicationMaster (a firewall or a broken link between them?)",
            named.join(", "),
            place(pserver.slot),
            now.since(since) / 1000
        )
    }

    /// The worst outage that was reported, for the status message.
    pub(crate) fn outage_text(&self, ctx: &Context) -> Option<String> {
        if self.data_path.reported.is_empty() {
            return None;
        }
        let reports = self.outages(ctx);
        let reported = |(pserver, _): &(&Member, &Vec<(MonotonicMs, Member)>)| {
            self.data_path.reported.contains(pserver)
        };
        let worst = reports.iter().filter(reported).max_by_key(|(_, trainers)| trainers.len());
        worst.map(|(pserver, trainers)| self.outage_text_of(*pserver, trainers, ctx.now()))
    }
}
