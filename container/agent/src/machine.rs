//! The container's side of the control plane as a state machine: no socket, no clock, no thread.
//!
//! ```text
//!            Retry elapsed / start                Opened
//! Disconnected ─────────────────▶ Connecting ─────────────▶ Connected
//!      ▲                              │ Failed                  │ Closed
//!      └──────────────────────────────┴─────────────────────────┘
//! ```
//!
//! Rules. Whoever speaks with a lower attempt than the highest seen is a zombie and is not obeyed.
//! Reports are numbered and kept until confirmed; a new connection registers first, then repeats
//! them in order. A container that has heard from no ApplicationMaster for the orphan time stops by
//! itself: nobody else will stop it. Times are milliseconds of any monotonic clock.

use std::collections::VecDeque;

use heddle_protocol::control::{Command, Down, Up, UpLine};
use heddle_protocol::ids::Attempt;

/// Before an ApplicationMaster has said otherwise: longer than a first start may take.
pub const ORPHAN_MS_DEFAULT: u64 = 120_000;
/// Before an ApplicationMaster has said otherwise.
pub const HEARTBEAT_MS_DEFAULT: u64 = 2_000;
/// First wait before a new connection; doubled up to [`RETRY_MS_MAX`].
const RETRY_MS_MIN: u64 = 20;
/// Longest wait: a container is back within a second of a new ApplicationMaster.
const RETRY_MS_MAX: u64 = 1_000;
/// Unconfirmed reports kept at the most. A report is some hundred bytes; a container that has this many has not
/// been heard for hours and its work will be done again anyway.
const REPORTS_MAX: usize = 100_000;

/// Why a container ends, with the exit code that YARN and the local cluster see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Told to stop.
    Stopped(String),
    /// Not wanted: superseded or unknown.
    Refused(String),
    /// No ApplicationMaster for the orphan time.
    Orphaned {
        /// How long.
        silent_ms: u64,
    },
    /// The ApplicationMaster does not share the secret.
    SecretRefused,
}

impl Exit {
    /// The process's exit code.
    #[must_use]
    pub fn code(&self) -> u8 {
        match self {
            Self::Stopped(_) => 0,
            Self::Refused(_) => 9,
            Self::Orphaned { .. } => 20,
            Self::SecretRefused => 22,
        }
    }
}

/// What happened outside.
#[derive(Clone, Debug)]
pub enum Input {
    /// The connection stands and both sides have proved themselves.
    Opened,
    /// No connection came about.
    Failed,
    /// The other side proved itself wrong or refused our proof.
    SecretRefused,
    /// The connection ended.
    Closed,
    /// A line came.
    Line(Box<Down>),
    /// The application has something to report.
    Report(Box<Up>),
    /// A deadline passed.
    Timer,
}

/// What is to be done outside.
#[derive(Clone, Debug)]
pub enum Output {
    /// Look up the address and connect.
    Connect,
    /// Send a registration made now; always the first line of a connection.
    Register,
    /// Send a heartbeat made now.
    Heartbeat,
    /// Send this line.
    Send(Box<UpLine>),
    /// Hand this to the application.
    Deliver(Box<Command>),
    /// Close the connection.
    Close,
    /// End the process.
    Exit(Exit),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Disconnected { retry_at: u64 },
    Connecting,
    Connected { beat_at: u64 },
}

/// The state machine. All times in milliseconds.
#[derive(Clone, Debug)]
pub struct Machine {
    state: State,
    retry_ms: u64,
    attempt: Attempt,
    heartbeat_ms: u64,
    orphan_ms: u64,
    heard_at: u64,
    next_seq: u64,
    unconfirmed: VecDeque<UpLine>,
}

