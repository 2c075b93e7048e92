//! Dispatch: epoch and placement to all trainers, lanes or tasks to each.

use std::collections::BTreeSet;
use std::sync::Arc;

use heddle_protocol::control::{Command, ShardPlace, TaskHandOut, TrainerCommand};
use heddle_protocol::ids::{Member, Step, TaskId};

use super::JobWork;
use super::lane_speed::LaneDecision;
use super::locality::TaskLocality;
use super::phases::PhaseWork;
use crate::context::Context;
use crate::context::deadlines::Purpose;
use crate::fleet::Fleet;
use crate::stage::shard_map::ShardMap;

/// How often trainers are compared: slow ones lose lanes, and those without work share slow tasks.
const STRAGGLER_CHECK_MS: u64 = 1_000;

/// Where each shard is served. A pserver deals its copies to its data threads in turn, in the order of their numbers.
fn places(map: &ShardMap, fleet: &Fleet) -> Vec<ShardPlace> {
    let mut places = Vec::with_capacity(map.len());
    for (shard, slot) in map.iter() {
        let turn = map.turn(slot, shard);
        if let Some(holder) = fleet.holder(slot)
            && let Some(endpoint) = holder.endpoints.get(turn % holder.endpoints.len().max(1))
        {
            places.push(ShardPlace { shard, holder: holder.member, endpoint: *endpoint });
        }
    }
    places
}

impl JobWork {
    /// Whether trainers push in the present phase.
    pub(crate) fn takes_pushes(&self) -> bool {
        self.phase.kind.is_some_and(|phase| phase.pushes())
    }

    /// Shards go on in another epoch, and trainers are idle there: unfinished tasks of the phase are dispatched again, at
    /// the first steps that were not acknowledged by every shard.
    pub(crate) fn dispatch_again(&mut self, ctx: &Context) {
        if let PhaseWork::Queue(queue) = &mut self.phase.work {
            let positions = queue.positions();
            queue.restore(&positions);
        }
        self.phase.stepping.clear();
        self.doubtful.clear();
        self.losers.forget_all();
        self.phase.step_rate.starts(Step(0), ctx.now());
        self.keep_results_before(self.phase.no);
    }

    /// Dispatches the work of the phase to all trainers.
    pub(crate) fn start(&mut self, map: &ShardMap, fleet: &Fleet, ctx: &mut Context) {
        let start = self.phase.step_rate.frontier();
        self.phase.step_rate.starts(start, ctx.now());
        let workers = fleet.workers();
        self.divide_lanes(&workers, ctx);
        let work = self.command(map, fleet, ctx);
        for member in workers {
            fleet.send(member.slot, Arc::clone(&work), ctx);
            self.send_lanes(member, fleet, ctx);
        }
        self.assign_tasks(fleet, ctx);
    }

    /// These trainers without those that have tasks or lanes of the phase.
    pub(crate) fn without_work(&self, mut trainers: BTreeSet<Member>) -> BTreeSet<Member> {
        match &self.phase.work {
            PhaseWork::Queue(queue) => trainers.retain(|member| !queue.holds(*member)),
            PhaseWork::Lanes(lanes) => lanes.owners().for_each(|owner| {
                trainers.remove(&owner);
            }),
        }
        trainers
    }

    /// How many trainers the phase has work for: its lanes, or its tasks that are not done.
    pub(crate) fn useful_trainers(&self) -> usize {
        match &self.phase.work {
            PhaseWork::Queue(queue) => {
                let (done, tasks) = queue.counts();
                tasks.saturating_sub(done) as usize
            }
            PhaseWork::Lanes(lanes) => lanes.count() as usize,
        }
    }

    /// The command with epoch, phase and placement: the same for all trainers.
    pub(crate) fn command(&self, map: &ShardMap, fleet: &Fleet, ctx: &Context) -> Arc<Command> {
        let (epoch, phase) = (ctx.epoch(), self.wire());
        TrainerCommand::Work { epoch, phase, places: places(map, fleet) }.into()
    }

    /// BSP: sends a trainer its lanes.
    pub(crate) fn send_lanes(&self, member: Member, fleet: &Fleet, ctx: &mut Context) {
        let PhaseWork::Lanes(lanes) = &self.phase.work else {
            return;
        };
        let config = ctx.config();
        let (epoch, phase, lanes) = (ctx.epoch(), self.phase.no, lanes.of(member));
        let tasks = lanes.iter().flat_map(|grant| self.phase.tasks_of(grant.lane, &config.spec));
        let task_steps =
            tasks.filter_map(|task| Some((task, *self.task_steps.get(&task)?))).collect();
        fleet.send(member.slot, TrainerCommand::Lanes { epoch, phase, lanes, task_steps }, ctx);
    }

    /// BSP: gives every lane an owner among the present trainers.
    pub(crate) fn share_lanes(&mut self, fleet: &Fleet, ctx: &mut Context) {
        for member in self.divide_lanes(&fleet.workers(), ctx) {
            self.send_lanes(member, fleet, ctx);
        }
    }

