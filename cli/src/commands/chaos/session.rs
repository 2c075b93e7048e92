//! A chaos session: orders faults one after the other, each after the job has settled, and notes what follows.

use std::time::{Duration, Instant};

use heddle_protocol::control::{ChaosOrder, ChaosStep, Operation, OrderedFault};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::ids::Slot;
use heddle_protocol::view::{JobState, JobView, RecoveryView};
use uuid::Uuid;

use super::corrupt::CorruptedFile;
use super::plan::ChaosPlan;
use super::reference::{self, ModelSums};
use super::report::{ChaosReport, FaultReport, fault_text};
use crate::failure::{CommandFailure, CommandResult};
use crate::job::NamedJob;
use crate::output;
use crate::stop_signals::StopSignals;

/// How often the job is looked at.
const LOOK: Duration = Duration::from_millis(250);
/// How often the session that holds the job is looked for in its view.
const VIEWS_OF_A_HOLDER: u32 = 8;
/// How often the session gives a sign of life. It lapses after a minute.
const SIGN: Duration = Duration::from_secs(10);

/// A session under way.
pub struct ChaosSession {
    job: Box<dyn NamedJob>,
    plan: ChaosPlan,
    id: Uuid,
    started: Instant,
    signed: Instant,
    signals: StopSignals,
    times: SessionTimes,
    json: bool,
    faults: Vec<FaultReport>,
    /// Directories of the checkpoints in which it has corrupted a file.
    corrupted: Vec<String>,
}

/// When a session orders faults.
#[derive(Clone, Copy, Debug)]
pub struct SessionTimes {
    /// How long it lasts.
    pub length: Duration,
    /// From one fault to the next.
    pub every: Duration,
    /// How long the job may take to train again.
    pub settle: Duration,
}

/// Why a session is over.
#[derive(Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// Its time has passed.
    Elapsed,
    /// The job has ended with a model.
    JobFinished,
    /// The job did not keep a promise.
    Broken(String),
    /// A signal.
    Interrupted,
}

/// The failure of a session beside another one.
fn is_taken(id: &str, other: Uuid) -> CommandFailure {
    let fact = format!("the chaos session {other} is under way on {id}");
    CommandFailure::new(ExitCode::Fenced, fact)
        .next("one session at a time; that one lapses a minute after its command has ended")
}

fn order(session: Uuid, step: ChaosStep) -> Operation {
    Operation::Chaos(ChaosOrder { session, step })
}

impl ChaosSession {
    /// Begins a session.
    ///
    /// # Errors
    /// Exit code 5 if the job's secret cannot be read, 9 if another session is under way.
    pub async fn begin(
        mut job: Box<dyn NamedJob>,
        plan: ChaosPlan,
        times: SessionTimes,
        json: bool,
    ) -> Result<Self, CommandFailure> {
        let id = Uuid::new_v4();
        let begun = job.operate(&order(id, ChaosStep::Hold)).await;
        if let Err(refused) = begun {
            // The view may be older than the refusal.
            for _ in 0..VIEWS_OF_A_HOLDER {
                if let Some(other) = job.view().await.ok().and_then(|view| view.chaos?.session) {
                    return Err(is_taken(&job.id(), other));
                }
                tokio::time::sleep(LOOK).await;
            }
            return Err(refused);
        }
        output::note(&format!(
            "chaos session {id} with seed {} on {}: a fault every {} s",
            plan.seed(),
            job.id(),
            times.every.as_secs()
        ));
        let now = Instant::now();
        Ok(Self {
            job,
            plan,
            id,
            started: now,
            signed: now,
            signals: StopSignals::register()?,
            times,
            json,
            faults: Vec::new(),
            corrupted: Vec::new(),
        })
    }

    /// Orders faults until the time has passed or something ends the session.
    pub async fn run(&mut self) -> SessionEnd {
        for number in 0.. {
            let due = self.started + self.times.every.saturating_mul(number + 1);
            if due >= self.started + self.times.length {
                return self
                    .wait_until(self.started + self.times.length)
                    .await
                    .unwrap_or(SessionEnd::Elapsed);
            }
            if let Some(end) = self.wait_until(due).await {
                return end;
            }
            if let Some(end) = self.fault(u64::from(number)).await {
                return end;
            }
        }
        SessionEnd::Elapsed
    }

