//! What registered containers say, and whom it concerns.
//!
//! Every report is checked for its epoch (and phase, cut, hand-out) by whoever takes it in: one that is about
//! something that is over says nothing and is dropped without a word.

use heddle_protocol::control::{HeartbeatStats, Report, TaskGrant, TrainerState};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::ids::{Member, Role, Slot, TaskAttempt, TaskId};

use crate::action::ConnectionId;
use crate::core::{Core, JobStage};
use crate::work::phases::Work;

impl Core {
    /// A trainer is back and may lack tasks that it was handed: the order was lost with the connection, or it has finished
    /// them and its report is about to be repeated. Reports come before heartbeats, so the next heartbeat tells which.
    pub(crate) fn sort_out_tasks(&mut self, member: Member, busy: Option<&TrainerState>) {
        let here = busy.filter(|busy| busy.epoch == self.epoch && busy.phase == self.phase.no);
        let has = here.map_or(&[][..], |busy| &busy.tasks);
        let Work::Queue(queue) = &mut self.phase.work else {
            return;
        };
        queue.progress(member, has);
        let lacks = |grant: &TaskGrant| {
            !has.iter().any(|task| task.task == grant.task && task.attempt == grant.attempt)
        };
        let doubtful: Vec<TaskGrant> = queue.held_by(member).into_iter().filter(lacks).collect();
        if let Some(holder) = self.slots.holder_mut(member.slot) {
            holder.doubtful = doubtful;
        }
    }

    /// What a trainer that came back neither holds nor has finished is todo again; shards refuse what they have of it.
    pub(crate) fn take_back_doubtful(&mut self, member: Member) {
        let Some(holder) = self.slots.holder_mut(member.slot) else {
            return;
        };
        let doubtful = std::mem::take(&mut holder.doubtful);
        if doubtful.is_empty() {
            return;
        }
        if let Work::Queue(queue) = &mut self.phase.work {
            for grant in doubtful {
                queue.take_back(member, grant.task, grant.attempt);
            }
        }
        self.feed();
    }

    pub(crate) fn report(&mut self, connection: ConnectionId, report: Report) {
        // Of a connection that was replaced or whose container was given up: nobody's word, except why it ended.
        let Some(member) = self.slots.at(connection) else {
            if let (Some(slot), Report::Fatal { failure }) =
                (self.last_words.get(&connection), report)
            {
                self.fail(failure.class.exit_code(), format!("{slot}: {failure}"));
            }
            return;
        };
        let slot = member.slot;
        self.alive(slot);
        if matches!(self.stage, JobStage::Stopping(_)) && !matches!(report, Report::Heartbeat(_)) {
            return;
        }
        let report = match &mut self.stage {
            JobStage::Takeover(takeover) => match takeover.keep(connection, report) {
                Some(report) => report,
                None => return,
            },
            _ => report,
        };
        match report {
            // The driver turns registrations into events of their own.
            Report::Register { .. } => {}
            Report::Heartbeat(beat) => self.beat(member, beat),
            Report::ShardsReady { epoch, from_memory: _, from_storage: _, load_ms: _ } => {
                self.holding(slot, epoch)
            }
            Report::LoadFailed { epoch, failure } => self.hold_failed(slot, epoch, &failure),
            Report::Begun { epoch, phase } => self.begun(slot, epoch, phase),
            Report::PhaseEnded { epoch, phase, shard, step } => {
                self.phase_ended(slot, epoch, phase, shard, step)
            }
            Report::CutArmed { cut, epoch } => self.cut_armed(slot, cut, epoch),
            Report::SnapshotTaken { cut, epoch, shard, step } => {
                self.snapped(slot, cut, epoch, shard, step)
            }
            Report::CutAborted { cut, epoch, shard, step, reason } => {
                self.let_go(slot, cut, epoch, shard, step, &reason)
            }
            Report::Saved { cut, epoch, file } => self.saved(slot, cut, epoch, file),
            Report::SaveFailed { cut, epoch, shard, failure } => {
                self.save_failed(slot, cut, epoch, shard, failure)
            }
            Report::AtBarrier { cut, epoch, tasks } => self.at_barrier(member, cut, epoch, &tasks),
            Report::Progress { epoch, phase, cut, tasks } => {
                if epoch == self.epoch
                    && phase == self.phase.no
                    && let Work::Queue(queue) = &mut self.phase.work
                {
                    queue.progress(member, &tasks);
                    self.cut_progress(member, cut, &tasks);
                }
            }
            Report::TaskFinished { epoch, phase, cut, task, attempt, metrics } => {
                if epoch == self.epoch
                    && phase == self.phase.no
                    && let Work::Queue(queue) = &mut self.phase.work
                    && let Some(holders) = queue.finished(member, task, attempt)
                {
                    self.cut_finished(member, cut, task);
                    self.add_metrics(phase, task, *metrics);
                    self.feed_after(&holders);
                }
            }
            Report::TaskSteps { phase, task, steps, metrics } => {
                self.task_steps.insert(task, steps);
                self.add_metrics(phase, task, *metrics);
            }
            Report::LaneFenced { epoch, phase, lane } => {
                if epoch == self.epoch && phase == self.phase.no {
                    self.lane_fenced(member, lane);
                }
            }
            Report::Stepping { epoch } => {
                if epoch == self.epoch {
                    self.recoveries_stepping(member);
                }
            }
            Report::TaskFailed { epoch, phase, task, attempt, retryable, error } => {
                if epoch == self.epoch && phase == self.phase.no {
                    self.task_failed(member, task, attempt, retryable, &error);
                }
            }
            Report::Drained { epoch, phase, tasks } => {
                if epoch == self.epoch
                    && phase == self.phase.no
                    && let Work::Queue(queue) = &mut self.phase.work
                {
                    queue.progress(member, &tasks);
                }
                self.drained(member);
            }
            Report::Unreachable { member: other } => self.probe(other),
            Report::Exported { checkpoint, dir, files } => {
                self.exported(member, &checkpoint, dir, files)
            }
            Report::ExportFailed { checkpoint, failure } => {
                self.export_failed(member, &checkpoint, &failure)
            }
            Report::Fatal { failure } => {
                self.fail(failure.class.exit_code(), format!("{slot}: {failure}"))
            }
        }
    }

