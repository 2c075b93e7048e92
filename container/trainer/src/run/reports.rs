//! What the training loop reports to the ApplicationMaster.

use std::time::{Duration, Instant};

use heddle_client::machine::{Era, Unit};
use heddle_protocol::control::{Report, TaskPosition, TrainerReport};
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::ids::{CutId, Step, TaskAttempt, TaskId};
use heddle_protocol::job_spec::{AlgorithmKind, JobSpec, ModelSpec};
use heddle_protocol::metrics::TaskMetrics;

/// Shortest time between two reports of task positions (ASP).
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// Sink of reports.
pub(super) type ReportSink = Box<dyn FnMut(Report) + Send>;

/// The message about a gradient that holds NaN or infinity. `place` is its table and shard.
fn diverged(unit: Unit, step: Step, place: &str, model: &ModelSpec) -> String {
    let can_scale = model.algorithm != AlgorithmKind::Custom && !model.any_features();
    let next = match (model.algorithm, can_scale && !model.standardise) {
        (AlgorithmKind::Kmeans, false) => "give the columns in larger units",
        (AlgorithmKind::Kmeans, true) => "set model.standardise = true",
        (_, false) => "lower the rate of model.optimizer",
        (_, true) => "lower the rate of model.optimizer, set model.standardise = true",
    };
    format!(
        "the gradient of step {step} of {unit} holds NaN or infinity ({place}): training diverges; {next}, \
         or allow it with training.nan = \"skip\""
    )
}

/// Sends reports, each with the last cut that this process has passed.
pub(super) struct LoopReports {
    sink: ReportSink,
    cut: CutId,
    last_progress: Instant,
}

impl LoopReports {
    pub(super) fn new(sink: ReportSink) -> Self {
        Self { sink, cut: CutId::default(), last_progress: Instant::now() }
    }

    pub(super) fn send(&mut self, report: impl Into<Report>) {
        (self.sink)(report.into());
    }

    /// The last cut that this process has passed.
    pub(super) fn cut(&self) -> CutId {
        self.cut
    }

    /// Notes a cut that an acknowledgement named.
    pub(super) fn passed(&mut self, cut: CutId) {
        self.cut = self.cut.max(cut);
    }

    /// The job cannot continue: training fails.
    pub(super) fn failed(&mut self, error: String) {
        self.fatal(Failure::new(ErrorClass::Training, error));
    }

    /// The job cannot continue: a fault of the program itself.
    pub(super) fn internal(&mut self, error: String) {
        self.fatal(Failure::new(ErrorClass::Internal, error));
    }

    /// The job cannot continue.
    pub(super) fn fatal(&mut self, failure: Failure) {
        tracing::error!(class = ?failure.class, error = failure.text, "training_failed");
        self.send(Report::Fatal { failure });
    }

    /// A gradient holds NaN or infinity, and the job does not allow it.
    pub(super) fn not_finite(&mut self, unit: Unit, step: Step, place: &str, spec: &JobSpec) {
        self.failed(diverged(unit, step, place, &spec.model));
    }

    /// All work is handed back.
    pub(super) fn drained(&mut self, era: Era, tasks: Vec<TaskPosition>) {
        let Era { epoch, phase } = era;
        self.send(TrainerReport::Drained { epoch, phase, tasks });
    }

    /// Whether positions of tasks are to be reported again.
    pub(super) fn progress_is_due(&self) -> bool {
        self.last_progress.elapsed() >= PROGRESS_EVERY
    }

    /// Positions of tasks.
    pub(super) fn progress(&mut self, era: Era, tasks: Vec<TaskPosition>) {
        self.last_progress = Instant::now();
        let (Era { epoch, phase }, cut) = (era, self.cut);
        self.send(TrainerReport::Progress { epoch, phase, cut, tasks });
    }

    /// A task is complete.
    pub(super) fn task_finished(
        &mut self,
        era: Era,
        task: TaskId,
        attempt: TaskAttempt,
        metrics: Box<TaskMetrics>,
    ) {
        let (Era { epoch, phase }, cut) = (era, self.cut);
        self.send(TrainerReport::TaskFinished { epoch, phase, cut, task, attempt, metrics });
    }
}

#[cfg(test)]
mod tests {
    use heddle_protocol::ids::Lane;
    use heddle_protocol::job_spec::limits::ANY_FEATURES;

    use super::*;

    #[test]
    fn advice_about_divergence_fits_the_job() {
        use AlgorithmKind::{Custom, Kmeans, LinearRegression};
        let both = "lower the rate of model.optimizer, set model.standardise = true, or";
        for (algorithm, standardise, features, next) in [
            (LinearRegression, false, 10, both),
            (LinearRegression, true, 10, "lower the rate of model.optimizer, or"),
            (LinearRegression, false, ANY_FEATURES, "lower the rate of model.optimizer, or"),
            (Custom, false, 0, "lower the rate of model.optimizer, or"),
            (Kmeans, false, 10, "set model.standardise = true, or"),
            (Kmeans, true, 10, "give the columns in larger units, or"),
        ] {
            let mut model = crate::run::tests::sample().model;
            (model.algorithm, model.standardise, model.features) =
                (algorithm, standardise, features);
            let text = diverged(Unit::Lane(Lane(1)), Step(0), "table weights, shard 0", &model);
            let start =
                "the gradient of step 0 of lane 1 holds NaN or infinity (table weights, shard 0)";
            assert!(text.starts_with(start), "{text}");
            assert!(text.contains(&format!("training diverges; {next} allow it")), "{text}");
        }
    }
}
