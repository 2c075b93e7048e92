//! What the manifest of the open cut says.

use std::collections::BTreeSet;

use heddle_protocol::control::Sharing;
use heddle_protocol::ids::{PhaseNo, Step, TaskAttempt, TaskId};
use heddle_protocol::manifest::{
    FORMAT_VERSION, Manifest, Progress, QueuedTask, Salt, TaskState, Work,
};
use heddle_protocol::spec::{PhaseKind, phase_kind};
use uuid::Uuid;

use crate::checkpoint::cut::Cut;
use crate::core::Core;
use crate::work::queue::QueueProgress;

impl Core {
    /// The staging directory and the manifest of the open cut.
    ///
    /// A cut at the very end of a phase is written as one at the beginning of the next: there is no work left of
    /// the phase, so nobody needs its marks.
    pub(crate) fn manifest(&self) -> Option<(String, Manifest)> {
        let cut = self.cuts.open.as_ref()?;
        let spec = &self.config.spec;
        let (phase, work) = self.cut_position(cut);
        let bad_records_in_phase = match &work {
            Work::Queue { .. } if phase == self.phase.no => {
                self.phase.metrics.bad_records_of(&cut.queue_progress.done)
            }
            // Lanes report all their tasks again; of a phase that is over the records were judged already.
            _ => 0,
        };
        let manifest = Manifest {
            format_version: FORMAT_VERSION,
            run: self.config.run,
            job: spec.name.clone(),
            cut: cut.id,
            epoch: cut.epoch,
            parent: self.base.as_ref().map(|base| base.manifest.cut),
            // The commit puts its own in.
            salt: Salt(Uuid::nil()),
            at_ms: self.now.wall_ms,
            spec_digest: spec.digest().0,
            spec: serde_json::to_value(&**spec).unwrap_or_default(),
            plan: (*self.config.plan).clone(),
            shards: cut.saved.values().cloned().collect(),
            phase,
            work,
            task_steps: self.task_steps.clone(),
            evaluations: cut.evaluations.clone(),
            progress: Progress {
                started_ms: self.config.started_ms,
                ran_ms: self.now.mono.0.saturating_add(self.ran_before_ms()),
                rows: self.rows(),
                bad_records: self.statistics.bad_records(),
                bad_records_in_phase,
                checkpoints: self.checkpoints_before().saturating_add(self.cuts.committed),
            },
        };
        Some((cut.staging.clone(), manifest))
    }

    fn cut_position(&self, cut: &Cut) -> (PhaseNo, Work) {
        let step = cut.snapped.values().next().copied().unwrap_or_default();
        let over = self.holds_whole_phase(cut);
        if over {
            let next = cut.phase.next();
            let begins_with = match phase_kind(&self.config.spec, next) {
                Some(PhaseKind::Measure(_) | PhaseKind::Train { .. }) if self.is_bsp() => {
                    Work::Lanes { step: Step(0) }
                }
                _ => Work::Queue { tasks: Vec::new() },
            };
            return (next, begins_with);
        }
        let work = match cut.sharing {
            Sharing::Lanes { .. } => Work::Lanes { step },
            Sharing::Queue => Work::Queue { tasks: queued(&cut.queue_progress) },
            // An evaluation starts anew.
            Sharing::ReadOnly => Work::Queue { tasks: Vec::new() },
        };
        (cut.phase, work)
    }

    /// Whether a cut that all shards have taken holds all of its phase.
    pub(crate) fn holds_whole_phase(&self, cut: &Cut) -> bool {
        let step = cut.snapped.values().next().copied().unwrap_or_default();
        cut.phase_is_over
            || match cut.sharing {
                Sharing::Lanes { .. } => self.end_of(cut.epoch, cut.phase) == Some(Some(step)),
                Sharing::Queue => cut.queue_progress.done.len() == self.config.plan.train.len(),
                Sharing::ReadOnly => false,
            }
    }

    /// DataStatistics of earlier attempts.
    fn ran_before_ms(&self) -> u64 {
        self.figures_before.ran_ms
    }

    pub(crate) fn checkpoints_before(&self) -> u32 {
        self.figures_before.checkpoints
    }
}

/// The tasks that are not at their beginning, by number.
fn queued(queue_progress: &QueueProgress) -> Vec<QueuedTask> {
    let tasks: BTreeSet<TaskId> =
        queue_progress.done.iter().chain(queue_progress.at.keys()).copied().collect();
    let state = |task: &TaskId| match queue_progress.at.get(task) {
        Some(step) if !queue_progress.done.contains(task) => {
            TaskState::Open { step: *step, attempt: TaskAttempt(0) }
        }
        _ => TaskState::Done,
    };
    tasks.iter().map(|task| QueuedTask { task: *task, state: state(task) }).collect()
}

/// Where the tasks of a manifest's queue stand.
pub(crate) fn queue_progress(work: &Work) -> QueueProgress {
    let mut queue_progress = QueueProgress::default();
    if let Work::Queue { tasks } = work {
        for queued in tasks {
            match queued.state {
                TaskState::Done | TaskState::SetAside => queue_progress.finished(queued.task),
                TaskState::Open { step, .. } => queue_progress.reached(queued.task, step),
            }
        }
    }
    queue_progress
}
