//! What a fault must and must not have changed.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use heddle_protocol::ids::{Role, Slot};
use heddle_protocol::view::{JobState, JobView, SlotState};

use super::processes::Process;
use super::submitted::Submitted;

/// Longest wait for a step, and for a recovery: other builds share the cores.
const LIMIT: Duration = Duration::from_secs(120);

/// A job in the middle of a step, all its containers well: the state before a fault.
pub struct Watch {
    /// The job.
    pub view: JobView,
    /// Its processes, the ApplicationMaster's too.
    pub processes: Vec<Process>,
    /// When.
    pub since: Instant,
}

/// Whether the job trains with all its containers and everything lost before is replaced.
#[must_use]
pub fn settled(view: &JobView) -> bool {
    view.state == JobState::Running
        && view.phase_text.starts_with("pass")
        && view.slots.iter().all(|place| place.state == SlotState::Running && place.pid > 0)
        && view.recoveries.iter().all(|recovery| recovery.done)
}

impl Watch {
    /// Waits until the job takes a step, with `checkpoints` committed at least.
    ///
    /// # Errors
    /// Not within two minutes.
    pub fn in_a_step(job: &mut Submitted<'_>, checkpoints: u32) -> Result<Self> {
        let first = job.wait_for("it trains", LIMIT, |view| {
            settled(view) && view.checkpoints_taken >= checkpoints
        })?;
        let view =
            job.wait_for("a step is taken", LIMIT, |view| settled(view) && view.rows > first.rows)?;
        Ok(Self { processes: job.processes(), view, since: Instant::now() })
    }

    /// The process that was in a slot.
    ///
    /// # Errors
    /// There was none.
    pub fn process(&self, slot: Slot) -> Result<&Process> {
        let found = self.processes.iter().find(|process| process.slot == Some(slot));
        found.with_context(|| format!("no {slot} among {:?}", self.processes))
    }

    /// Waits until exactly these slots are filled again and steps continue. Holds the job to what such a loss may
    /// cost: the others keep their processes, the epoch goes up only if a pserver was lost, and then training goes on
    /// from a checkpoint of its own that is not older than `steps` steps of BSP.
    ///
    /// # Errors
    /// Something else happened, or nothing within two minutes.
    pub fn replaced(
        &self,
        job: &mut Submitted<'_>,
        lost: &BTreeSet<Slot>,
        steps: u64,
    ) -> Result<JobView> {
        let known = self.view.recoveries.len();
        let after = job.wait_for(&format!("{lost:?} replaced"), LIMIT, |view| {
            settled(view)
                && view.recoveries.len() >= known + lost.len()
                && lost.iter().all(|slot| self.is_replaced(view, *slot))
        })?;
        let took = self.since.elapsed();
        let alive = job.processes();
        for process in self.processes.iter().filter(|process| process.slot.is_some()) {
            let slot = process.slot.context("filtered")?;
            ensure!(
                lost.contains(&slot) || alive.contains(process),
                "{slot} was not to be touched: {process:?}, now {alive:?}"
            );
        }
        let pservers = lost.iter().filter(|slot| slot.role == Role::Pserver).count() as u32;
        let raised = after.epoch.count - self.view.epoch.count;
        ensure!(
            raised <= pservers && (raised > 0) == (pservers > 0),
            "{pservers} pservers lost, the epoch went up by {raised}: {:#?}",
            after.recoveries
        );
        for recovery in &after.recoveries[known..] {
            let known = recovery.slot.is_none_or(|slot| lost.contains(&slot));
            ensure!(known, "{recovery:#?}");
            if recovery.epoch_after == recovery.epoch_before {
                continue;
            }
            let base = recovery.base.context("a rollback goes to a checkpoint")?;
            ensure!(base.number > 0, "{recovery:#?}");
            if let Some(step) = recovery.base_step
                && self.view.phase == recovery.phase
                && recovery.step >= step
            {
                ensure!(recovery.step.0 - step.0 <= steps, "{recovery:#?}");
            }
            // The reported duration is that of this clock, up to the polling interval.
            let rows =
                [recovery.notice_ms, recovery.restart_ms, recovery.load_ms, recovery.resume_ms];
            let reported: u64 = rows.iter().flatten().sum();
            ensure!(
                rows.iter().all(Option::is_some)
                    && Duration::from_millis(reported) <= took + Duration::from_secs(2),
                "{took:?} by the test's clock, {recovery:#?}"
            );
        }
        println!("{lost:?} replaced after {took:.1?}: {:?}", after.recoveries.last());
        self.goes_on(job)?;
        Ok(after)
    }

    /// Waits until more rows were computed than before the fault, with nothing lost and nothing rolled back.
    ///
    /// # Errors
    /// Something was, or nothing happens.
    pub fn untouched(&self, job: &mut Submitted<'_>) -> Result<JobView> {
        let view = self.goes_on(job)?;
        let alive = job.processes();
        for process in self.processes.iter().filter(|process| process.slot.is_some()) {
            ensure!(alive.contains(process), "{process:?} is gone: {alive:?}");
        }
        ensure!(
            view.epoch == self.view.epoch && view.recoveries.len() == self.view.recoveries.len(),
            "{view:#?}"
        );
        Ok(view)
    }

    fn goes_on(&self, job: &mut Submitted<'_>) -> Result<JobView> {
        let now = job.wait_for("it is asked", LIMIT, |_| true)?;
        job.wait_for("steps are taken again", LIMIT, |view| {
            view.rows > now.rows.max(self.view.rows) || view.state == JobState::Finishing
        })
    }

    fn is_replaced(&self, view: &JobView, slot: Slot) -> bool {
        let old = self.process(slot).map(|process| process.pid.as_raw().cast_unsigned());
        view.slots.iter().any(|place| {
            place.slot == slot && place.pid > 0 && old.as_ref().is_ok_and(|old| place.pid != *old)
        })
    }
}
