//! What the training loop reports to the ApplicationMaster.

use std::time::{Duration, Instant};

use heddle_client::machine::{Era, Unit};
use heddle_protocol::control::{Report, TaskPosition};
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::ids::{CutId, Step, TaskAttempt, TaskId};
use heddle_protocol::metrics::TaskMetrics;

/// Shortest time between two reports of task positions (ASP).
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// Sink of reports.
pub(super) type ReportSink = Box<dyn FnMut(Report) + Send>;

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

    pub(super) fn send(&mut self, report: Report) {
        (self.sink)(report);
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
    pub(super) fn not_finite(&mut self, unit: Unit, step: Step, place: &str) {
        self.failed(format!(
            "the gradient of step {step} of {unit:?} holds NaN or infinity ({place}): training diverges; \
             lower the rate, standardise the data, or allow it with training.nan = \"skip\""
        ));
    }

    /// All work is handed back.
    pub(super) fn drained(&mut self, era: Era, tasks: Vec<TaskPosition>) {
        self.send(Report::Drained { epoch: era.epoch, phase: era.phase, tasks });
    }

    /// Whether positions of tasks are to be reported again.
    pub(super) fn progress_is_due(&self) -> bool {
        self.last_progress.elapsed() >= PROGRESS_EVERY
    }

    /// Positions of tasks.
    pub(super) fn progress(&mut self, era: Era, tasks: Vec<TaskPosition>) {
        self.last_progress = Instant::now();
        self.send(Report::Progress { epoch: era.epoch, phase: era.phase, cut: self.cut, tasks });
    }

    /// A task is complete.
    pub(super) fn task_finished(
        &mut self,
        era: Era,
        task: TaskId,
        attempt: TaskAttempt,
        metrics: Box<TaskMetrics>,
    ) {
        let Era { epoch, phase } = era;
        self.send(Report::TaskFinished { epoch, phase, cut: self.cut, task, attempt, metrics });
    }
}