impl Machine {
    /// A container that has just started.
    #[must_use]
    pub fn new(now: u64) -> Self {
        Self {
            state: State::Disconnected { retry_at: now },
            retry_ms: RETRY_MS_MIN,
            attempt: Attempt(0),
            heartbeat_ms: HEARTBEAT_MS_DEFAULT,
            orphan_ms: ORPHAN_MS_DEFAULT,
            heard_at: now,
            next_seq: 1,
            unconfirmed: VecDeque::new(),
        }
    }

    /// When [`Input::Timer`] is due.
    #[must_use]
    pub fn deadline(&self) -> u64 {
        let orphan_at = self.heard_at.saturating_add(self.orphan_ms);
        match self.state {
            State::Disconnected { retry_at } => retry_at.min(orphan_at),
            State::Connecting => orphan_at,
            State::Connected { beat_at } => beat_at.min(orphan_at),
        }
    }

    /// One event; what is to be done because of it, in order.
    pub fn on(&mut self, input: Input, now: u64) -> Vec<Output> {
        match input {
            Input::Opened => self.opened(now),
            Input::Failed | Input::Closed => self.closed(now),
            Input::SecretRefused => vec![Output::Exit(Exit::SecretRefused)],
            Input::Line(down) => self.line(*down, now),
            Input::Report(report) => self.report(*report),
            Input::Timer => self.timer(now),
        }
    }

    fn opened(&mut self, now: u64) -> Vec<Output> {
        self.state = State::Connected {
            beat_at: now + self.heartbeat_ms,
        };
        let mut outputs = vec![Output::Register];
        outputs.extend(
            self.unconfirmed
                .iter()
                .cloned()
                .map(|line| Output::Send(Box::new(line))),
        );
        outputs
    }

    fn closed(&mut self, now: u64) -> Vec<Output> {
        self.state = State::Disconnected {
            retry_at: now + self.retry_ms,
        };
        self.retry_ms = (self.retry_ms * 2).min(RETRY_MS_MAX);
        Vec::new()
    }

    fn line(&mut self, down: Down, now: u64) -> Vec<Output> {
        if down.attempt < self.attempt {
            return vec![Output::Close];
        }
        self.attempt = down.attempt;
        self.heard_at = now;
        self.retry_ms = RETRY_MS_MIN;
        while self
            .unconfirmed
            .front()
            .is_some_and(|line| line.seq <= down.heard)
        {
            self.unconfirmed.pop_front();
        }
        match down.command {
            None => Vec::new(),
            Some(Command::Refused { reason }) => vec![Output::Exit(Exit::Refused(reason))],
            Some(command) => {
                if let Command::Welcome(welcome) = &command {
                    self.heartbeat_ms = welcome.heartbeat_ms.max(1);
                    self.orphan_ms = welcome.orphan_ms.max(1);
                    if let State::Connected { beat_at } = &mut self.state {
                        *beat_at = now + self.heartbeat_ms;
                    }
                }
                vec![Output::Deliver(Box::new(command))]
            }
        }
    }

    fn report(&mut self, report: Up) -> Vec<Output> {
        let line = UpLine {
            seq: self.next_seq,
            report,
        };
        self.next_seq += 1;
        if self.unconfirmed.len() == REPORTS_MAX {
            self.unconfirmed.pop_front();
        }
        self.unconfirmed.push_back(line.clone());
        match self.state {
            // Figures go with each report, so that what is shown at the end of a phase is that phase's.
            State::Connected { .. } => vec![Output::Heartbeat, Output::Send(Box::new(line))],
            State::Disconnected { .. } | State::Connecting => Vec::new(),
        }
    }

