//! The containers of the pretended world: pservers with what their shards hold, trainers with what they are at.

use std::collections::BTreeSet;

use heddle_am_core::{ConnectionId, ContainerId};
use heddle_protocol::control::{
    Command, CutAt, LaneGrant, Phase, PserverState, Report, ShardState, Sharing, TaskGrant,
    TaskPosition, TrainerState,
};
use heddle_protocol::ids::{CutId, Epoch, Lane, Member, Role, ShardId, Step, TaskId};
use heddle_protocol::manifest::{Md5, ShardFile};
use uuid::Uuid;

use crate::world::{Content, LENGTH, SHARDS, World};

/// A container.
#[derive(Clone, Debug, Default)]
pub struct Process {
    pub container: Option<ContainerId>,
    pub connection: Option<ConnectionId>,
    pub epoch: Epoch,
    pub phase: Option<Phase>,
    /// BSP, pserver: job steps applied.
    pub step: u64,
    pub ended: bool,
    pub shards: BTreeSet<ShardId>,
    /// ASP, pserver: tasks that its shards have all of.
    pub done: BTreeSet<TaskId>,
    /// Pserver: who may speak.
    pub members: BTreeSet<Member>,
    pub lanes: Vec<LaneGrant>,
    pub tasks: Vec<TaskGrant>,
    /// Highest cut heard of.
    pub cut: CutId,
    /// Pserver: a cut that is not snapped yet.
    pub armed: Option<(CutId, CutAt)>,
}

impl Process {
    /// What a pserver says when it registers again.
    pub fn held(&self) -> Option<PserverState> {
        let phase = self.phase?;
        let state = |shard: &ShardId| ShardState {
            shard: *shard,
            phase: phase.no,
            step: Step(self.step),
            ended: self.ended,
            tasks: Vec::new(),
            done: self.done.iter().copied().collect(),
        };
        let shards = self.shards.iter().map(state).collect();
        Some(PserverState::new(self.epoch, self.cut, shards))
    }

    /// What a trainer says when it registers again.
    pub fn busy(&self) -> Option<TrainerState> {
        let (epoch, phase, cut) = (self.epoch, self.phase?.no, self.cut);
        Some(TrainerState { epoch, phase, cut, tasks: self.positions(), lanes: self.lanes.clone() })
    }

    fn positions(&self) -> Vec<TaskPosition> {
        let position = |grant: &TaskGrant| TaskPosition {
            task: grant.task,
            attempt: grant.attempt,
            step: grant.start,
        };
        self.tasks.iter().map(position).collect()
    }
}

impl World {
    pub fn say(&mut self, member: Member, up: Report) {
        self.up.entry(member).or_default().push(up);
    }

    /// The container reads its next command.
    pub fn obey(&mut self, member: Member) {
        let Some(process) = self.processes.get_mut(&member) else {
            return;
        };
        let queue = process.connection.and_then(|connection| self.down.get_mut(&connection));
        let Some(queue) = queue.filter(|queue| !queue.is_empty()) else {
            return;
        };
        let mut answers = Vec::new();
        match queue.remove(0) {
            Command::LoadShards { epoch, shards, base, phase, step } => {
                if epoch > process.epoch {
                    let content = base
                        .and_then(|base| self.snapshots.get(&base.cut)?.values().next().cloned());
                    let content = content.unwrap_or_default();
                    if let Sharing::Lanes { .. } = phase.sharing {
                        assert_eq!(
                            content.step, step.0,
                            "told another step than the checkpoint has"
                        );
                    }
                    process.epoch = epoch;
                    process.shards = shards.into_iter().collect();
                    process.phase = Some(phase);
                    (process.step, process.done) = (content.step, content.done);
                    process.ended = false;
                    process.armed = None;
                }
                answers.push(Report::ShardsReady {
                    epoch,
                    from_memory: 0,
                    from_storage: 0,
                    load_ms: 0,
                });
            }
            Command::Begin { epoch, phase } => {
                answers.push(Report::Begun { epoch, phase: phase.no })
            }
            Command::Members { trainers } => process.members = trainers.into_iter().collect(),
            Command::Cut { cut, epoch, at, .. } if epoch == process.epoch => {
                if process.cut < cut {
                    process.cut = cut;
                    process.armed = Some((cut, at));
                }
                answers.push(Report::CutArmed { cut, epoch });
            }
            Command::CutEnd { cut, .. } => {
                process.armed = process.armed.take().filter(|(own, _)| *own != cut)
            }
            Command::Work { epoch, phase, .. } if epoch >= process.epoch => {
                if epoch > process.epoch || process.phase.map(|own| own.no) != Some(phase.no) {
                    process.tasks.clear();
                    process.lanes.clear();
                }
                process.epoch = epoch;
                process.phase = Some(phase);
            }
            Command::Lanes { epoch, lanes, .. } if epoch == process.epoch => process.lanes = lanes,
            Command::Tasks { epoch, tasks, .. } if epoch == process.epoch => {
                for grant in tasks {
                    if !process.tasks.contains(&grant) {
                        process.tasks.push(grant);
                    }
                }
            }
            Command::Barrier { cut, epoch } if epoch == process.epoch => {
                process.cut = cut;
                self.barriers.insert((cut, member));
                answers.push(Report::AtBarrier { cut, epoch, tasks: process.positions() });
            }
            Command::Export { checkpoint, .. } => {
                answers.push(Report::Exported {
                    checkpoint,
                    dir: member.to_string(),
                    files: Vec::new(),
                });
            }
            _ => {}
        }
        for up in answers {
            self.say(member, up);
        }
    }

