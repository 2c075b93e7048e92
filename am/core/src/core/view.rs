//! The job as it is reported: a pure function of the components.

use heddle_protocol::control::SparseTableSize;
use heddle_protocol::ids::{Role, Slot, Step};
use heddle_protocol::job_spec::phase_text;
use heddle_protocol::process_figures::{FigureScope, ProcessFigure};
use heddle_protocol::view::{History, JobState, JobView, SlotState, SlotView, SparseTableView};

use super::Core;
use crate::checkpoint::schedule::total_steps;
use crate::fleet::slots::{SlotEntry, SlotStatus};
use crate::fleet::totals::work_figure;
use crate::stage::{JobStage, StageKind};
use crate::time::MonotonicMs;

impl Core {
    /// The present state of the job, for its users.
    #[must_use]
    pub fn view(&self) -> JobView {
        let config = self.ctx.config();
        let (phase, epoch) = (self.work.phase(), self.ctx.epoch());
        let (tasks_done, tasks) = self.work.task_counts();
        let trainers = || self.fleet.holders(Role::Trainer);
        let heartbeats = trainers().map(|holder| &holder.heartbeat);
        let (loss_sum, loss_rows) = heartbeats
            .filter(|heartbeat| (heartbeat.phase, heartbeat.epoch) == (phase, epoch))
            .fold((0.0, 0), |sum, beat| (sum.0 + beat.loss_sum, sum.1 + beat.loss_rows));
        let recoveries = self.stage.recoveries();
        // A sum over no trainer is -0.0.
        let rows_per_second = trainers().map(|holder| holder.per_second).sum::<f64>() + 0.0;
        let phase_done = self.work.done_share(loss_rows, &self.ctx);
        let rows_left = phase_done.and_then(|done| self.work.rows_left(done, &self.ctx));
        let is_running = self.state() == JobState::Running && rows_per_second >= 1.0;
        JobView {
            run: config.run,
            name: config.spec.name.clone(),
            state: self.state(),
            attempt: self.ctx.attempt(),
            epoch,
            phase,
            phase_text: phase_text(&config.spec, phase),
            step: self.step(),
            tasks_done,
            tasks,
            rows: self.checkpoints.rows(&self.work, &self.fleet),
            rows_per_second,
            training_loss: (loss_rows > 0 && self.work.is_training())
                .then(|| loss_sum / loss_rows as f64),
            phase_done,
            left_ms: rows_left
                .filter(|_| is_running)
                .map(|rows| (rows * 1000.0 / rows_per_second) as u64),
            started_ms: config.started_ms,
            slots: self.slot_views(),
            checkpoints: self.checkpoints.views().to_vec(),
            // The driver adds them: copies are made beside the core.
            mirrors: Vec::new(),
            checkpoints_taken: self.checkpoints.committed_count(),
            recoveries: recoveries.views().cloned().collect(),
            recoveries_total: recoveries.total(),
            passes: self.work.passes(),
            evaluations: self.work.scores(),
            kept_pass: self.checkpoints.kept_pass(),
            bad_records: self.work.bad_records(),
            set_aside: self.work.set_aside().to_vec(),
            stragglers: self.work.stragglers(),
            data_locality: self.work.data_locality(),
            figures: self.fleet.figures().of(FigureScope::Job),
            sparse_tables: self.sparse_tables(),
            storage_wait: self.fleet.storage_wait(),
            credentials: self.credentials.view(&self.fleet),
            pservers: self.pservers_view(),
            elastic: self.elastic_view(),
            shards: self.shard_places(),
            replication: self.replication_view(),
            updates_lost: Some(self.stage.losses().total()).filter(|updates| *updates > 0),
            spares: self.spares_view(),
            model_saves: self.saves.view(),
            chaos: self.chaos.view(&self.ctx),
            message: match self.ctx.message() {
                "" => self.fleet.outage_text(&self.ctx).unwrap_or_default(),
                message => message.to_owned(),
            },
            // The driver adds what the cluster has besides.
            application: None,
            history: History::default(),
        }
    }

    fn state(&self) -> JobState {
        match (self.stage.now(), self.stage.kind()) {
            (JobStage::Stopping(outcome), _) if outcome.state == JobState::Finished => {
                JobState::Finishing
            }
            (JobStage::Stopping(outcome), _) => outcome.state,
            (JobStage::Over(state), _) => *state,
            (_, StageKind::Exporting) => JobState::Finishing,
            (_, StageKind::Takeover | StageKind::AwaitingCommit | StageKind::FindingCheckpoint) => {
                JobState::Recovering
            }
            (_, StageKind::Restoring) if self.stage.has_started() => JobState::Recovering,
            (_, StageKind::Idle | StageKind::Beginning | StageKind::Working)
                if self.stage.has_started() =>
            {
                JobState::Running
            }
            _ => JobState::Starting,
        }
    }

    fn slot_views(&self) -> Vec<SlotView> {
        let view = |(slot, entry)| SlotView {
            spare: self.is_spare(slot),
            ..slot_view(slot, entry, self.ctx.now())
        };
        let slots = self.fleet.slots();
        slots.filter(|(slot, _)| !self.fleet.is_unused(*slot)).map(view).collect()
    }

    fn step(&self) -> Step {
        match self.work.has_lanes() {
            true => self.work.frontier(),
            false => Step(total_steps(&self.checkpoints, &self.work, &self.fleet, &self.ctx)),
        }
    }

    /// The sparse tables of the job.
    fn sparse_tables(&self) -> Vec<SparseTableView> {
        let tables = self.ctx.config().spec.tables();
        let view = |size: SparseTableSize| {
            let table = tables.get(usize::from(size.table.0))?;
            let SparseTableSize { rows, bytes, dropped, .. } = size;
            Some(SparseTableView { name: table.name.clone(), rows, bytes, dropped })
        };
        self.fleet.sparse_tables().into_iter().filter_map(view).collect()
    }
}

fn slot_view(slot: Slot, entry: &SlotEntry, now: MonotonicMs) -> SlotView {
    let empty = |state| SlotView::empty(slot, entry.incarnation, state);
    match &entry.status {
        SlotStatus::Empty { .. } => empty(SlotState::Empty),
        SlotStatus::Asked => empty(SlotState::Asked),
        SlotStatus::Starting { .. } => empty(SlotState::Starting),
        SlotStatus::Held(holder) => {
            let mut figures = empty(SlotState::Running).figures;
            // Each pserver counts them from its start on.
            if slot.role == Role::Pserver {
                figures.set(ProcessFigure::FramesRefused, 0);
            }
            figures.update(&holder.heartbeat.figures.of(FigureScope::Slot));
            SlotView {
                state: match (holder.draining, holder.link.is_silent()) {
                    (Some(_), _) => SlotState::Draining,
                    (None, true) => SlotState::Suspect,
                    (None, false) => SlotState::Running,
                },
                host: holder.host.clone(),
                pid: holder.pid,
                per_second: holder.per_second,
                figures,
                heartbeat_age_ms: Some(now.since(holder.heartbeat_at)),
                total: holder.heartbeat.figures.get(work_figure(slot.role)),
                ..empty(SlotState::Running)
            }
        }
    }
}
