//! The last save: a job that fails while its shards are whole becomes a checkpoint first, within `checkpoint.last-save`.
//!
//! **Rule.** Failures of trainers' containers and of storage that tasks read: the values have no part in them. An algorithm's
//! own error, values that are not numbers, a job file or data that is wrong, and a storage that does not save end the job
//! at once. So does a failure while shards are lost, or go to a common state, or have nothing newer than the base.
//!
//! **Without trainers.** No container is requested any more, and in BSP lanes without a trainer get no other one. So training
//! stands still, and the cut names the step where the shards stand. Trainers that are left send their barriers in ASP.
//!
//! **Limits.** Where a BSP trainer died after some shards got its part of a step and others did not, the shards stand at
//! different steps until the time is over. A second failure, such as a lost pserver, ends the job at once. In each case the
//! first failure is reported, with its exit code.

use heddle_protocol::control::Sharing;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::job_spec::phase_text;

use super::Core;
use crate::checkpoint::cut::CutReason;
use crate::checkpoint::manifest::task_positions;
use crate::context::deadlines::Purpose;
use crate::failure::JobFailure;
use crate::stage::stop::{StopCause, StopOrder};
use crate::stage::{JobStage, NextStep};

impl Core {
    /// Ends the job with an error that its values have no part in: after a last checkpoint, where one is possible.
    pub(super) fn give_up(&mut self, failure: JobFailure) {
        if self.stage.saves_last() {
            return;
        }
        if !self.can_save_last() {
            return self.fail(failure);
        }
        let until = self.ctx.now() + self.ctx.config().spec.checkpoint.last_save.0;
        let message = format!("the job has failed and saves its state: {}", failure.message);
        self.ctx.set_message(message);
        self.ctx.set_deadline(Purpose::LastSave, until);
        self.stage.set_stop_order(StopOrder::for_failure(failure, until));
        self.checkpoints.want(CutReason::LastSave);
        if self.checkpoints.waits_for_work() {
            // The step that it names may never come.
            let cause = "replaced by the last one";
            let ended = self.checkpoints.give_up(cause, &self.fleet, &mut self.ctx);
            self.cut_ended(ended);
        }
    }

    fn can_save_last(&mut self) -> bool {
        self.ctx.config().spec.checkpoint.last_save.0 > 0
            && self.can_cut()
            && !matches!(self.stage.now(), JobStage::Idle(NextStep::Resume))
            && self.stage.stop_order().is_none()
            && self.stage.map().slots().all(|slot| self.fleet.answers(slot))
            && self.has_unsaved_state()
    }

    /// Whether the shards are known to be further than the base.
    pub(super) fn has_unsaved_state(&self) -> bool {
        let (phase, step) = self.checkpoints.base_position();
        if self.work.phase() != phase {
            return self.work.phase() > phase;
        }
        let base = self.checkpoints.base_manifest();
        let positions = base.map(|base| task_positions(&base.work)).unwrap_or_default();
        match self.work.sharing() {
            Sharing::Lanes { .. } => self.work.frontier() > step,
            Sharing::Queue | Sharing::ClockedQueue { .. } => {
                self.work.positions() != Some(positions)
            }
            Sharing::ReadOnly => false,
        }
    }

    /// The last checkpoint is committed.
    pub(super) fn end_saved_after_failure(&mut self) {
        let cause = self.stage.take_stop_order().map(StopOrder::into_cause);
        let (Some(StopCause::Failed(failure)), Some(base)) =
            (cause, self.checkpoints.base_manifest())
        else {
            debug_assert!(false, "a job that saves last has failed, and has just committed");
            return;
        };
        let JobFailure { exit_code, message } = failure;
        let (cut, pass) = (base.cut, phase_text(&self.ctx.config().spec, base.phase));
        self.fail(JobFailure::new(
            exit_code,
            format!(
                "{message}; saved checkpoint {cut} ({pass}) before the end: the same command continues from it"
            ),
        ));
    }

    /// `checkpoint.last-save` is over. A commit that is under way is awaited: it may succeed, and its tries are bounded.
    pub(super) fn last_save_timed_out(&mut self) {
        if self.checkpoints.is_outcome_open() {
            return;
        }
        let limit = self.ctx.config().spec.checkpoint.last_save;
        let cause = format!("it took longer than checkpoint.last-save ({limit})");
        self.stop_cut_failed(&cause, true);
    }

    /// Shards would have to return to the base: there is nothing newer to save.
    pub(super) fn lost_while_saving(&mut self, cause: &str) {
        if self.stage.saves_last() {
            self.fail(JobFailure::new(ExitCode::JobFailed, cause));
        }
    }

    /// The failure of a job that has no checkpoint newer than the base.
    pub(super) fn unsaved(&self, failure: JobFailure, cause: &str) -> JobFailure {
        let from = match self.checkpoints.base_manifest() {
            Some(base) => format!("from checkpoint {}", base.cut),
            None => "from the beginning".to_owned(),
        };
        let JobFailure { exit_code, message } = failure;
        JobFailure::new(
            exit_code,
            format!(
                "{message}; no last checkpoint was saved ({cause}): the same command continues {from}"
            ),
        )
    }
}
