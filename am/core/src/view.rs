//! The job as people see it.

use heddle_protocol::ids::{Role, Slot};
use heddle_protocol::spec::Consistency;
use heddle_protocol::view::{History, JobState, JobView, SlotState, SlotView};

use crate::core::{Core, JobStage};
use crate::fleet::slots::{SlotEntry, SlotStatus};
use crate::work::phases::{Work, phase_text};

impl Core {
    /// The job as it stands, for people.
    #[must_use]
    pub fn view(&self) -> JobView {
        let spec = &self.config.spec;
        let (tasks_done, tasks) = match &self.phase.work {
            Work::Lanes(_) => (0, 0),
            Work::Queue(queue) => queue.counts(),
        };
        let trainers = || self.slots.holders(Role::Trainer);
        let (loss_sum, loss_rows) = trainers()
            .filter(|holder| holder.beat.phase == self.phase.no && holder.beat.epoch == self.epoch)
            .fold((0.0, 0), |(sum, rows), holder| {
                (sum + holder.beat.loss_sum, rows + holder.beat.loss_rows)
            });
        JobView {
            run: self.config.run,
            name: spec.name.clone(),
            state: self.state(),
            attempt: self.attempt,
            epoch: self.epoch,
            phase: self.phase.no,
            phase_text: phase_text(spec, self.phase.no),
            step: self.view_step(),
            tasks_done,
            tasks,
            rows: self.rows(),
            // A sum over nobody is -0.0.
            rows_per_second: trainers().map(|holder| holder.per_second).sum::<f64>() + 0.0,
            training_loss: (loss_rows > 0).then(|| loss_sum / loss_rows as f64),
            started_ms: self.config.started_ms,
            slots: self.slots.entries.iter().map(|(slot, entry)| slot_view(*slot, entry)).collect(),
            checkpoints: self.checkpoints.clone(),
            checkpoints_taken: self.cuts.committed,
            recoveries: self.recoveries.views().cloned().collect(),
            recoveries_total: self.recoveries.total(),
            evaluations: self.evaluations.iter().map(|(_, scores)| scores.clone()).collect(),
            bad_records: self.statistics.bad_records(),
            data_locality: (self.data_locality.tasks() > 0).then_some(self.data_locality),
            storage_wait: self.storage_wait.view(),
            message: match self.message.is_empty() {
                true => self.outage_text().unwrap_or_default(),
                false => self.message.clone(),
            },
            // What the cluster knows besides is added by whoever drives this.
            application: None,
            history: History::default(),
        }
    }

    fn state(&self) -> JobState {
        match &self.stage {
            JobStage::New => JobState::Starting,
            JobStage::Takeover(_)
            | JobStage::AwaitingCommit { .. }
            | JobStage::FindingCheckpoint { .. } => JobState::Recovering,
            JobStage::Restoring(_) if self.started => JobState::Recovering,
            JobStage::Restoring(_) => JobState::Starting,
            JobStage::Idle(_) | JobStage::Beginning { .. } | JobStage::Working if self.started => {
                JobState::Running
            }
            JobStage::Idle(_) | JobStage::Beginning { .. } | JobStage::Working => {
                JobState::Starting
            }
            JobStage::Exporting(_) => JobState::Finishing,
            JobStage::Stopping(outcome) => match outcome.state {
                JobState::Finished => JobState::Finishing,
                other => other,
            },
            JobStage::Over => self.ended.as_ref().map_or(JobState::Failed, |outcome| outcome.state),
        }
    }

    fn view_step(&self) -> heddle_protocol::ids::Step {
        match &self.phase.work {
            Work::Lanes(_) => self.phase.frontier(),
            Work::Queue(_) => heddle_protocol::ids::Step(self.total_steps()),
        }
    }

    /// Records computed in the run, recomputed ones included. Those of evaluations count when their task is finished
    /// for the first time: at the end of a phase the last tasks are given to several trainers.
    pub(crate) fn rows(&self) -> u64 {
        let now: u64 =
            self.slots.holders(Role::Trainer).map(|holder| holder.beat.trained_rows()).sum();
        self.figures_before
            .rows
            .saturating_add(self.rows_before)
            .saturating_add(self.statistics.evaluated_rows)
            .saturating_add(now)
    }

    pub(crate) fn is_bsp(&self) -> bool {
        self.config.spec.training.consistency == Consistency::Bsp
    }
}

fn slot_view(slot: Slot, entry: &SlotEntry) -> SlotView {
    let empty = |state| SlotView {
        slot,
        incarnation: entry.incarnation,
        state,
        host: String::new(),
        pid: 0,
        per_second: 0.0,
        rss_bytes: 0,
        total: 0,
        placement: None,
    };
    match &entry.place {
        SlotStatus::Empty { .. } => empty(SlotState::Empty),
        SlotStatus::Asked => empty(SlotState::Asked),
        SlotStatus::Starting { .. } => empty(SlotState::Starting),
        SlotStatus::Held(holder) => SlotView {
            state: match (holder.draining, holder.suspect) {
                (Some(_), _) => SlotState::Draining,
                (None, true) => SlotState::Suspect,
                (None, false) => SlotState::Running,
            },
            host: holder.host.clone(),
            pid: holder.pid,
            per_second: holder.per_second,
            rss_bytes: holder.beat.rss_bytes,
            total: match slot.role {
                Role::Pserver => holder.beat.pushes,
                Role::Trainer => holder.beat.rows,
            },
            ..empty(SlotState::Running)
        },
    }
}
