//! Reports of registered containers, each routed to its component.
//!
//! Each report is checked for its epoch, phase, cut and attempt where it is taken in. Stale reports are ignored.

use heddle_protocol::control::{
    HeartbeatStats, PserverReport, Report, ShardReport, ShardStop, TrainerReport,
};
use heddle_protocol::failure::Failure;
use heddle_protocol::ids::{
    CutId, Epoch, Member, PhaseNo, ShardId, Slot, Step, TaskAttempt, TaskId,
};
use heddle_protocol::metrics::TaskMetrics;

use super::Core;
use crate::action::ConnectionId;
use crate::checkpoint::snapshots::FailedSave;
use crate::failure::JobFailure;
use crate::stage::RestoredShards;
use crate::stage::replicas::ServedShard;

impl Core {
    /// A container reports.
    pub(super) fn report(&mut self, connection: ConnectionId, report: Report) {
        let Some(member) = self.fleet.at(connection) else {
            // The connection was replaced or its container given up: only the reason of its end still counts.
            if let (Some(slot), Report::Fatal { failure }) =
                (self.fleet.ended_slot(connection), report)
            {
                self.fail(JobFailure::new(failure.class.exit_code(), format!("{slot}: {failure}")));
            }
            return;
        };
        self.fleet.seen(member.slot, &self.ctx);
        if self.stage.is_stopping() && !matches!(report, Report::Heartbeat(_)) {
            return;
        }
        let report = match self.stage.takeover() {
            Some(takeover) => takeover.keep(connection, report),
            None => Some(report),
        };
        let Some(report) = report else {
            return;
        };
        match report {
            // The driver turns registrations into events of their own.
            Report::Register(_) => debug_assert!(false, "a registration is an event of its own"),
            Report::Heartbeat(beat) => self.heartbeat(member, beat),
            Report::Fatal { failure } => {
                let message = format!("{}: {failure}", member.slot);
                self.fail(JobFailure::new(failure.class.exit_code(), message));
            }
            Report::Unreachable { member: other } => {
                self.fleet.probe(other, &mut self.ctx);
            }
            Report::Pserver(report) => self.pserver_report(member.slot, report),
            Report::Shard { epoch, report } => self.shard_report(member, epoch, report),
            Report::Trainer(report) => self.trainer_report(member, report),
            Report::SaveModel(request) => self.save_asked(member, &request),
            Report::Exported(model) => self.exported(member, model),
            Report::ExportFailed(failed) => self.export_failed(member, &failed),
            Report::TokensInstalled { serial } => self.credentials.installed(member, serial),
        }
    }

    fn shard_report(&mut self, member: Member, epoch: Epoch, report: ShardReport) {
        let (slot, primary) = (member.slot, member);
        match report {
            ShardReport::PhaseEnded { phase, shard, step, sums } => {
                self.shard_ended(slot, epoch, phase, shard, step, sums);
            }
            ShardReport::ViewTaken { shard, term, version: _ } => {
                self.view_taken(epoch, ServedShard { primary, shard, term });
            }
            ShardReport::Lagging { shard, term, member: backup } => {
                self.backup_lags(epoch, ServedShard { primary, shard, term }, backup);
            }
            ShardReport::InSync { shard, term, member: backup, order } => {
                self.copy_filled(epoch, ServedShard { primary, shard, term }, backup, order);
            }
            ShardReport::Ahead { shard, term, member: ahead } => {
                self.copy_is_ahead(epoch, ServedShard { primary, shard, term }, ahead);
            }
            ShardReport::Drained { shard, term, version, number } => {
                self.shard_drained(primary, epoch, ShardStop { shard, term, version }, number);
            }
            // A slot that does not hold the shard any more.
            ShardReport::SnapshotTaken { shard, .. } | ShardReport::CutAborted { shard, .. }
                if !self.stage.holds(slot, shard) => {}
            ShardReport::SnapshotTaken { shard, cut, step } => {
                let (fleet, ctx) = (&self.fleet, &mut self.ctx);
                let ended = self.checkpoints.snapped(cut, epoch, shard, step, fleet, ctx);
                self.cut_ended(ended);
            }
            ShardReport::CutAborted { shard, cut, step, reason } => {
                self.shard_gave_up(slot, cut, epoch, shard, step, &reason);
            }
        }
    }