    /// One fault, and what follows.
    async fn fault(&mut self, number: u64) -> Option<SessionEnd> {
        let before = match self.settled(&Baseline::default()).await {
            Ok(view) => view,
            Err(end) => return Some(end),
        };
        let planned = self.plan.fault(number);
        let damage = match planned.fault {
            OrderedFault::Corrupt { draw } => {
                match CorruptedFile::choose(&before, &mut *self.job, &self.corrupted, draw).await {
                    Ok(damage) => Some(damage),
                    Err(reason) => {
                        output::note(&format!(
                            "{} was not ordered: {reason}",
                            fault_text(&planned)
                        ));
                        return None;
                    }
                }
            }
            _ => None,
        };
        let ordered = Instant::now();
        for target in &planned.targets {
            let step = ChaosStep::Inject { target: *target, fault: planned.fault };
            if let Err(failure) = self.job.operate(&order(self.id, step)).await {
                // The job may have ended, or the process may be gone for another reason.
                output::note(&format!(
                    "{} was not ordered: {}",
                    fault_text(&planned),
                    failure.fact
                ));
                return self.job.ended().await.map(ended);
            }
        }
        if let Some(damage) = damage {
            match damage.corrupt().await {
                Ok(dir) => self.corrupted.push(dir),
                // The job may have deleted the checkpoint meanwhile.
                Err(reason) => output::note(&format!("no file was corrupted: {reason}")),
            }
        }
        let baseline = Baseline::of(&before, planned.fault);
        let over = ordered + Duration::from_millis(planned.fault.lasts_ms());
        let end = self.wait_until(over).await;
        let settled = match end {
            Some(end) => Err(end),
            None => self.settled(&baseline).await,
        };
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let report = FaultReport {
            number: number + 1,
            at_ms: millis(ordered - self.started),
            targets: planned.targets,
            fault: planned.fault,
            settled_ms: settled.is_ok().then(|| millis(ordered.elapsed())),
            recoveries: settled.as_ref().map(|view| baseline.news(view)).unwrap_or_default(),
        };
        self.show(&report);
        self.faults.push(report);
        settled.err()
    }

    fn show(&self, report: &FaultReport) {
        let shown = match self.json {
            true => output::json(report),
            false => report.lines().iter().try_for_each(|line| output::line(line)),
        };
        // A reader that has gone does not end a session: its faults are under way.
        let _reader_is_gone = shown;
    }

    /// Waits until all processes train again, the job has ended, or too much time has passed.
    async fn settled(&mut self, baseline: &Baseline) -> Result<JobView, SessionEnd> {
        let limit = Instant::now() + self.times.settle;
        loop {
            let view = self.job.view().await.ok();
            if let Some(view) = view.filter(|view| baseline.is_settled(view)) {
                return Ok(view);
            }
            if let Some(finished) = self.job.ended().await {
                return Err(ended(finished));
            }
            if Instant::now() >= limit {
                let settle = self.times.settle.as_secs();
                return Err(SessionEnd::Broken(format!(
                    "the job did not train again within {settle} s"
                )));
            }
            if let Some(end) = self.wait_until(Instant::now() + LOOK).await {
                return Err(end);
            }
        }
    }

    /// Waits, and keeps the session. Returns why it ends, if it does.
    async fn wait_until(&mut self, at: Instant) -> Option<SessionEnd> {
        loop {
            let wake = at.min(self.signed + SIGN);
            tokio::select! {
                _ = self.signals.next() => return Some(SessionEnd::Interrupted),
                () = tokio::time::sleep_until(wake.into()) => {}
            }
            if Instant::now() >= self.signed + SIGN {
                self.signed = Instant::now();
                let hold = order(self.id, ChaosStep::Hold);
                // While an ApplicationMaster restarts there is nothing to keep.
                if self.job.operate(&hold).await.is_err()
                    && let Some(finished) = self.job.ended().await
                {
                    return Some(ended(finished));
                }
            }
            if Instant::now() >= at {
                return None;
            }
        }
    }

