//! Evaluation: what the records of a phase add up to, and whether training still improves.

use std::collections::BTreeMap;

use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::figure::{Figure, decimal};
use heddle_protocol::ids::{PhaseNo, TaskId};
use heddle_protocol::job_spec::{
    AlgorithmKind, BadRecords, JobSpec, KeptPass, LabelRange, LabelScaling, LossFunction, job_phase,
};
use heddle_protocol::manifest::Manifest;
use heddle_protocol::metrics::{TaskMetrics, too_many_bad};
use heddle_protocol::mutation::Mutation;
use heddle_protocol::view::{self, EvaluationView, WarningCode};

use super::JobWork;
use super::training_loss::{RESULTS_MAX, known_passes, known_results};
use crate::context::Context;
use crate::failure::JobFailure;
use crate::record::Record;
use crate::time::MonotonicMs;

/// Scores before the base, from its manifest, and those journaled since, unless a rollback made them false.
pub(crate) fn known_evaluations(
    spec: &JobSpec,
    base: Option<&Manifest>,
    journal: &[Record],
) -> Vec<(PhaseNo, EvaluationView)> {
    // Scores name their pass: one may be missing.
    let scores = base.iter().flat_map(|base| &base.evaluations);
    let of_pass: BTreeMap<u32, &EvaluationView> =
        scores.map(|scores| (scores.pass, scores)).collect();
    let of_base = |no| Some(EvaluationView::clone(of_pass.get(&job_phase(spec, no)?.scores?)?));
    known_results(base, of_base, journal, |record| match record {
        Record::Evaluated { phase, scores, .. } => Some((*phase, scores)),
        _ => None,
    })
}

/// Whether the end of training follows from scores: a successor that lacks one would train another number of passes.
pub(crate) fn scores_may_end(spec: &JobSpec) -> bool {
    spec.training.early_stop > 0 || spec.model.tolerance > 0.0
}

/// Adds the results of phases whose results are missing, in their order.
fn add_missing<T>(to: &mut Vec<(PhaseNo, T)>, results: Vec<(PhaseNo, T)>) {
    for (of, result) in results {
        if let Err(at) = to.binary_search_by_key(&of, |(phase, _)| *phase) {
            to.insert(at, (of, result));
        }
    }
}

impl JobWork {
    /// Takes in what the records of a task add up to.
    ///
    /// # Errors
    /// The data has a third class, or more bad records than the job file allows: the job ends.
    pub(crate) fn add_metrics(
        &mut self,
        phase: PhaseNo,
        task: TaskId,
        metrics: TaskMetrics,
        ctx: &mut Context,
    ) -> Result<(), JobFailure> {
        let (bad, rows) = (metrics.bad_records, metrics.rows);
        let config = ctx.config();
        let training =
            job_phase(&config.spec, phase).is_some_and(|phase| phase.reads_training_data);
        // A fact about the data, also where the phase has ended meanwhile.
        let negatives = metrics.negatives.clone();
        if let Some(message) = self.statistics.third_class(training, negatives)
            && config.spec.model.algorithm != AlgorithmKind::Custom
            && config.spec.model.labels() == LabelRange::TwoClasses
        {
            return Err(JobFailure::new(ExitCode::Input, message));
        }
        if phase != self.phase.no || !self.phase.metrics.add(task, metrics) {
            return Ok(());
        }
        if !training {
            self.statistics.evaluated_rows = self.statistics.evaluated_rows.saturating_add(rows);
        }
        if bad == 0 {
            return Ok(());
        }
        let in_phase = self.phase.metrics.bad_records();
        let is_first = self.statistics.bad_records() == 0;
        self.statistics.met_bad(training, in_phase);
        let first = self.phase.metrics.first_bad();
        if is_first {
            // One warning for a run: the summary has their number.
            ctx.warn(
                WarningCode::BadRecords,
                format!("bad records are left out and counted; the first: {first}"),
            );
        }
        match config.spec.data.bad_records {
            BadRecords::Skip(most) if in_phase > most => {
                Err(JobFailure::new(ExitCode::Input, too_many_bad(most, first)))
            }
            _ => Ok(()),
        }
    }

    /// Until when the present phase waits for figures that are not reported, `latest` if it has not waited before. `None`:
    /// all are there, or the pass has no figures of its own.
    pub(crate) fn figures_until(
        &mut self,
        latest: MonotonicMs,
        ctx: &Context,
    ) -> Option<MonotonicMs> {
        let config = ctx.config();
        let training = self.phase.reads_training_data();
        // Bad records are counted with the tasks that have them.
        let counts = config.spec.data.bad_records != BadRecords::Fail
            || self.phase.kind.is_some_and(|phase| phase.scores.is_some());
        let complete = self.phase.metrics.tasks() >= config.plan.train.len();
        (training && counts && !complete).then(|| *self.phase.figures_until.get_or_insert(latest))
    }