    fn pserver_report(&mut self, slot: Slot, report: PserverReport) {
        match report {
            PserverReport::ShardsReady { epoch, from_memory, from_storage, loaded } => {
                if epoch == self.ctx.epoch() {
                    self.stage.losses_mut().loaded(&loaded);
                    self.stage.restored(slot, RestoredShards { from_memory, from_storage });
                }
            }
            PserverReport::LoadFailed { epoch, failure } => {
                self.load_failed(slot, epoch, &failure);
            }
            PserverReport::CopiesPassedOver { epoch, shard, passed } => {
                self.copies_passed_over(slot, epoch, shard, &passed);
            }
            PserverReport::Begun { epoch, phase } => {
                if self.work.is_current(epoch, phase, &self.ctx) {
                    self.phase_begun(slot);
                }
            }
            PserverReport::CutArmed { cut, epoch } => {
                self.checkpoints.armed(slot, cut, epoch, &self.ctx);
            }
            PserverReport::Saved { cut, epoch, file, tables } => {
                self.shard_saved(slot, cut, epoch, file, tables);
            }
            PserverReport::SaveFailed { cut, epoch, shard, failure } => {
                // Else the slot does not hold the shard any more.
                if self.saves(slot, shard) {
                    let failed = FailedSave { slot, shard, failure };
                    let (fleet, ctx) = (&self.fleet, &mut self.ctx);
                    let ended = self.checkpoints.save_failed(cut, epoch, failed, fleet, ctx);
                    self.cut_ended(ended);
                }
            }
        }
    }

    /// A shard has given the open cut up. `step`: it is there, beyond the step that the cut names.
    fn shard_gave_up(
        &mut self,
        slot: Slot,
        cut: CutId,
        epoch: Epoch,
        shard: ShardId,
        step: Option<Step>,
        cause: &str,
    ) {
        let Some(given_up) = self.checkpoints.can_be_given_up(cut, epoch, &self.ctx) else {
            return;
        };
        if let Some(step) = step.filter(|_| given_up.phase == self.work.phase()) {
            self.work.saw_step(step, &self.ctx);
            self.fleet.shard_at(slot, epoch, given_up.phase, step);
        }
        if given_up.can_name_later_step && self.stage.is_working() {
            return self.checkpoints.name_later_step(&self.fleet, &mut self.ctx);
        }
        let checkpoints = &mut self.checkpoints;
        let ended = checkpoints.shard_gave_up(slot, shard, step, cause, &self.fleet, &mut self.ctx);
        self.cut_ended(ended);
    }

    fn trainer_report(&mut self, member: Member, report: TrainerReport) {
        match report {
            TrainerReport::AtBarrier { cut, epoch, tasks } => {
                self.checkpoints.at_barrier(member, cut, epoch, &tasks, &self.ctx);
            }
            TrainerReport::Progress { epoch, phase, cut, tasks } => {
                if self.work.is_current(epoch, phase, &self.ctx)
                    && self.work.task_progress(member, &tasks)
                {
                    self.checkpoints.task_progress(member, cut, &tasks);
                }
            }
            TrainerReport::TaskFinished { epoch, phase, cut, task, attempt, metrics } => {
                if self.work.is_current(epoch, phase, &self.ctx) {
                    self.task_finished(member, cut, task, attempt, *metrics);
                }
            }
            TrainerReport::TaskSteps { phase, task, steps, metrics } => {
                self.work.set_task_steps(task, steps);
                self.add_metrics(phase, task, *metrics);
            }
            TrainerReport::LaneFenced { epoch, phase, lane } => {
                // While no work is dispatched, the lane is sent with the work.
                if self.work.is_current(epoch, phase, &self.ctx)
                    && self.work.lane_fenced(member, lane)
                    && self.stage.is_working()
                {
                    self.work.send_lanes(member, &self.fleet, &mut self.ctx);
                }
            }
            TrainerReport::Stepping { epoch } => {
                if epoch == self.ctx.epoch() {
                    self.stepping(member);
                }
            }
            TrainerReport::TaskFailed { epoch, phase, task, attempt, retryable, failure } => {
                if self.work.is_current(epoch, phase, &self.ctx) {
                    self.task_failed(member, task, attempt, retryable, &failure);
                }
            }
            TrainerReport::Withdrawn { tasks } => self.work.withdrawn(member, &tasks, &self.ctx),
            TrainerReport::Drained { epoch, phase, tasks } => {
                if self.work.is_current(epoch, phase, &self.ctx) {
                    self.work.task_progress(member, &tasks);
                }
                self.drained(member);
            }
        }
    }