    /// Returns the trainers whose lanes have changed, those that lost one first.
    fn divide_lanes(&mut self, workers: &BTreeSet<Member>, ctx: &mut Context) -> Vec<Member> {
        let PhaseWork::Lanes(lanes) = &mut self.phase.work else {
            return Vec::new();
        };
        if workers.len() > 1 {
            ctx.set_deadline_at_latest(Purpose::Straggler, ctx.now() + STRAGGLER_CHECK_MS);
        }
        let loads = lanes.loads(workers);
        match self.lane_speeds.division(lanes.count() as usize, &loads) {
            Some(divided) if !divided.is_empty() => lanes.share_as(&divided),
            _ => lanes.share(workers),
        }
    }

    /// BSP: compares the trainers. What follows for a trainer that is replaced is decided by the dispatcher.
    pub(crate) fn compare_lanes(
        &mut self,
        fleet: &Fleet,
        ctx: &mut Context,
    ) -> Option<LaneDecision> {
        let PhaseWork::Lanes(lanes) = &self.phase.work else {
            return None;
        };
        let workers = fleet.workers();
        if workers.len() < 2 {
            return None;
        }
        ctx.set_deadline_at_latest(Purpose::Straggler, ctx.now() + STRAGGLER_CHECK_MS);
        self.lane_speeds.check(&lanes.loads(&workers), ctx.limits().overdue_ms, ctx.now())
    }

    /// Orders a trainer to stop work on hand-outs that are over.
    pub(crate) fn withdraw(
        &mut self,
        trainer: Member,
        tasks: Vec<TaskHandOut>,
        fleet: &Fleet,
        ctx: &mut Context,
    ) {
        if tasks.is_empty() || !fleet.is_worker(trainer) {
            return;
        }
        self.losers.ordered(trainer, &tasks, ctx.now());
        let (epoch, phase) = (ctx.epoch(), self.phase.no);
        fleet.send(trainer.slot, TrainerCommand::Withdraw { epoch, phase, tasks }, ctx);
    }

    /// ASP, evaluation: lets every trainer hold the tasks that it should.
    pub(crate) fn assign_tasks(&mut self, fleet: &Fleet, ctx: &mut Context) {
        let workers = fleet.workers();
        self.assign_tasks_to(&workers, workers.len(), fleet, ctx);
    }

    /// A task of these trainers is finished: only they have room for another one. Nor can any other trainer share a task
    /// that it could not share before, except one that has become slow meanwhile. For that all trainers without work are
    /// checked once a second.
    pub(crate) fn assign_tasks_after(
        &mut self,
        holders: &[Member],
        fleet: &Fleet,
        ctx: &mut Context,
    ) {
        let able: BTreeSet<Member> =
            holders.iter().copied().filter(|member| fleet.is_worker(*member)).collect();
        self.assign_tasks_to(&able, fleet.member_count(), fleet, ctx);
    }

    fn assign_tasks_to(
        &mut self,
        members: &BTreeSet<Member>,
        workers: usize,
        fleet: &Fleet,
        ctx: &mut Context,
    ) {
        let training = self.phase.reads_training_data();
        let (now, config) = (ctx.now(), ctx.config());
        let PhaseWork::Queue(queue) = &mut self.phase.work else {
            return;
        };
        let others = workers > 1 || fleet.released_trainers() > 0;
        if others && (queue.may_be_overdue() || !self.losers.is_empty()) {
            ctx.set_deadline_at_latest(Purpose::Straggler, now + STRAGGLER_CHECK_MS);
        }
        let mut sends = Vec::new();
        let known = self.locality.is_known(training);
        for &member in members {
            let node = fleet.node(member.slot);
            let near = node.map(|node| self.locality.tasks_for(training, node)).unwrap_or_default();
            let kept = self.keepers.as_ref().map_or(&[][..], |keepers| keepers.tasks_of(member));
            let first =
                TaskLocality { host: if kept.is_empty() { near.host } else { kept }, ..near };
            let tasks = queue.grant(member, workers, first, now, &config.limits);
            if tasks.is_empty() {
                continue;
            }
            if known {
                let first = tasks.iter().filter(|grant| !queue.is_speculative(grant.task));
                for grant in first {
                    let is_in = |tasks: &[TaskId]| tasks.binary_search(&grant.task).is_ok();
                    let counted = match () {
                        () if is_in(near.host) => &mut self.data_locality.node_local,
                        () if is_in(near.rack) => &mut self.data_locality.rack_local,
                        () => &mut self.data_locality.other,
                    };
                    *counted += 1;
                }
            }
            sends.push((member, tasks));
        }
        let (epoch, phase) = (ctx.epoch(), self.phase.no);
        for (member, tasks) in sends {
            fleet.send(member.slot, TrainerCommand::Tasks { epoch, phase, tasks }, ctx);
        }
    }
}