    /// The present phase has ended, and its figures are those of a pass.
    pub(crate) fn evaluated(&mut self, pass: u32, ctx: &mut Context) {
        let summary = self.phase_summary();
        let loss = ctx.config().spec.model.objective();
        let Some(mut figures) = summary.figures(loss) else {
            return ctx.warn(
                WarningCode::EmptyEvaluation,
                format!("evaluation after pass {} found no records", pass + 1),
            );
        };
        let config = ctx.config();
        let training = self.phase.reads_training_data();
        let is_partial = summary.tasks < config.plan.train.len() as u64;
        if training && is_partial && self.phase.sums.is_none() {
            // Tasks that a checkpoint held as done are not read again: their distances are not known.
            figures.remove(Figure::Inertia);
        }
        let scores = EvaluationView { pass, rows: summary.rows, figures };
        let (epoch, phase) = (ctx.epoch(), self.phase.no);
        let record = Record::Evaluated { epoch, phase, scores: scores.clone() };
        match scores_may_end(&config.spec) {
            false => ctx.journal(record),
            _ if Mutation::ScoreNotDurable.is_on() => ctx.journal(record),
            _ => ctx.journal_decision(record),
        };
        self.evaluations.push((phase, scores.clone()));
        self.forget_old_evaluations(config.spec.training.early_stop as usize);
        ctx.notice(view::JobEvent::Evaluated(scores));
    }

    /// The scores of all evaluations, in their order.
    pub(crate) fn scores(&self) -> Vec<EvaluationView> {
        self.evaluations.iter().map(|(_, scores)| scores.clone()).collect()
    }

    /// Keeps the newest scores, as many as early stop compares, and the best ones.
    fn forget_old_evaluations(&mut self, early_stop: usize) {
        while self.evaluations.len() > RESULTS_MAX.max(early_stop + 1) {
            let best = self.lowest_loss().map(|scores| scores.pass);
            let is_best = self.evaluations.first().map(|(_, scores)| scores.pass) == best;
            self.evaluations.remove(usize::from(is_best));
        }
    }

    /// Adds losses and scores that the base has. A successor whose containers had not finished a phase lacks those of that
    /// phase, while the base may be of its end.
    pub(super) fn add_results_of(&mut self, base: Option<&Manifest>, ctx: &Context) {
        let spec = &ctx.config().spec;
        add_missing(&mut self.evaluations, known_evaluations(spec, base, &[]));
        add_missing(&mut self.passes, known_passes(spec, base, &[]));
    }

    /// Forgets the losses and scores of this phase and of later ones: they will be computed again.
    pub(crate) fn keep_results_before(&mut self, phase: PhaseNo) {
        self.evaluations.retain(|(of, _)| *of < phase);
        self.passes.retain(|(of, _)| *of < phase);
        // Tasks of the phase are tried again.
        self.set_aside.retain(|entry| entry.phase < phase);
    }

    /// Whether training ends before this phase: it is beyond the last, or it follows an evaluation and
    /// `training.early-stop` evaluations in a row did not lower the loss.
    pub(crate) fn is_over_before(&self, no: PhaseNo, ctx: &Context) -> bool {
        let config = ctx.config();
        let spec = &config.spec;
        let before = no.0.checked_sub(1).map(PhaseNo);
        let follows = before.and_then(|before| job_phase(spec, before)?.scores);
        job_phase(spec, no).is_none()
            || (follows.is_some()
                && (self.has_stopped_improving(no, spec) || self.has_converged(no, spec)))
    }

    /// K-means: whether the centres moved less than the tolerance before the last evaluation.
    fn has_converged(&self, before: PhaseNo, spec: &JobSpec) -> bool {
        let last = self.evaluations.iter().rfind(|(of, _)| *of < before);
        let moved = last.and_then(|(_, scores)| scores.figures.get(Figure::Moved));
        moved.is_some_and(|moved| moved < spec.model.tolerance)
    }

    /// The pass whose evaluation the present phase is, if it is over and better than all before, and the best pass is to
    /// be kept.
    pub(crate) fn best_pass(&self, ctx: &Context) -> Option<u32> {
        if ctx.config().spec.training.keep != KeptPass::Best {
            return None;
        }
        let (last, before) = self.evaluations.split_last()?;
        let loss = last.1.loss();
        let is_best = before.iter().all(|(_, scores)| loss < scores.loss());
        (last.0 == self.phase.no && is_best).then_some(last.1.pass)
    }

