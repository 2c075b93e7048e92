//! The span of a container's log lines: `job`, `attempt`, `epoch` and `slot`, as in the ApplicationMaster's log.

use std::sync::{Arc, Mutex, PoisonError};

use heddle_protocol::control::{Command, LoadShards, PserverCommand, TrainerCommand};
use heddle_protocol::ids::{Attempt, Epoch, Slot};
use tracing::Span;

/// What log lines of this container carry. The control thread follows the commands of the ApplicationMaster; other threads
/// enter [`span`](Self::span) for each command or job that they handle, so a frame or a step costs nothing.
#[derive(Clone, Debug)]
pub struct LogContext(Arc<Mutex<LogFields>>);

#[derive(Debug)]
struct LogFields {
    slot: Slot,
    job: Option<String>,
    attempt: Option<Attempt>,
    epoch: Option<Epoch>,
    span: Span,
}

impl LogContext {
    /// The slot alone, until the container is registered.
    #[must_use]
    pub fn new(slot: Slot) -> Self {
        let mut fields =
            LogFields { slot, job: None, attempt: None, epoch: None, span: Span::none() };
        fields.span = fields.new_span();
        Self(Arc::new(Mutex::new(fields)))
    }

    /// The present span.
    #[must_use]
    pub fn span(&self) -> Span {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).span.clone()
    }

    /// Takes job, attempt and epoch from a command.
    pub(super) fn follow(&self, attempt: Attempt, command: &Command) {
        let mut fields = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let job = match command {
            Command::Welcome(welcome) => Some(&welcome.spec.name),
            _ => None,
        };
        let epoch = match command {
            Command::Pserver(PserverCommand::LoadShards(LoadShards { epoch, .. }))
            | Command::Trainer(TrainerCommand::Work { epoch, .. }) => Some(*epoch),
            _ => None,
        };
        let is_new_job = job.is_some() && fields.job.as_ref() != job;
        // A stale command has a lower epoch.
        if !is_new_job && fields.attempt == Some(attempt) && epoch <= fields.epoch {
            return;
        }
        fields.attempt = Some(attempt);
        fields.epoch = fields.epoch.max(epoch);
        if let Some(job) = job {
            fields.job = Some(job.clone());
        }
        fields.span = fields.new_span();
    }
}

impl LogFields {
    /// A new span for each change: a field that is recorded again would be printed twice.
    fn new_span(&self) -> Span {
        let (attempt, epoch) =
            (self.attempt.map(tracing::field::display), self.epoch.map(tracing::field::display));
        let (job, slot) = (&self.job, &self.slot);
        tracing::info_span!(parent: None, "container", job, attempt, epoch, %slot)
    }
}

#[cfg(test)]
mod tests {
    use heddle_protocol::control::{Phase, Sharing};
    use heddle_protocol::ids::{Generation, PhaseNo};

    use super::*;

    /// Epoch and attempt after a `Work` command.
    fn after(log: &LogContext, attempt: u32, epoch: Epoch) -> (Option<Attempt>, Option<Epoch>) {
        let phase = Phase { no: PhaseNo(0), sharing: Sharing::Queue };
        log.follow(
            Attempt(attempt),
            &Command::Trainer(TrainerCommand::Work { epoch, phase, places: Vec::new() }),
        );
        let fields = log.0.lock().expect("no thread panicked");
        (fields.attempt, fields.epoch)
    }

    #[test]
    fn span_follows_attempt_and_epoch() {
        let log = LogContext::new(Slot::trainer(1));
        let (first, second) = (Epoch::first(Generation(1)), Epoch::first(Generation(2)));
        assert_eq!(after(&log, 1, first), (Some(Attempt(1)), Some(first)));
        assert_eq!(after(&log, 2, second), (Some(Attempt(2)), Some(second)));
        assert_eq!(after(&log, 2, first), (Some(Attempt(2)), Some(second)), "the epoch is stale");
        log.follow(Attempt(3), &Command::Trainer(TrainerCommand::Drain));
        assert_eq!(after(&log, 3, second), (Some(Attempt(3)), Some(second)));
    }
}