    fn heartbeat(&mut self, member: Member, beat: HeartbeatStats) {
        let step = self.work.is_current(beat.epoch, beat.phase, &self.ctx).then_some(beat.step);
        let (record_ns, control_lost_ms) = (beat.record_ns, beat.control_lost_ms);
        if let Some(progress) = beat.export.as_deref() {
            self.export_progressed(member, *progress);
        }
        self.fleet.heartbeat(member, beat, &mut self.ctx);
        if let Some(ago_ms) = control_lost_ms.filter(|_| self.ctx.attempt().0 > 1) {
            self.stage.recoveries_mut().am_was_lost(ago_ms, &mut self.ctx);
        }
        self.work.heartbeat(member, step, record_ns, &self.ctx);
        let working = self.stage.is_working();
        self.checkpoints.check_steps(working, &self.work, &self.fleet, &self.ctx);
        if self.work.take_back_doubtful(member) {
            self.assign_tasks();
        }
    }

    fn task_finished(
        &mut self,
        member: Member,
        cut: CutId,
        task: TaskId,
        attempt: TaskAttempt,
        metrics: TaskMetrics,
    ) {
        let (fleet, ctx) = (&self.fleet, &mut self.ctx);
        let Some(holders) = self.work.task_finished(member, task, attempt, fleet, ctx) else {
            return;
        };
        self.checkpoints.task_finished(member, cut, task);
        if let Some(steps) = metrics.steps
            && self.recovers_locally()
            && self.work.takes_pushes()
        {
            self.work.set_task_steps(task, steps);
        }
        self.add_metrics(self.work.phase(), task, metrics);
        if self.stage.is_working() {
            self.work.assign_tasks_after(&holders, &self.fleet, &mut self.ctx);
        }
    }

    fn task_failed(
        &mut self,
        member: Member,
        task: TaskId,
        attempt: TaskAttempt,
        retryable: bool,
        failure: &Failure,
    ) {
        if retryable {
            self.fleet.task_failed_on(member, task, &self.ctx);
        }
        match self.work.task_failed(member, task, attempt, retryable, failure, &mut self.ctx) {
            Ok(true) => self.assign_tasks(),
            Ok(false) => {}
            // Another storage, another day: the values are good. An algorithm's error may be that they are not.
            Err(failure) if retryable => self.give_up(failure),
            Err(failure) => self.fail(failure),
        }
    }

    /// The tasks whose steps are computed without end get an error; their trainers are given up next.
    pub(super) fn record_stuck_steps(&mut self) {
        for (member, step) in self.fleet.stuck_steps() {
            let beat = self
                .fleet
                .member(member)
                .map(|holder| (holder.heartbeat.epoch, holder.heartbeat.phase));
            if beat.is_some_and(|(epoch, phase)| self.work.is_current(epoch, phase, &self.ctx))
                && let Err(failure) = self.work.task_stuck(member, step, &mut self.ctx)
            {
                self.give_up(failure);
            }
        }
    }

    fn add_metrics(&mut self, phase: PhaseNo, task: TaskId, metrics: TaskMetrics) {
        if let Err(failure) = self.work.add_metrics(phase, task, metrics, &mut self.ctx) {
            self.fail(failure);
        }
    }

    /// A trainer has taken its first step in the epoch.
    fn stepping(&mut self, member: Member) {
        self.work.steps_again(member);
        if self.stage.recoveries().is_any_open() {
            let all = self.work.all_step(&self.fleet);
            self.stage.recoveries_mut().stepping(member, all, &mut self.ctx);
        }
    }
}