    /// The evaluation with the lowest loss; of equal ones the first.
    pub(crate) fn lowest_loss(&self) -> Option<&EvaluationView> {
        EvaluationView::best(self.evaluations.iter().map(|(_, scores)| scores))
    }

    /// Reports that training ends before its last pass. Called once, when an evaluation has decided it.
    pub(crate) fn report_early_stop(&self, ctx: &mut Context) {
        let config = ctx.config();
        let early_stop = config.spec.training.early_stop;
        if self.has_converged(self.phase.no.next(), &config.spec) {
            return self.report_convergence(ctx);
        }
        let (Some(best), Some((_, last))) = (self.lowest_loss(), self.evaluations.last()) else {
            debug_assert!(false, "an evaluation has just ended");
            return;
        };
        let model = match config.spec.training.keep {
            KeptPass::Last => last,
            KeptPass::Best => best,
        };
        ctx.notice(view::JobEvent::StoppedEarly {
            text: format!(
            "training stops early, after pass {} of {}: {early_stop} evaluations in a row (training.early-stop) without a lower {} than {} after pass {}; the model is that of pass {}, with {}",
            last.pass + 1,
            config.spec.data.passes,
            config.spec.model.objective().figures()[0].name(),
            decimal(best.loss(), 4),
            best.pass + 1,
            model.pass + 1,
            decimal(model.loss(), 4),
        )});
    }

    /// Warns if the model that comes out is worse than one without features on the records of the present phase, the last
    /// of training.
    pub(crate) fn warn_if_worse_than_constant(&self, ctx: &mut Context) {
        let config = ctx.config();
        let model = &config.spec.model;
        if model.algorithm == AlgorithmKind::Custom {
            return;
        }
        let summary = self.phase.metrics.summary();
        let evaluation = match config.spec.training.keep {
            KeptPass::Last => self.evaluations.last().map(|(_, scores)| scores),
            KeptPass::Best => self.lowest_loss(),
        };
        let figure = match evaluation {
            Some(scores) => scores.figures.loss(),
            None => summary.figures(model.objective()).and_then(|figures| figures.loss()),
        };
        let constant = summary.constant(model.objective(), model.classes);
        let (Some((figure, value)), Some(constant)) = (figure, constant) else { return };
        // A model that diverged is worse too.
        if value <= constant {
            return;
        }
        let data = if evaluation.is_some() { "test data" } else { "training data" };
        let key = match (model.objective(), model.scale_labels) {
            (LossFunction::Squared, LabelScaling::Off) => "model.scale-labels = \"auto\"",
            _ if !model.standardise && !model.any_features() => "model.standardise = true",
            _ => "a lower rate in model.optimizer",
        };
        ctx.warn(
            WarningCode::WorseThanConstant,
            format!(
                "the model is worse than one without features: {} {} on the {data}, {} for the same answer to every record; try {key}",
                figure.name(),
                decimal(value, 4),
                decimal(constant, 4),
            ),
        );
    }

    fn report_convergence(&self, ctx: &mut Context) {
        let config = ctx.config();
        let Some((_, last)) = self.evaluations.last() else { return };
        ctx.notice(view::JobEvent::StoppedEarly {
            text: format!(
                "training stops after pass {} of {}: the squared movement of the centres, {} of the variance, is below model.tolerance = {}",
                last.pass + 1,
                config.spec.data.passes,
                match last.figures.get(Figure::Moved).unwrap_or_default() {
                    0.0 => "0".to_owned(),
                    moved => format!("{moved:.3e}"),
                },
                config.spec.model.tolerance,
            ),
        });
    }

    /// Whether the evaluations before this phase do not show a lower loss. A later evaluation does not measure the state
    /// at the beginning of the phase: a checkpoint of that state may be committed after it.
    fn has_stopped_improving(&self, before: PhaseNo, spec: &JobSpec) -> bool {
        let early_stop = spec.training.early_stop as usize;
        let all = Mutation::LaterScoreEndsTraining.is_on();
        let earlier = self.evaluations.iter().filter(|(of, _)| *of < before || all);
        let losses: Vec<f64> = earlier.map(|(_, scores)| scores.loss()).collect();
        if early_stop == 0 || losses.len() <= early_stop {
            return false;
        }
        let (before, recent) = losses.split_at(losses.len() - early_stop);
        let best = before.iter().copied().fold(f64::INFINITY, f64::min);
        !recent.iter().any(|loss| *loss < best)
    }
}
