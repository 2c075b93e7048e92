//! The container's side of the control plane as a state machine: no socket, no clock, no thread.
//!
//! ```text
//!            Retry elapsed / start                Opened
//! Disconnected ─────────────────▶ Connecting ─────────────▶ Connected
//!      ▲                              │ Failed                  │ Closed
//!      └──────────────────────────────┴─────────────────────────┘
//! ```
//!
//! - Attempts never decrease. A line of a lower attempt than the highest known comes from a stale ApplicationMaster; the
//!   container closes that connection. It follows a newer attempt as soon as a look-up finds one.
//! - When the ApplicationMaster is silent, its address is looked up, since a partitioned node closes no connection.
//!   Look-ups back off, since ten thousand containers start them at the same time.
//! - Reports are numbered and kept until they are confirmed. A new connection registers first, then repeats them in order.
//! - A container without a line from any ApplicationMaster for the orphan timeout stops: no other process would stop it.
//!
//! Times are milliseconds of any monotonic clock.

use std::collections::VecDeque;
use std::fmt;

use heddle_backoff::Backoff;
use heddle_protocol::control::{Command, CommandEnvelope, Report, ReportEnvelope};
use heddle_protocol::exit_code::ContainerExitCode;
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::ids::Attempt;

/// Orphan timeout until the welcome sets it: longer than a first start may take.
pub const ORPHAN_MS_DEFAULT: u64 = 120_000;
/// Heartbeat interval until the welcome sets it.
pub const HEARTBEAT_MS_DEFAULT: u64 = 1_000;
/// Waits before a new connection. The longest one brings a container back within a second of a new ApplicationMaster.
const RETRY: Backoff = Backoff::new(20, 1_000);
/// Heartbeats without a response on an open connection after which the address is looked up.
const SILENT_BEATS: u64 = 3;
/// Waits before look-ups of the ApplicationMaster's address. They grow, since ten thousand containers look at once.
const LOOK: Backoff = Backoff::new(1_000, 4_000);
/// Most unconfirmed reports that are kept. A report has some hundred bytes. A container with this many was cut off for
/// hours, and its work is repeated anyway.
const REPORTS_MAX: usize = 100_000;

/// Why a container process ends, with the exit code that YARN and the local cluster receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentExit {
    /// The ApplicationMaster stopped it.
    Stopped(String),
    /// The ApplicationMaster refused its registration: superseded or unknown.
    Refused(String),
    /// No ApplicationMaster for the orphan timeout.
    Orphaned {
        /// Time since the last line.
        silent_ms: u64,
    },
    /// The ApplicationMaster does not share the secret.
    SecretRefused,
}

impl fmt::Display for AgentExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped(reason) => write!(f, "stopped: {reason}"),
            Self::Refused(reason) => {
                write!(f, "the ApplicationMaster refused this container: {reason}")
            }
            Self::Orphaned { silent_ms } => {
                let silent_s = silent_ms / 1000;
                write!(f, "no ApplicationMaster has responded for {silent_s} s")
            }
            Self::SecretRefused => f.write_str(
                "the ApplicationMaster and this container do not share the job's secret",
            ),
        }
    }
}

impl AgentExit {
    /// The process's exit code.
    #[must_use]
    pub fn code(&self) -> ContainerExitCode {
        match self {
            Self::Stopped(_) => ContainerExitCode::Stopped,
            Self::Refused(_) => ContainerExitCode::Refused,
            Self::Orphaned { .. } => ContainerExitCode::Orphaned,
            Self::SecretRefused => ContainerExitCode::SecretRefused,
        }
    }
}

/// An event for the machine.
#[derive(Clone, Debug)]
pub enum Input {
    /// The connection is open and both sides have proved that they have the secret.
    Opened,
    /// No connection could be opened.
    Failed,
    /// One side has another secret.
    SecretRefused,
    /// The connection ended.
    Closed,
    /// A line arrived.
    Line(Box<CommandEnvelope>),
    /// A look-up found the address of this attempt.
    Found(Attempt),
    /// The process reports something.
    Report(Box<Report>),
    /// A deadline passed.
    Timer,
}

