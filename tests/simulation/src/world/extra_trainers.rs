//! Extra trainers work only after a task was late, and leave when none is late for a phase.

use std::collections::BTreeSet;

use heddle_am_core::{Action, Limits, Record};
use heddle_protocol::control::{Command, TrainerCommand};
use heddle_protocol::ids::{Member, PhaseNo, TaskId};
use heddle_protocol::view::{JobEvent, WarningCode};

use super::World;
use super::processes::slowness;

/// What the orders of an attempt show.
#[derive(Debug, Default)]
pub(super) struct LateTasks {
    attempt: u32,
    /// The phase whose tasks were last handed out.
    phase: PhaseNo,
    /// Phases in which a task may have been late, as far as an observer can tell.
    late: BTreeSet<PhaseNo>,
    /// The next phase counts as one of them: a rollback or a new attempt lies before it.
    excused: bool,
    handed_out: BTreeSet<(PhaseNo, TaskId)>,
    /// When a slow trainer got the first of its tasks in the phase.
    slow_since_ms: Option<(PhaseNo, u64)>,
}

impl World {
    pub(super) fn check_extra_trainers(
        &mut self,
        attempt: u32,
        actions: &[Action],
    ) -> Result<(), String> {
        if self.job.extra == 0 {
            return Ok(());
        }
        if self.late_tasks.attempt != attempt {
            self.late_tasks = LateTasks { attempt, excused: true, ..LateTasks::default() };
        }
        for action in actions {
            match action {
                Action::Notice(event) if matches!(**event, JobEvent::PhaseBegun { .. }) => {
                    self.slow_trainer_was_late();
                }
                Action::Notice(event) if is_started(event) => {
                    self.extra_trainers += 1;
                    self.late_tasks.late.insert(self.late_tasks.phase);
                }
                Action::Journal { record, .. } if matches!(**record, Record::Restore { .. }) => {
                    self.late_tasks.excused = true;
                    self.late_tasks.handed_out.clear();
                }
                Action::Send { member: Some(member), command, .. } => {
                    if let Command::Trainer(TrainerCommand::Tasks { phase, tasks, .. }) = &**command
                    {
                        let tasks = tasks.iter().map(|grant| grant.task);
                        self.tasks_handed_out(*member, *phase, tasks)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// A phase is over. A late task that all other trainers were too busy for, extra ones included, shows in no order: the
    /// slow trainer finishes it. The extra trainers rightly stay.
    fn slow_trainer_was_late(&mut self) {
        let seen = &mut self.late_tasks;
        if let Some((phase, since_ms)) = seen.slow_since_ms.take()
            && self.now_ms - since_ms >= Limits::default().overdue_ms
        {
            seen.late.insert(phase);
        }
    }

    fn tasks_handed_out(
        &mut self,
        trainer: Member,
        phase: PhaseNo,
        tasks: impl Iterator<Item = TaskId>,
    ) -> Result<(), String> {
        let (seen, job) = (&mut self.late_tasks, &self.job);
        seen.phase = phase;
        if slowness(job, trainer) > 1 && seen.slow_since_ms.is_none_or(|(of, _)| of != phase) {
            seen.slow_since_ms = Some((phase, self.now_ms));
        }
        let again = tasks.filter(|task| !seen.handed_out.insert((phase, *task))).count() > 0;
        if std::mem::take(&mut seen.excused) || again {
            seen.late.insert(phase);
        }
        let others = job.trainers + job.spares[1];
        let before = PhaseNo(phase.0.saturating_sub(1));
        match trainer.slot.index >= others && seen.late.range(before..=phase).next().is_none() {
            true => Err(format!("{trainer} has work in phase {phase}, and no task is late")),
            false => Ok(()),
        }
    }
}

/// Whether an extra trainer is asked for.
fn is_started(event: &JobEvent) -> bool {
    matches!(event, JobEvent::Warning { code: WarningCode::ExtraTrainerStarted, .. })
}