    pub(crate) fn alive(&mut self, slot: Slot) {
        let now = self.now.mono;
        if let Some(holder) = self.slots.holder_mut(slot) {
            holder.heard = now;
            holder.suspect = false;
        }
    }

    pub(crate) fn beat(&mut self, member: Member, beat: HeartbeatStats) {
        let now = self.now.mono;
        let current = beat.epoch == self.epoch && beat.phase == self.phase.no;
        let (compute_ms, step) = (beat.compute_ms, beat.step);
        self.input_wait(member.slot, beat.input_wait.as_ref());
        if let Some(ago_ms) = beat.control_lost_ms.filter(|_| self.attempt.0 > 1) {
            self.am_was_lost(ago_ms);
        }
        if member.slot.role == Role::Trainer {
            self.note_outages(member, &beat.unreachable);
        }
        if let Some(holder) = self.slots.holder_mut(member.slot) {
            let span_ms = now.since(holder.beat_at);
            let (before, after) = match member.slot.role {
                Role::Pserver => (holder.beat.pushes, beat.pushes),
                Role::Trainer => (holder.beat.rows, beat.rows),
            };
            if span_ms > 0 {
                holder.per_second = after.saturating_sub(before) as f64 * 1000.0 / span_ms as f64;
            }
            self.steps = self.steps.saturating_add(beat.steps.saturating_sub(holder.beat.steps));
            holder.beat = beat;
            holder.beat_at = now;
        }
        match &mut self.phase.work {
            Work::Lanes(_) if current => self.saw_step(step),
            Work::Queue(queue) if member.slot.role == Role::Trainer => {
                queue.computed(member, compute_ms)
            }
            Work::Lanes(_) | Work::Queue(_) => {}
        }
        self.check_steps();
        self.take_back_doubtful(member);
    }

    pub(crate) fn task_failed(
        &mut self,
        member: Member,
        task: TaskId,
        attempt: TaskAttempt,
        retryable: bool,
        error: &str,
    ) {
        if !retryable {
            return self.fail(ExitCode::Input, error.to_owned());
        }
        let errors = match &mut self.phase.work {
            Work::Queue(queue) => queue.failed(member, task, attempt),
            // Its trainer has tried for minutes, and a lane's tasks cannot go to another: without this one
            // every lane would wait for ever.
            Work::Lanes(_) => {
                return self
                    .fail(ExitCode::Unreachable, format!("task {task} cannot be read: {error}"));
            }
        };
        let Some(errors) = errors else { return };
        if errors >= self.config.limits.task_errors {
            return self.fail(
                ExitCode::Unreachable,
                format!("task {task} failed {errors} times, last: {error}"),
            );
        }
        self.warn(format!("task {task} failed on {}: {error}", member.slot));
        self.feed();
    }
}