/// An action for the shell.
#[derive(Clone, Debug)]
pub enum Output {
    /// Connect to the known address.
    Connect,
    /// Look up the address of the ApplicationMaster.
    Look,
    /// Send a registration with the present state; always the first line of a connection.
    Register,
    /// Send a heartbeat with the figures that changed since the last one.
    Heartbeat {
        /// With all figures instead: the receiver may not have received the last ones.
        all: bool,
    },
    /// Send this line.
    Send(Box<ReportEnvelope>),
    /// Hand this command to the process.
    Deliver(Box<Command>),
    /// Close the connection.
    Close,
    /// End the process.
    Exit(AgentExit),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ControlState {
    Disconnected { retry_at: u64 },
    Connecting,
    Connected { heartbeat_at: u64 },
}

/// The state machine. All times in milliseconds.
#[derive(Clone, Debug)]
pub struct ControlMachine {
    state: ControlState,
    retry: Backoff,
    attempt: Attempt,
    heartbeat_ms: u64,
    orphan_ms: u64,
    /// Digest of the input plan that the first welcome named.
    plan: Option<String>,
    last_line_at: u64,
    look_at: u64,
    look: Backoff,
    next_seq: u64,
    unconfirmed: VecDeque<ReportEnvelope>,
    /// Whether the next heartbeat has all figures. What is sent before the welcome may be ignored, and changes that were on
    /// their way when the connection was lost are.
    all_figures: bool,
}

impl ControlMachine {
    /// A container that has just started.
    #[must_use]
    pub fn new(now: u64) -> Self {
        Self {
            state: ControlState::Disconnected { retry_at: now },
            retry: RETRY,
            attempt: Attempt(0),
            heartbeat_ms: HEARTBEAT_MS_DEFAULT,
            orphan_ms: ORPHAN_MS_DEFAULT,
            plan: None,
            last_line_at: now,
            look_at: now + LOOK.wait_ms(),
            look: LOOK,
            next_seq: 1,
            unconfirmed: VecDeque::new(),
            all_figures: true,
        }
    }

    /// The time at which the shell must send [`Input::Timer`].
    #[must_use]
    pub fn deadline(&self) -> u64 {
        let orphan_at = self.last_line_at.saturating_add(self.orphan_ms);
        let soonest = orphan_at.min(self.next_look());
        match self.state {
            ControlState::Disconnected { retry_at } => retry_at.min(soonest),
            ControlState::Connecting => soonest,
            ControlState::Connected { heartbeat_at } => heartbeat_at.min(soonest),
        }
    }

    fn next_look(&self) -> u64 {
        match self.state {
            ControlState::Disconnected { .. } | ControlState::Connecting => self.look_at,
            ControlState::Connected { .. } => {
                let silent_at = self.last_line_at + SILENT_BEATS * self.heartbeat_ms;
                self.look_at.max(silent_at)
            }
        }
    }

    /// Time since the last line of an ApplicationMaster, ms.
    #[must_use]
    pub fn unheard_ms(&self, now: u64) -> u64 {
        now.saturating_sub(self.last_line_at)
    }

    /// The highest known attempt.
    #[must_use]
    pub fn attempt(&self) -> Attempt {
        self.attempt
    }

    /// Handles an event at the time `now`. Returns the actions that follow from it, in order.
    pub fn on(&mut self, input: Input, now: u64) -> Vec<Output> {
        match input {
            Input::Opened => self.opened(now),
            Input::Failed | Input::Closed => self.closed(now),
            Input::SecretRefused => vec![Output::Exit(AgentExit::SecretRefused)],
            Input::Line(down) => self.line(*down, now),
            Input::Found(attempt) => self.found(attempt, now),
            Input::Report(report) => self.report(*report),
            Input::Timer => self.timer(now),
        }
    }

    fn opened(&mut self, now: u64) -> Vec<Output> {
        self.state = ControlState::Connected { heartbeat_at: now + self.heartbeat_ms };
        self.all_figures = true;
        let mut outputs = vec![Output::Register];
        outputs.extend(self.unconfirmed.iter().cloned().map(|line| Output::Send(Box::new(line))));
        outputs
    }

