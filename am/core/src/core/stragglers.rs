//! Slow trainers: their lanes move, their tasks are shared, and those that are far too slow are replaced.

use heddle_protocol::ids::Member;
use heddle_protocol::view::WarningCode;

use super::Core;
use crate::work::lane_speed::LaneDecision;

/// Thousandths of the median computing time for a record from which a trainer is named in a warning.
const WARNED_TIMES: u64 = 1_500;

impl Core {
    /// Compares the trainers, once a second while work is dispatched.
    pub(super) fn compare_trainers(&mut self) {
        if !self.stage.is_working() {
            return;
        }
        for loser in self.work.overdue_losers(&self.ctx) {
            let slot = loser.slot;
            self.ctx.warn(WarningCode::TrainerNotStopping, format!(
                "{slot} does not stop work on a task that another trainer has finished: it is replaced"
            ));
            self.fleet.is_slow(loser, &self.ctx);
            self.drain(slot);
        }
        self.assign_tasks();
        self.want_extra_trainer();
        self.release_idle_trainers();
        match self.work.compare_lanes(&self.fleet, &mut self.ctx) {
            None => {}
            Some(LaneDecision::Divide { slowest, times }) => {
                // Lanes move back too when a trainer has become as fast as the others, without a warning.
                if times >= WARNED_TIMES {
                    let text = self.slow_text(slowest, times);
                    self.ctx.warn(
                        WarningCode::TrainerSlow,
                        format!("{text}: lanes are divided by the trainers' speeds"),
                    );
                }
                self.share_lanes();
            }
            Some(LaneDecision::Replace { slowest, times }) => {
                let text = self.slow_text(slowest, times);
                self.ctx.warn(WarningCode::SlowTrainerReplaced, format!("{text}: it is replaced"));
                self.fleet.is_slow(slowest, &self.ctx);
                self.drain(slowest.slot);
                // It hands back its lanes after its step; the others need not wait for that.
                self.share_lanes();
            }
        }
    }

    /// A late task that no idle trainer has taken gets an extra trainer.
    fn want_extra_trainer(&mut self) {
        if self.ctx.config().spec.trainers.extra == 0 {
            return;
        }
        if self.work.has_waiting_overdue_task(&self.ctx)
            && let Some(slot) = self.fleet.want_extra_trainer()
        {
            self.ctx.warn(WarningCode::ExtraTrainerStarted, format!(
                "a task is late and no trainer is idle: {slot} is started for it (trainers.extra)"
            ));
        }
    }

    /// Trainers that have long been idle leave until there is work; a late task that waits for an idle one recalls it.
    fn release_idle_trainers(&mut self) {
        let workers = self.fleet.workers();
        if self.work.has_waiting_overdue_task(&self.ctx) {
            self.fleet.recall_trainers(workers.len() + 1);
        }
        let idle = self.work.without_work(workers);
        for slot in self.fleet.release_idle_trainers(idle, &mut self.ctx) {
            self.drain(slot);
        }
    }

    /// A phase is over: extra trainers leave, unless a task of it was late.
    pub(super) fn leave_extra_trainers(&mut self) {
        if self.work.had_overdue_task() == Some(false) {
            for slot in self.fleet.leave_extra_trainers(&mut self.ctx) {
                self.drain(slot);
            }
        }
    }

    /// `trainer-3 on node-b needs 4.0 times as long for a record as the median trainer`.
    fn slow_text(&self, trainer: Member, times: u64) -> String {
        let slot = trainer.slot;
        let place = match self.fleet.node(slot) {
            Some(node) => format!("{slot} on {node}"),
            None => slot.to_string(),
        };
        let times = times as f64 / 1000.0;
        format!("{place} needs {times:.1} times as long for a record as the median trainer")
    }
}