    /// Ends the session, and prints its report.
    pub async fn report(
        mut self,
        mut end: SessionEnd,
        reference: Option<&ModelSums>,
    ) -> CommandResult {
        let ran = self.started.elapsed();
        // A job that has ended has no session.
        let _best_effort = self.job.operate(&order(self.id, ChaosStep::End)).await;
        if reference.is_some() && end == SessionEnd::Elapsed {
            end = self.follow().await;
        }
        let broken = match &end {
            SessionEnd::Broken(reason) => Some(reason.clone()),
            SessionEnd::Elapsed | SessionEnd::JobFinished | SessionEnd::Interrupted => None,
        };
        let ran_ms = u64::try_from(ran.as_millis()).unwrap_or(u64::MAX);
        let mut report = ChaosReport::new(self.plan.seed(), ran_ms, &self.faults, broken);
        if let Some(expected) = reference.filter(|_| end == SessionEnd::JobFinished) {
            let model = reference::read(&self.job.spec().await?.output.model.url()).await?;
            report.equals_reference = Some(model == *expected);
            if model != *expected {
                report.held = false;
                report.broken = "the model differs from the reference".to_owned();
            }
        }
        match self.json {
            true => output::json(&report)?,
            false => report.lines().iter().try_for_each(|line| output::line(line))?,
        }
        Ok(match (end, report.held) {
            (SessionEnd::Interrupted, true) => ExitCode::Killed,
            (_, true) => ExitCode::Ok,
            (_, false) => ExitCode::JobFailed,
        })
    }

    /// Waits for the end of the job, whose model is compared.
    async fn follow(&mut self) -> SessionEnd {
        output::note("the session is over; waiting for the job's model");
        loop {
            if let Some(finished) = self.job.ended().await {
                return ended(finished);
            }
            tokio::select! {
                _ = self.signals.next() => return SessionEnd::Interrupted,
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }
}

fn ended(finished: bool) -> SessionEnd {
    match finished {
        true => SessionEnd::JobFinished,
        false => SessionEnd::Broken("the job ended without a model".to_owned()),
    }
}

/// The job before a fault.
#[derive(Debug, Default)]
struct Baseline {
    /// Slots whose processes ran.
    running: Vec<Slot>,
    /// Recoveries that had begun: when, and of what.
    known: Vec<(u64, Option<Slot>)>,
    /// Whether the fault is noticed in any case: no sign of it means that it has not been noticed yet. Holds the attempt.
    awaits: Option<u32>,
}

impl Baseline {
    fn of(view: &JobView, fault: OrderedFault) -> Self {
        let running = view.slots.iter().filter(|place| place.pid > 0).map(|place| place.slot);
        Self {
            running: running.collect(),
            known: view.recoveries.iter().map(key).collect(),
            awaits: (fault == OrderedFault::Kill).then_some(view.attempt.0),
        }
    }

    /// Recoveries since then.
    fn news(&self, view: &JobView) -> Vec<RecoveryView> {
        let is_new = |recovery: &&RecoveryView| !self.known.contains(&key(recovery));
        view.recoveries.iter().filter(is_new).cloned().collect()
    }

    fn is_settled(&self, view: &JobView) -> bool {
        let runs =
            |slot: &Slot| view.slots.iter().any(|place| place.slot == *slot && place.pid > 0);
        let is_noticed = self
            .awaits
            .is_none_or(|attempt| view.attempt.0 > attempt || !self.news(view).is_empty());
        view.state == JobState::Running
            && is_noticed
            && view.recoveries.iter().all(|recovery| recovery.done)
            && self.running.iter().all(runs)
    }
}

fn key(recovery: &RecoveryView) -> (u64, Option<Slot>) {
    (recovery.at_ms, recovery.slot)
}