    /// Follows a newer attempt at once, also from an open connection: the attempt at its other end is stale.
    fn found(&mut self, attempt: Attempt, now: u64) -> Vec<Output> {
        if attempt <= self.attempt {
            return Vec::new();
        }
        self.attempt = attempt;
        self.retry.reset();
        self.look_at = now + self.look.wait_ms();
        self.state = ControlState::Disconnected { retry_at: now };
        vec![Output::Close]
    }

    fn closed(&mut self, now: u64) -> Vec<Output> {
        if let ControlState::Connected { .. } = self.state {
            self.look_at = now + self.look.wait_ms();
        }
        self.state = ControlState::Disconnected { retry_at: now + self.retry.next_ms() };
        Vec::new()
    }

    fn line(&mut self, down: CommandEnvelope, now: u64) -> Vec<Output> {
        if down.attempt < self.attempt {
            return vec![Output::Close];
        }
        self.attempt = down.attempt;
        self.last_line_at = now;
        self.retry.reset();
        self.look.reset();
        self.look_at = now;
        while self.unconfirmed.front().is_some_and(|line| line.seq <= down.acknowledged) {
            self.unconfirmed.pop_front();
        }
        match down.command {
            None => Vec::new(),
            Some(Command::Refused { reason }) => vec![Output::Exit(AgentExit::Refused(reason))],
            Some(Command::Stop { reason }) => vec![Output::Exit(AgentExit::Stopped(reason))],
            Some(command) => {
                if let Command::Welcome(welcome) = &command {
                    let digest = &welcome.plan.sha256;
                    if self.plan.get_or_insert_with(|| digest.clone()) != digest {
                        // Task numbers mean other records to this container than to that ApplicationMaster.
                        return self.report(Report::Fatal {
                            failure: Failure::new(
                                ErrorClass::Input,
                                "data.train, data.test: the files have changed since the job \
                                 began, and no checkpoint exists yet: submit the job again",
                            ),
                        });
                    }
                    self.all_figures = true;
                    self.heartbeat_ms = welcome.heartbeat_ms.max(1);
                    self.orphan_ms = welcome.orphan_ms.max(1);
                    if let ControlState::Connected { heartbeat_at } = &mut self.state {
                        *heartbeat_at = now + self.heartbeat_ms;
                    }
                }
                vec![Output::Deliver(Box::new(command))]
            }
        }
    }

    fn report(&mut self, report: Report) -> Vec<Output> {
        let line = ReportEnvelope { seq: self.next_seq, report };
        self.next_seq += 1;
        if self.unconfirmed.len() == REPORTS_MAX {
            self.unconfirmed.pop_front();
        }
        self.unconfirmed.push_back(line.clone());
        match self.state {
            // Each report comes with figures, so those shown at the end of a phase are of that phase.
            ControlState::Connected { .. } => vec![self.heartbeat(), Output::Send(Box::new(line))],
            ControlState::Disconnected { .. } | ControlState::Connecting => Vec::new(),
        }
    }

    fn heartbeat(&mut self) -> Output {
        Output::Heartbeat { all: std::mem::take(&mut self.all_figures) }
    }

    fn timer(&mut self, now: u64) -> Vec<Output> {
        let silent_ms = now.saturating_sub(self.last_line_at);
        if silent_ms >= self.orphan_ms {
            return vec![Output::Exit(AgentExit::Orphaned { silent_ms })];
        }
        let mut outputs = Vec::new();
        if now >= self.next_look() {
            outputs.push(Output::Look);
            self.look_at = now + self.look.next_ms();
        }
        match &mut self.state {
            ControlState::Disconnected { retry_at } if now >= *retry_at => {
                self.state = ControlState::Connecting;
                outputs.push(Output::Connect);
            }
            ControlState::Connected { heartbeat_at } if now >= *heartbeat_at => {
                *heartbeat_at = now + self.heartbeat_ms;
                outputs.push(self.heartbeat());
            }
            ControlState::Disconnected { .. }
            | ControlState::Connecting
            | ControlState::Connected { .. } => {}
        }
        outputs
    }
}

#[cfg(test)]
mod tests {
    use heddle_protocol::control::{TrainerReport, Welcome};
    use heddle_protocol::ids::{Epoch, Generation, RunId};
    use heddle_protocol::plan_file::PlanFile;