    /// The container does a piece of work of its own.
    pub fn work(&mut self, member: Member) {
        match member.slot.role {
            Role::Trainer => self.train(member),
            Role::Pserver => {
                self.apply(member);
                self.snap(member);
            }
        }
    }

    /// Pservers that hold all shards in this epoch; none if one is missing or elsewhere.
    fn holders(&self, epoch: Epoch) -> Option<Vec<Member>> {
        let of = |(_, process): &(&Member, &Process)| {
            process.epoch == epoch && !process.shards.is_empty()
        };
        let holders: Vec<(&Member, &Process)> = self
            .processes
            .iter()
            .filter(|(member, _)| member.slot.role == Role::Pserver)
            .filter(of)
            .collect();
        let shards: BTreeSet<ShardId> =
            holders.iter().flat_map(|(_, process)| process.shards.iter().copied()).collect();
        (shards.len() == SHARDS as usize)
            .then(|| holders.iter().map(|(member, _)| **member).collect())
    }

    /// ASP: a trainer finishes its next task on all shards, if all of them take it.
    fn train(&mut self, member: Member) {
        let Some(process) = self.processes.get(&member) else {
            return;
        };
        let (epoch, cut) = (process.epoch, process.cut);
        let (Some(phase), Some(grant)) = (process.phase, process.tasks.first().copied()) else {
            return;
        };
        let Some(holders) = self.holders(epoch) else {
            return;
        };
        let takes = |holder: &Member| {
            let holder = &self.processes[holder];
            // What comes after the barrier is held back until the shard has snapped.
            let held_back = holder
                .armed
                .as_ref()
                .is_some_and(|(armed, _)| self.barriers.contains(&(*armed, member)));
            holder.members.contains(&member) && !held_back
        };
        if phase.sharing != Sharing::Queue || !holders.iter().all(takes) {
            return;
        }
        for holder in holders {
            if let Some(process) = self.processes.get_mut(&holder) {
                process.done.insert(grant.task);
            }
        }
        if let Some(process) = self.processes.get_mut(&member) {
            process.tasks.remove(0);
        }
        let (task, attempt) = (grant.task, grant.attempt);
        self.say(member, Report::Stepping { epoch });
        self.say(
            member,
            Report::TaskFinished {
                epoch,
                phase: phase.no,
                cut,
                task,
                attempt,
                metrics: Box::default(),
            },
        );
    }

    /// BSP: a pserver applies a step, if every lane has somebody who sends it and no shard is behind.
    fn apply(&mut self, member: Member) {
        let Some(process) = self.processes.get(&member) else {
            return;
        };
        let (epoch, step, ended) = (process.epoch, process.step, process.ended);
        let Some(phase) = process.phase else { return };
        let (Sharing::Lanes { lanes }, Some(holders)) = (phase.sharing, self.holders(epoch)) else {
            return;
        };
        if !holders.contains(&member) || ended {
            return;
        }
        let lowest = holders.iter().map(|holder| self.processes[holder].step).min();
        let runs = |lane: Lane| {
            self.processes.iter().any(|(trainer, process)| {
                process.epoch == epoch
                    && process.lanes.iter().any(|grant| grant.lane == lane)
                    && self.processes[&member].members.contains(trainer)
            })
        };
        let can = lowest == Some(step) && step < LENGTH && (0..lanes).map(Lane).all(runs);
        let Some(process) = self.processes.get_mut(&member) else {
            return;
        };
        process.step += u64::from(can);
        if process.step == LENGTH {
            process.ended = true;
            let shards = process.shards.clone();
            for shard in shards {
                self.say(
                    member,
                    Report::PhaseEnded { epoch, phase: phase.no, shard, step: Step(LENGTH) },
                );
            }
        }
    }

    /// A pserver takes the cut it is armed for, if it is there.
    fn snap(&mut self, member: Member) {
        let Some(process) = self.processes.get(&member) else {
            return;
        };
        let Some((cut, at)) = process.armed.clone() else {
            return;
        };
        let (epoch, step) = (process.epoch, process.step);
        let (taken, missed) = match &at {
            CutAt::Barriers(set) => {
                let through = |of: &Member| {
                    !process.members.contains(of) || self.barriers.contains(&(cut, *of))
                };
                (set.iter().all(through), false)
            }
            CutAt::Steps(at) => (at.0 == step || at.0 > step && process.ended, at.0 < step),
        };
        if !taken && !missed {
            return;
        }
        let (shards, content) =
            (process.shards.clone(), Content { step, done: process.done.clone() });
        if let Some(process) = self.processes.get_mut(&member) {
            process.armed = None;
        }
        for shard in shards {
            if missed {
                self.say(
                    member,
                    Report::CutAborted {
                        cut,
                        epoch,
                        shard,
                        step: Some(Step(step)),
                        reason: "beyond it".to_owned(),
                    },
                );
                continue;
            }
            self.snapshots.entry(cut).or_default().insert(shard, content.clone());
            let uuid = Uuid::from_u128(u128::from(shard.0) + (u128::from(cut.number) << 32));
            let name = ShardFile::name(shard, uuid);
            let file = ShardFile { shard, uuid, file: name, md5: Md5([0; 16]), bytes: 1, at_ms: 0 };
            self.say(member, Report::SnapshotTaken { cut, epoch, shard, step: Step(step) });
            self.say(member, Report::Saved { cut, epoch, file });
        }
    }
}
