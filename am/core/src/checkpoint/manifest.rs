//! The manifest of the open cut.

use std::collections::BTreeSet;

use heddle_protocol::control::Sharing;
use heddle_protocol::ids::{PhaseNo, Step, TaskAttempt, TaskId};
use heddle_protocol::manifest::{
    Manifest, Progress, QueuedTask, Salt, TaskState, TrainingProgress, Work,
};
use heddle_protocol::table_statistics::TableStatistics;
use uuid::Uuid;

use super::Checkpoints;
use super::cut::{Cut, CutReason, OrderedCut};
use crate::context::Context;
use crate::fleet::Fleet;
use crate::work::JobWork;
use crate::work::phases::sharing;
use crate::work::queue::QueueProgress;

impl Checkpoints {
    /// The staging directory and the manifest of the open cut.
    ///
    /// A cut at the very end of a phase is written as one at the beginning of the next phase: no work of the phase is left,
    /// so the positions of its tasks are not needed.
    pub(super) fn manifest(
        &self,
        work: &JobWork,
        fleet: &Fleet,
        ctx: &Context,
    ) -> Option<(String, Manifest)> {
        let cut = self.open.as_ref()?;
        let ordered = cut.ordered()?;
        let config = ctx.config();
        let (spec_digest, spec) = config.recorded_spec();
        let (phase, position) = self.position(cut, ordered, ctx);
        let bad_records_in_phase = match &position {
            Work::Queue { .. } if phase == work.phase() => work.bad_records_of(&ordered.tasks),
            // Lanes report all their tasks again; of a phase that is over the records were judged already.
            _ => 0,
        };
        let (rows, loss) = match phase == work.phase() {
            true => work.trained_in_phase(ordered.step(), &ordered.tasks, ctx),
            false => (0, 0.0),
        };
        let initial = cut.reason == CutReason::Initial;
        let shards = if initial { Vec::new() } else { ordered.saved.listed() };
        let manifest = Manifest {
            format_version: Manifest::version(initial, &config.plan),
            run: config.run,
            job: config.spec.name.clone(),
            cut: cut.id,
            epoch: cut.epoch,
            parent: self.base_manifest().map(|base| base.cut),
            // The commit puts its own in.
            salt: Salt(Uuid::nil()),
            at_ms: ctx.wall_ms(),
            spec_digest: spec_digest.0.clone(),
            spec: spec.clone(),
            plan: (*config.plan).clone(),
            initial,
            shards,
            phase,
            work: position,
            task_steps: work.task_steps().clone(),
            evaluations: ordered.evaluations.clone(),
            best_pass: ordered.best_pass,
            progress: Progress {
                started_ms: config.started_ms,
                ran_ms: ctx.now().0.saturating_add(self.earlier.ran_ms),
                rows: self.rows(work, fleet),
                bad_records: work.bad_records(),
                set_aside: ordered.set_aside.clone(),
                updates_lost: self.updates_lost.clone(),
                bad_records_in_phase,
                training: TrainingProgress { passes: ordered.passes.clone(), rows, loss },
                checkpoints: self.earlier.checkpoints.saturating_add(self.committed),
            },
            tables: TableStatistics::of_tables(ordered.tables.values().map(Vec::as_slice)),
        };
        Some((ordered.staging.clone(), manifest))
    }

    /// Records computed in the run, recomputed ones included. Those of evaluations count when their task is finished for
    /// the first time: at the end of a phase the last tasks are given to several trainers.
    pub(crate) fn rows(&self, work: &JobWork, fleet: &Fleet) -> u64 {
        let now = fleet.trained_rows().saturating_add(work.evaluated_rows());
        self.earlier.rows.saturating_add(now)
    }

    /// The phase of the manifest, and how far its work is.
    fn position(&self, cut: &Cut, ordered: &OrderedCut, ctx: &Context) -> (PhaseNo, Work) {
        let config = ctx.config();
        if self.holds_whole_phase(cut, config.plan.train.len()) {
            let next = ordered.phase.next();
            let begins_with = match sharing(&config.spec, next) {
                Sharing::Lanes { .. } => Work::Lanes { step: Step(0) },
                Sharing::Queue | Sharing::ClockedQueue { .. } | Sharing::ReadOnly => {
                    Work::Queue { tasks: Vec::new() }
                }
            };
            return (next, begins_with);
        }
        let work = match ordered.sharing {
            Sharing::Lanes { .. } => Work::Lanes { step: ordered.step() },
            Sharing::Queue | Sharing::ClockedQueue { .. } => {
                Work::Queue { tasks: queued(&ordered.tasks) }
            }
            // An evaluation starts again.
            Sharing::ReadOnly => Work::Queue { tasks: Vec::new() },
        };
        (ordered.phase, work)
    }

    /// Whether a cut that all shards have taken holds all of its phase. `tasks`: of the training data.
    pub(super) fn holds_whole_phase(&self, cut: &Cut, tasks: usize) -> bool {
        let ordered = cut.ordered();
        debug_assert!(ordered.is_some(), "shards take only an ordered cut");
        let Some(ordered) = ordered else {
            return false;
        };
        ordered.phase_is_over
            || match ordered.sharing {
                Sharing::Lanes { .. } => {
                    self.end_of(cut.epoch, ordered.phase) == Some(Some(ordered.step()))
                }
                Sharing::Queue | Sharing::ClockedQueue { .. } => ordered.tasks.over() == tasks,
                Sharing::ReadOnly => false,
            }
    }
}

/// The tasks that are not at their beginning, by number.
fn queued(positions: &QueueProgress) -> Vec<QueuedTask> {
    let tasks: BTreeSet<TaskId> = positions
        .done
        .iter()
        .chain(&positions.set_aside)
        .chain(positions.at.keys())
        .copied()
        .collect();
    let state = |task: &TaskId| match positions.at.get(task) {
        _ if positions.set_aside.contains(task) => TaskState::SetAside,
        Some(step) if !positions.done.contains(task) => {
            TaskState::Open { step: *step, attempt: TaskAttempt(0) }
        }
        _ => TaskState::Done,
    };
    tasks.iter().map(|task| QueuedTask { task: *task, state: state(task) }).collect()
}

/// The positions of the tasks of a manifest's queue.
pub(crate) fn task_positions(work: &Work) -> QueueProgress {
    let mut positions = QueueProgress::default();
    if let Work::Queue { tasks } = work {
        for queued in tasks {
            match queued.state {
                TaskState::Done => positions.finished(queued.task),
                TaskState::SetAside => {
                    positions.set_aside.insert(queued.task);
                }
                TaskState::Open { step, .. } => positions.reached(queued.task, step),
            }
        }
    }
    positions
}