    use super::*;

    fn stepping(count: u32) -> Input {
        Input::Report(Box::new(Report::Trainer(TrainerReport::Stepping {
            epoch: Epoch { generation: Generation(1), count },
        })))
    }

    fn line(attempt: u32, acknowledged: u64, command: Option<Command>) -> Input {
        Input::Line(Box::new(CommandEnvelope { attempt: Attempt(attempt), acknowledged, command }))
    }

    fn connected(now: u64) -> ControlMachine {
        let mut machine = ControlMachine::new(now);
        assert!(matches!(machine.on(Input::Timer, now)[..], [Output::Connect]));
        assert!(matches!(machine.on(Input::Opened, now)[..], [Output::Register]));
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
        assert!(machine.on(stepping(9), 4).is_empty(), "kept without a connection");
        let outputs = machine.on(Input::Opened, 5);
        assert!(matches!(outputs[0], Output::Register));
        assert_eq!(sent(&outputs), [2, 3, 4]);
    }

    fn welcome(plan: &str) -> Command {
        Command::Welcome(Box::new(Welcome {
            run: RunId(uuid::Uuid::nil()),
            spec: heddle_protocol::job_spec::job::sample(),
            plan: PlanFile { sha256: plan.to_owned(), ..PlanFile::default() },
            heartbeat_ms: 1_000,
            orphan_ms: 1_000,
        }))
    }

    /// Whether the heartbeat that a report brings along has all figures.
    fn beats_with_all(machine: &mut ControlMachine, now: u64) -> bool {
        match machine.on(stepping(1), now)[..] {
            [Output::Heartbeat { all }, Output::Send(_)] => all,
            ref outputs => panic!("no heartbeat in {outputs:?}"),
        }
    }

    #[test]
    fn an_application_master_that_may_lack_figures_gets_all() {
        let mut machine = connected(0);
        assert!(beats_with_all(&mut machine, 1));
        assert!(!beats_with_all(&mut machine, 2));
        machine.on(line(1, 0, Some(welcome("aa"))), 3);
        assert!(beats_with_all(&mut machine, 4), "what came before the welcome may be ignored");
        assert!(!beats_with_all(&mut machine, 5));
        machine.on(Input::Closed, 6);
        machine.on(Input::Opened, 7);
        assert!(beats_with_all(&mut machine, 8), "changes were lost with the connection");
        machine.on(line(2, 0, Some(welcome("aa"))), 9);
        assert!(beats_with_all(&mut machine, 10), "a new attempt knows nothing");
    }

    #[test]
    fn changed_input_plan_in_a_later_welcome_fails_the_job() {
        let mut machine = connected(0);
        for _ in 0..2 {
            let outputs = machine.on(line(1, 0, Some(welcome("aa"))), 1);
            assert!(matches!(outputs[..], [Output::Deliver(_)]), "{outputs:?}");
        }
        let outputs = machine.on(line(2, 0, Some(welcome("bb"))), 2);
        let fatal = outputs.iter().any(|output| match output {
            Output::Send(line) => {
                let input = ErrorClass::Input;
                matches!(&line.report, Report::Fatal { failure } if failure.class == input)
            }
            _ => false,
        });
        assert!(fatal, "{outputs:?}");
        let delivered = |output: &Output| matches!(output, Output::Deliver(_));
        assert!(!outputs.iter().any(delivered), "{outputs:?}");
    }

    #[test]
    fn command_of_a_lower_attempt_is_ignored() {
        let mut machine = connected(0);
        machine.on(line(2, 0, None), 1);
        let stop = Command::Stop { reason: "stale".into() };
        assert!(matches!(machine.on(line(1, 0, Some(stop.clone())), 2)[..], [Output::Close]));
        assert!(matches!(
            machine.on(line(2, 0, Some(stop)), 3)[..],
            [Output::Exit(AgentExit::Stopped(_))]
        ));
    }

