//! What a phase's records add up to, and whether training still gets better.

use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::ids::{PhaseNo, TaskId};
use heddle_protocol::metrics::TaskMetrics;
use heddle_protocol::mutation::Mutation;
use heddle_protocol::spec::{Algorithm, BadRecords, PhaseKind, phase_kind};
use heddle_protocol::view::{self, EvaluationView};

use crate::core::Core;
use crate::record::Record;

impl Core {
    /// Takes in what a task's records add up to; ends the job when too many were bad.
    pub(crate) fn add_metrics(&mut self, phase: PhaseNo, task: TaskId, metrics: TaskMetrics) {
        let (bad, rows) = (metrics.bad_records, metrics.rows);
        let negatives = metrics.negatives.clone();
        if phase != self.phase.no || !self.phase.metrics.add(task, metrics) {
            return;
        }
        let training = self.phase.kind.is_some_and(PhaseKind::reads_training_data);
        if !training {
            self.statistics.evaluated_rows = self.statistics.evaluated_rows.saturating_add(rows);
        }
        if let Some(message) = self.statistics.third_class(training, negatives)
            && self.config.spec.model.algorithm == Algorithm::LogisticRegression
        {
            return self.fail(ExitCode::Input, message);
        }
        if bad == 0 {
            return;
        }
        let in_phase = self.phase.metrics.bad_records();
        let is_first = self.statistics.bad_records() == 0;
        self.statistics.met_bad(training, in_phase);
        if is_first {
            // One warning for a run: the summary has their number.
            let examples: Vec<&str> = self.phase.metrics.bad_examples(3).collect();
            self.warn(format!(
                "bad records are left out and counted; the first: {}",
                examples.join("; ")
            ));
        }
        if let BadRecords::Skip(most) = self.config.spec.data.bad_records
            && in_phase > most
        {
            let examples: Vec<&str> = self.phase.metrics.bad_examples(3).collect();
            let message = format!(
                "{in_phase} bad records in a pass, more than the {most} of data.bad-records: {}; raise it, or set them \
                 apart with \"quarantine\"; if many are like it, see data.format",
                examples.join("; ")
            );
            self.fail(ExitCode::Input, message);
        }
    }

    pub(crate) fn evaluated(&mut self, pass: u32) {
        let summary = self.phase.metrics.summary();
        let (Some(log_loss), Some(accuracy)) = (summary.mean_loss(), summary.accuracy()) else {
            return self.warn(format!("evaluation after pass {} found no records", pass + 1));
        };
        let scores = EvaluationView {
            pass,
            rows: summary.rows,
            // JSON has no infinity, and a manifest that cannot be read back would be worse than a blunt number.
            log_loss: if log_loss.is_finite() { log_loss } else { f64::MAX },
            // With one class only it may be anything.
            auc: summary.auc.map_or(0.5, |auc| auc.value),
            auc_error: summary.auc.map_or(0.5, |auc| auc.error),
            accuracy,
        };
        let (epoch, phase) = (self.epoch, self.phase.no);
        let record = Record::Evaluated { epoch, phase, scores: scores.clone() };
        match self.config.spec.training.early_stop {
            0 => self.out.journal(record),
            _ if Mutation::ScoreNotDurable.is_on() => self.out.journal(record),
            // When training ends follows from it: a successor that lacks it would train another number of passes.
            _ => self.out.decide(record),
        };
        self.evaluations.push((phase, scores.clone()));
        self.notice(view::Event::Evaluated(scores));
    }

    /// Whether training ends before this phase: it is beyond the last, or it follows an evaluation and there
    /// were so many evaluations in a row without a better loss than before them.
    pub(crate) fn is_over_before(&self, no: PhaseNo) -> bool {
        let spec = &self.config.spec;
        let follows = no.0.checked_sub(1).and_then(|before| phase_kind(spec, PhaseNo(before)));
        let follows_evaluation = matches!(follows, Some(PhaseKind::Evaluate { .. }));
        phase_kind(spec, no).is_none() || (follows_evaluation && self.has_stopped_improving(no))
    }

    /// Why training ends before its last pass: for people, once, when an evaluation has decided it.
    pub(crate) fn tell_early_stop(&mut self) {
        let patience = self.config.spec.training.early_stop;
        let by_loss = |a: &&EvaluationView, b: &&EvaluationView| a.log_loss.total_cmp(&b.log_loss);
        let scores = || self.evaluations.iter().map(|(_, scores)| scores);
        let (Some(best), Some(last)) = (scores().min_by(by_loss), scores().next_back()) else {
            return;
        };
        self.warn(format!(
            "training stops early, after pass {} of {}: {patience} evaluations in a row (training.early-stop) without a lower log-loss than {:.4} after pass {}; the model is that of pass {}, with {:.4}",
            last.pass + 1,
            self.config.spec.data.passes,
            best.log_loss,
            best.pass + 1,
            last.pass + 1,
            last.log_loss,
        ));
    }

    /// Whether the evaluations before this phase show no better loss. A later one says nothing of the state at its
    /// beginning: a checkpoint of that state may be committed after it.
    fn has_stopped_improving(&self, before: PhaseNo) -> bool {
        let patience = self.config.spec.training.early_stop as usize;
        let all = Mutation::LaterScoreEndsTraining.is_on();
        let earlier = self.evaluations.iter().filter(|(of, _)| *of < before || all);
        let losses: Vec<f64> = earlier.map(|(_, scores)| scores.log_loss).collect();
        if patience == 0 || losses.len() <= patience {
            return false;
        }
        let (before, lately) = losses.split_at(losses.len() - patience);
        let best = before.iter().copied().fold(f64::INFINITY, f64::min);
        !lately.iter().any(|loss| *loss < best)
    }
}
