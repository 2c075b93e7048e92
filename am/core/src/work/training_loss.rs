//! Training loss: what the records of a pass lost, each at the values of its own step.
//!
//! Trainers compute it with the gradient, so it costs no pass of its own. **Rule, BSP.** Each step of a lane carries its records
//! and their loss to the shards. One shard adds them up per lane, in the order of the steps, and then over the lanes; the sums are part
//! of its state, so that they are exact and the same in each run, over kills, rollbacks and takeovers. **Rule, ASP and SSP.** A task
//! counts once, with the report that finished it. The loss of a pass is journaled as a note and kept in manifests: a rollback
//! forgets the passes that are trained again. **Limit.** In ASP and SSP a takeover within a pass has the tasks of the last
//! checkpoint and those reported since; the number of records shows what is counted.

use std::collections::{BTreeMap, BTreeSet};

use heddle_metrics::{PhaseMetrics, ResumedSums, Summary};
use heddle_protocol::ids::{Lane, PhaseNo, Step, TaskId};
use heddle_protocol::job_spec::{AlgorithmKind, JobSpec, job_phase};
use heddle_protocol::manifest::Manifest;
use heddle_protocol::metrics::{CountedPhase, LossSum, RecordSums};
use heddle_protocol::view::{self, TrainingPassView};

use super::JobWork;
use super::phases::{PhaseState, PhaseWork};
use super::queue::QueueProgress;
use crate::context::Context;
use crate::record::Record;

/// Passes whose figures are kept, the newest: a job may have a hundred thousand, and each checkpoint has them all.
pub(crate) const RESULTS_MAX: usize = 1_000;

/// Losses of passes before the base, from its manifest, and those journaled since, unless a rollback made them false.
pub(crate) fn known_passes(
    spec: &JobSpec,
    base: Option<&Manifest>,
    journal: &[Record],
) -> Vec<(PhaseNo, TrainingPassView)> {
    let passes = base.iter().flat_map(|base| &base.progress.training.passes);
    let of_pass: BTreeMap<u32, &TrainingPassView> =
        passes.map(|trained| (trained.pass, trained)).collect();
    let of_base = |no| Some(TrainingPassView::clone(of_pass.get(&job_phase(spec, no)?.trains?)?));
    known_results(base, of_base, journal, |record| match record {
        Record::PassTrained { phase, trained } => Some((*phase, trained)),
        _ => None,
    })
}

/// Results of phases before the base, by its manifest, and of those that are journaled since, unless a rollback made them
/// false.
pub(super) fn known_results<T: Clone>(
    base: Option<&Manifest>,
    of_base: impl Fn(PhaseNo) -> Option<T>,
    journal: &[Record],
    of_record: impl Fn(&Record) -> Option<(PhaseNo, &T)>,
) -> Vec<(PhaseNo, T)> {
    let before = (0..base.map_or(0, |base| base.phase.0)).map(PhaseNo);
    let mut known: BTreeMap<PhaseNo, T> =
        before.filter_map(|no| Some((no, of_base(no)?))).collect();
    for record in journal {
        if let Record::Restore { phase, .. } = record {
            known.retain(|of, _| of < phase);
        } else if let Some((phase, result)) = of_record(record) {
            known.entry(phase).or_insert_with(|| result.clone());
        }
    }
    known.into_iter().collect()
}

/// The tasks of a phase that are done at a cut. `tasks`: its positions. BSP: tasks whose last step is before its job step;
/// those of unknown length count as not done.
fn done_at(
    phase: &PhaseState,
    step: Step,
    tasks: &QueueProgress,
    task_steps: &BTreeMap<TaskId, u64>,
    spec: &JobSpec,
) -> BTreeSet<TaskId> {
    if let PhaseWork::Queue(_) = phase.work {
        return tasks.done.clone();
    }
    let mut done = BTreeSet::new();
    for lane in (0..spec.training.lanes).map(Lane) {
        let mut end = 0u64;
        for task in phase.tasks_of(lane, spec) {
            let Some(steps) = task_steps.get(&task) else { break };
            end = end.saturating_add(*steps);
            if end > step.0 {
                break;
            }
            done.insert(task);
        }
    }
    done
}