    #[test]
    fn orphan_timeout_ends_the_container_with_an_open_connection() {
        let mut machine = connected(0);
        machine.on(line(1, 0, None), 1_000);
        assert!(
            !machine
                .on(Input::Timer, 1_000 + ORPHAN_MS_DEFAULT - 1)
                .iter()
                .any(|output| matches!(output, Output::Exit(_)))
        );
        let outputs = machine.on(Input::Timer, 1_000 + ORPHAN_MS_DEFAULT);
        assert!(matches!(outputs[..], [Output::Exit(AgentExit::Orphaned { .. })]), "{outputs:?}");
    }

    #[test]
    fn reconnects_back_off_until_a_line_arrives() {
        let mut machine = connected(0);
        let mut waits = Vec::new();
        let mut now = 0;
        for _ in 0..8 {
            machine.on(Input::Failed, now);
            let failed = now;
            loop {
                now = machine.deadline();
                let outputs = machine.on(Input::Timer, now);
                if outputs.iter().any(|output| matches!(output, Output::Connect)) {
                    break;
                }
            }
            waits.push(now - failed);
        }
        assert_eq!(waits, [20, 40, 80, 160, 320, 640, 1000, 1000]);
        machine.on(Input::Opened, now);
        machine.on(line(1, 0, None), now);
        machine.on(Input::Closed, now);
        assert_eq!(machine.deadline() - now, 20);
    }

    /// Times of look-ups from `now` for `for_ms`, while heartbeats and connections fail.
    fn looks(machine: &mut ControlMachine, now: u64, for_ms: u64) -> Vec<u64> {
        let mut looks = Vec::new();
        while machine.deadline() < now + for_ms {
            let at = machine.deadline();
            for output in machine.on(Input::Timer, at) {
                match output {
                    Output::Look => looks.push(at - now),
                    Output::Connect => drop(machine.on(Input::Failed, at)),
                    _ => {}
                }
            }
        }
        looks
    }

    #[test]
    fn lookups_of_a_lost_application_master_back_off() {
        let mut machine = connected(0);
        machine.on(line(1, 0, None), 100_000);
        machine.on(Input::Closed, 100_000);
        assert_eq!(looks(&mut machine, 100_000, 12_000), [1_000, 2_000, 4_000, 8_000]);
    }

    #[test]
    fn unanswered_heartbeats_start_lookups() {
        let mut machine = connected(0);
        machine.on(line(1, 0, None), 100_000);
        assert_eq!(looks(&mut machine, 100_000, 10_000), [3_000, 4_000, 6_000]);
        for beat in 1..20 {
            machine.on(line(1, 0, None), 110_000 + beat * HEARTBEAT_MS_DEFAULT);
            let at = 110_000 + beat * HEARTBEAT_MS_DEFAULT;
            assert!(looks(&mut machine, at, HEARTBEAT_MS_DEFAULT).is_empty());
        }
    }

    #[test]
    fn newer_attempt_is_followed_and_the_older_never_again() {
        let mut machine = connected(0);
        machine.on(line(1, 0, None), 1);
        assert!(machine.on(Input::Found(Attempt(1)), 2).is_empty(), "it is the connected attempt");
        assert!(matches!(machine.on(Input::Found(Attempt(2)), 3)[..], [Output::Close]));
        assert!(matches!(machine.on(Input::Timer, 3)[..], [Output::Connect]));
        machine.on(Input::Opened, 4);
        assert!(
            matches!(machine.on(line(1, 0, None), 5)[..], [Output::Close]),
            "the older attempt answered"
        );
        assert!(machine.on(Input::Found(Attempt(1)), 6).is_empty());
        assert!(machine.on(line(2, 0, None), 7).is_empty(), "the newer attempt answered");
    }

    #[test]
    fn refused_registration_ends_with_exit_code_9() {
        let mut machine = connected(0);
        let refused = Command::Refused { reason: "superseded".into() };
        let outputs = machine.on(line(1, 0, Some(refused)), 1);
        let [Output::Exit(exit)] = &outputs[..] else { panic!("{outputs:?}") };
        assert_eq!(exit.code(), ContainerExitCode::Refused);
    }
}
