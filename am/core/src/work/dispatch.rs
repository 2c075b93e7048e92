//! Sharing out the work of a phase: epoch and places to everybody, lanes or tasks to each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use heddle_protocol::control::{Command, LaneGrant, ShardPlace};
use heddle_protocol::ids::{Member, Role, Slot};
use heddle_protocol::spec::PhaseKind;
use heddle_protocol::view;

use crate::context::deadlines::Purpose;
use crate::core::{Core, JobStage};
use crate::work::phases::{Work, phase_text};

/// How often an idle trainer is looked at for a late task to share.
const LATE_CHECK_MS: u64 = 1_000;

impl Core {
    /// Where each shard is served. A pserver's shards go to its data threads in turn, in the order of
    /// their numbers, as it deals them itself.
    pub(crate) fn places(&self) -> Vec<ShardPlace> {
        let mut dealt: BTreeMap<Slot, usize> = BTreeMap::new();
        let mut places = Vec::with_capacity(self.map.len());
        for (shard, slot) in self.map.iter() {
            let turn = dealt.entry(slot).or_default();
            if let Some(holder) = self.slots.holder(slot)
                && let Some(endpoint) = holder.endpoints.get(*turn % holder.endpoints.len().max(1))
            {
                places.push(ShardPlace { shard, holder: holder.member, endpoint: *endpoint });
            }
            *turn += 1;
        }
        places
    }

    /// Trainers that are members of the job.
    pub(crate) fn joined(&self) -> BTreeSet<Member> {
        let joined = self.slots.holders(Role::Trainer).filter(|holder| holder.joined);
        joined.map(|holder| holder.member).collect()
    }

    /// Trainers that work may be given to.
    pub(crate) fn workers(&self) -> BTreeSet<Member> {
        let able = |member: &Member| {
            self.slots.member(*member).is_some_and(|holder| holder.draining.is_none())
        };
        self.joined().into_iter().filter(able).collect()
    }

    /// Hands the phase's work to all trainers.
    pub(crate) fn start_work(&mut self) {
        self.stage = JobStage::Working;
        self.message.clear();
        if !self.started {
            self.started = true;
            self.slots.changed = true;
            let text = phase_text(&self.config.spec, self.phase.no);
            self.notice(view::Event::PhaseBegun { phase: self.phase.no, text });
            self.plan_next_cut(false);
        }
        let start = self.phase.frontier();
        self.phase.step_rate.starts(start, self.now.mono);
        let workers = self.workers();
        if let Work::Lanes(lanes) = &mut self.phase.work {
            lanes.share(&workers);
        }
        let work = self.work();
        for member in workers {
            self.send(member.slot, Arc::clone(&work));
            self.send_lanes(member);
        }
        self.feed();
    }

    /// Tells a trainer epoch, phase and places.
    pub(crate) fn send_work(&mut self, slot: Slot) {
        self.send(slot, self.work());
    }

    /// Epoch, phase and places: the same for all trainers.
    pub(crate) fn work(&self) -> Arc<Command> {
        Arc::new(Command::Work {
            epoch: self.epoch,
            phase: self.phase.wire(),
            places: self.places(),
        })
    }

    /// BSP: tells a trainer its lanes.
    pub(crate) fn send_lanes(&mut self, member: Member) {
        let Work::Lanes(lanes) = &self.phase.work else {
            return;
        };
        let (epoch, phase, lanes) = (self.epoch, self.phase.no, lanes.of(member));
        let tasks =
            lanes.iter().flat_map(|grant| self.phase.tasks_of(grant.lane, &self.config.spec));
        let task_steps =
            tasks.filter_map(|task| Some((task, *self.task_steps.get(&task)?))).collect();
        self.send(member.slot, Command::Lanes { epoch, phase, lanes, task_steps });
    }

    /// BSP: lets every lane have an owner among the trainers that are there now.
    pub(crate) fn share_lanes(&mut self) {
        if !matches!(self.stage, JobStage::Working) {
            return;
        }
        let workers = self.workers();
        let Work::Lanes(lanes) = &mut self.phase.work else {
            return;
        };
        for member in lanes.share(&workers) {
            self.send_lanes(member);
        }
    }

    /// BSP: shards refuse a trainer a lane, for a later hand-out.
    pub(crate) fn lane_fenced(&mut self, member: Member, lane: LaneGrant) {
        let Work::Lanes(lanes) = &mut self.phase.work else {
            return;
        };
        // While the work is not shared out it is told then.
        if lanes.fenced(member, lane) && matches!(self.stage, JobStage::Working) {
            self.send_lanes(member);
        }
    }

    /// ASP, evaluation: lets every trainer hold the tasks that it should.
    pub(crate) fn feed(&mut self) {
        let workers = self.workers();
        self.feed_of(&workers, workers.len());
    }

    /// A task of these trainers is finished: only they have room for another one. Nor can any other trainer share a
    /// task that it could not share before, except one that has become late meanwhile, and for that all trainers without
    /// work are looked at once a second.
    pub(crate) fn feed_after(&mut self, holders: &[Member]) {
        let able: BTreeSet<Member> =
            holders.iter().copied().filter(|member| self.is_worker(*member)).collect();
        self.feed_of(&able, self.join_batching.members);
    }

    fn is_worker(&self, member: Member) -> bool {
        let able = |holder: &crate::fleet::slots::RegisteredContainer| {
            holder.joined && holder.draining.is_none()
        };
        self.slots.member(member).is_some_and(able)
    }

    fn feed_of(&mut self, members: &BTreeSet<Member>, workers: usize) {
        if !matches!(self.stage, JobStage::Working) {
            return;
        }
        let (now, config) = (self.now.mono, self.config.clone());
        let Work::Queue(queue) = &mut self.phase.work else {
            return;
        };
        if workers > 1 && queue.may_be_late() {
            self.deadlines.at_latest(Purpose::Late, now + LATE_CHECK_MS);
        }
        let mut sends = Vec::new();
        let training = self.phase.kind.is_some_and(PhaseKind::reads_training_data);
        let known = self.locality.knows(training);
        for &member in members {
            let host = self.slots.node(member.slot).and_then(|node| self.locality.host(node));
            let near = host.map_or(&[][..], |host| self.locality.tasks(training, host));
            let tasks = queue.grant(member, workers, near, now, &config.limits);
            if !tasks.is_empty() {
                if known {
                    let first = tasks.iter().filter(|grant| !queue.is_speculative(grant.task));
                    for grant in first {
                        match near.binary_search(&grant.task) {
                            Ok(_) => self.data_locality.node_local += 1,
                            Err(_) => self.data_locality.other += 1,
                        }
                    }
                }
                sends.push((member, tasks));
            }
        }
        let (epoch, phase) = (self.epoch, self.phase.no);
        for (member, tasks) in sends {
            self.send(member.slot, Command::Tasks { epoch, phase, tasks });
        }
    }
}