impl JobWork {
    /// The phase starts with the sums of the checkpoint, unless its own tasks are known (BSP: they come again). `tasks`:
    /// the positions of the checkpoint.
    pub(crate) fn add_earlier(
        &mut self,
        base: Option<&Manifest>,
        tasks: &QueueProgress,
        ctx: &Context,
    ) {
        if let Some(base) = base
            && base.phase == self.phase.no
            && self.phase.metrics.is_empty()
        {
            let (spec, progress) = (&ctx.config().spec, &base.progress);
            let done = done_at(&self.phase, base.step(), tasks, &base.task_steps, spec);
            let earlier = ResumedSums {
                bad_records: progress.bad_records_in_phase,
                rows: progress.training.rows,
                loss: progress.training.loss,
            };
            self.phase.metrics = PhaseMetrics::after(earlier, done);
        }
    }

    /// Records of the tasks of the phase that a cut holds as done, and the sum of their losses. `step`: BSP, of the cut;
    /// `tasks`: its positions.
    pub(crate) fn trained_in_phase(
        &self,
        step: Step,
        tasks: &QueueProgress,
        ctx: &Context,
    ) -> (u64, f64) {
        let spec = &ctx.config().spec;
        let done = done_at(&self.phase, step, tasks, &self.task_steps, spec);
        let (rows, loss) = self.phase.metrics.trained(&done);
        // Manifests are JSON, which has no NaN and no infinity.
        (rows, if loss.is_finite() { loss } else { f64::MAX })
    }

    /// The losses of all passes that are over, in their order.
    pub(crate) fn passes(&self) -> Vec<TrainingPassView> {
        self.passes.iter().map(|(_, trained)| trained.clone()).collect()
    }

    /// What the records of the present phase add up to: in BSP as the shards count them with each step, once the phase has
    /// ended, else as the trainers have reported its tasks.
    pub(super) fn phase_summary(&self) -> Summary {
        let mut summary = self.phase.metrics.summary();
        if let Some(sums) = self.phase.sums {
            (summary.rows, summary.loss_sum) = (sums.rows, sums.loss.get());
        }
        summary
    }

    /// The present phase was a pass and has ended.
    pub(crate) fn pass_trained(&mut self, pass: u32, ctx: &mut Context) {
        let summary = self.phase_summary();
        let sums = RecordSums { rows: summary.rows, loss: LossSum::new(summary.loss_sum) };
        self.record_pass(self.phase.no, pass, sums, ctx);
    }

    /// BSP, after a takeover: the shards have the sums of a phase that has ended. If it is before `over_before`, the job is beyond
    /// it, and the earlier attempt need not have recorded its figures.
    pub(crate) fn take_over_counted(
        &mut self,
        counted: CountedPhase,
        over_before: PhaseNo,
        ctx: &mut Context,
    ) {
        let CountedPhase { phase, sums } = counted;
        if phase >= over_before {
            self.phase.sums = Some(sums);
        } else if let Some(pass) =
            job_phase(&ctx.config().spec, phase).and_then(|phase| phase.trains)
            && self.passes.iter().all(|(known, _)| *known < phase)
        {
            self.record_pass(phase, pass, sums, ctx);
        }
    }

    fn record_pass(&mut self, phase: PhaseNo, pass: u32, sums: RecordSums, ctx: &mut Context) {
        let loss_sum = sums.loss.get();
        // A program of the user's own need not compute a loss.
        let has_loss =
            ctx.config().spec.model.algorithm != AlgorithmKind::Custom || loss_sum != 0.0;
        let loss_sum = (has_loss && sums.rows > 0).then_some(loss_sum);
        let trained = TrainingPassView::new(pass, sums.rows, loss_sum);
        ctx.journal(Record::PassTrained { phase, trained: trained.clone() });
        self.passes.push((phase, trained.clone()));
        let old = self.passes.len().saturating_sub(RESULTS_MAX);
        self.passes.drain(..old);
        ctx.notice(view::JobEvent::PassTrained(trained));
    }
}