    fn timer(&mut self, now: u64) -> Vec<Output> {
        let silent_ms = now.saturating_sub(self.heard_at);
        if silent_ms >= self.orphan_ms {
            return vec![Output::Exit(Exit::Orphaned { silent_ms })];
        }
        match &mut self.state {
            State::Disconnected { retry_at } if now >= *retry_at => {
                self.state = State::Connecting;
                vec![Output::Connect]
            }
            State::Connected { beat_at } if now >= *beat_at => {
                *beat_at = now + self.heartbeat_ms;
                vec![Output::Heartbeat]
            }
            State::Disconnected { .. } | State::Connecting | State::Connected { .. } => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use heddle_protocol::ids::{Epoch, Generation};

    use super::*;

    fn stepping(count: u32) -> Input {
        Input::Report(Box::new(Up::Stepping {
            epoch: Epoch {
                generation: Generation(1),
                count,
            },
        }))
    }

    fn line(attempt: u32, heard: u64, command: Option<Command>) -> Input {
        Input::Line(Box::new(Down {
            attempt: Attempt(attempt),
            heard,
            command,
        }))
    }

    fn connected(now: u64) -> Machine {
        let mut machine = Machine::new(now);
        assert!(matches!(
            machine.on(Input::Timer, now)[..],
            [Output::Connect]
        ));
        assert!(matches!(
            machine.on(Input::Opened, now)[..],
            [Output::Register]
        ));
        machine
    }

    fn sent(outputs: &[Output]) -> Vec<u64> {
        outputs
            .iter()
            .filter_map(|output| match output {
                Output::Send(line) => Some(line.seq),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn unconfirmed_reports_are_sent_again_after_the_registration() {
        let mut machine = connected(0);
        for count in 0..3 {
            machine.on(stepping(count), 1);
        }
        machine.on(line(1, 1, None), 2);
        machine.on(Input::Closed, 3);
        assert!(
            machine.on(stepping(9), 4).is_empty(),
            "kept while there is no connection"
        );
        let outputs = machine.on(Input::Opened, 5);
        assert!(matches!(outputs[0], Output::Register));
        assert_eq!(sent(&outputs), [2, 3, 4]);
    }

    #[test]
    fn a_lower_attempt_is_not_obeyed() {
        let mut machine = connected(0);
        machine.on(line(2, 0, None), 1);
        let stop = Command::Stop {
            reason: "zombie".into(),
        };
        assert!(matches!(
            machine.on(line(1, 0, Some(stop.clone())), 2)[..],
            [Output::Close]
        ));
        assert!(matches!(
            machine.on(line(2, 0, Some(stop)), 3)[..],
            [Output::Deliver(_)]
        ));
    }

    #[test]
    fn silence_for_the_orphan_time_ends_the_container_even_on_an_open_connection() {
        let mut machine = connected(0);
        machine.on(line(1, 0, None), 1_000);
        assert!(
            !machine
                .on(Input::Timer, 1_000 + ORPHAN_MS_DEFAULT - 1)
                .iter()
                .any(|output| matches!(output, Output::Exit(_)))
        );
        let outputs = machine.on(Input::Timer, 1_000 + ORPHAN_MS_DEFAULT);
        assert!(
            matches!(outputs[..], [Output::Exit(Exit::Orphaned { .. })]),
            "{outputs:?}"
        );
    }

    #[test]
    fn reconnects_back_off_and_start_over_once_heard() {
        let mut machine = connected(0);
        let mut waits = Vec::new();
        let mut now = 0;
        for _ in 0..8 {
            machine.on(Input::Failed, now);
            waits.push(machine.deadline() - now);
            now = machine.deadline();
            assert!(matches!(
                machine.on(Input::Timer, now)[..],
                [Output::Connect]
            ));
        }
        assert_eq!(waits, [20, 40, 80, 160, 320, 640, 1000, 1000]);
        machine.on(Input::Opened, now);
        machine.on(line(1, 0, None), now);
        machine.on(Input::Closed, now);
        assert_eq!(machine.deadline() - now, 20);
    }

    #[test]
    fn a_refusal_ends_it_with_its_own_code() {
        let mut machine = connected(0);
        let refused = Command::Refused {
            reason: "superseded".into(),
        };
        let outputs = machine.on(line(1, 0, Some(refused)), 1);
        assert!(
            matches!(&outputs[..], [Output::Exit(exit)] if exit.code() == 9),
            "{outputs:?}"
        );
    }
}
