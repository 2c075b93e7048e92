//! Cuts: told to all data threads, reported, saved.

use heddle_protocol::control::{CutAt, Report};
use heddle_protocol::ids::{CutId, Epoch, PhaseNo, ShardId, Step};
use heddle_shard::ShardReport;

use super::{Coordinator, Cut};
use crate::command::ToData;
use crate::layout::Moment;
use crate::save::SaveJob;
use crate::workers;

impl Coordinator {
    pub(super) fn begin_cut(
        &mut self,
        cut: CutId,
        epoch: Epoch,
        phase: PhaseNo,
        at: &CutAt,
        staging: String,
    ) {
        let known = self.cut.as_ref().is_some_and(|own| own.cut >= cut);
        if !known {
            self.cut = Some(Cut { cut, phase, staging, early: Some(Vec::new()) });
        }
        // Told again, data threads only answer.
        let report = Report::CutArmed { cut, epoch };
        self.ask(report, Some(cut), |ask| ToData::Cut { ask, cut, epoch, phase, at: at.clone() });
    }

    pub(super) fn report(&mut self, epoch: Epoch, report: ShardReport) {
        let of = match &report {
            ShardReport::PhaseEnded { shard, phase, step } => {
                let (shard, phase, step) = (*shard, *phase, *step);
                return (self.tell)(Report::PhaseEnded { epoch, phase, shard, step });
            }
            ShardReport::SnapshotTaken { cut, .. } | ShardReport::CutAborted { cut, .. } => *cut,
        };
        // All must know of a cut before any says how far it is.
        if let Some(own) = self.cut.as_mut().filter(|own| own.cut == of)
            && let Some(early) = &mut own.early
        {
            early.push((epoch, report));
            return;
        }
        match report {
            ShardReport::SnapshotTaken { shard, cut, step } => {
                (self.tell)(Report::SnapshotTaken { cut, epoch, shard, step });
                self.save(cut, epoch, shard, step);
            }
            ShardReport::CutAborted { shard, cut, step, reason } => {
                tracing::info!(%cut, %shard, reason, "let go of a cut");
                (self.tell)(Report::CutAborted { cut, epoch, shard, step, reason });
            }
            ShardReport::PhaseEnded { .. } => {}
        }
    }

    fn save(&mut self, cut: CutId, epoch: Epoch, shard: ShardId, step: Step) {
        let (Some(own), Some(job)) = (self.cut.as_ref().filter(|own| own.cut == cut), &self.job)
        else {
            return;
        };
        let Some(thread) = self.owners.get(&shard).and_then(|&owner| self.threads.get(owner))
        else {
            return;
        };
        let moment = Moment { run: job.run, cut, epoch, phase: own.phase, step };
        let config = job.shard(shard, self.owners.len());
        let staging = own.staging.clone();
        let job =
            SaveJob { moment, config, staging, thread: thread.clone(), pace: job.pace.clone() };
        self.busy += 1;
        self.workers.give(workers::Job::Save(Box::new(job)));
    }
}
