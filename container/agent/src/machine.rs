//! The container's side of the control plane as a state machine: no socket, no clock, no thread.
//!
//! ```text
//!            Retry elapsed / start                Opened
//! Disconnected ─────────────────▶ Connecting ─────────────▶ Connected
//!      ▲                              │ Failed                  │ Closed
//!      └──────────────────────────────┴─────────────────────────┘
//! ```
//!
//! Rules. Whoever speaks with a lower attempt than the highest seen is a zombie and is not obeyed; so is one
//! whose successor has been found: attempts never go down. Who is silent is looked up (a node that is cut off
//! closes no connection), ever more rarely, since ten thousand containers look at once.
//! Reports are numbered and kept until confirmed; a new connection registers first, then repeats
//! them in order. A container that has heard from no ApplicationMaster for the orphan time stops by
//! itself: nobody else will stop it. Times are milliseconds of any monotonic clock.

use std::collections::VecDeque;
use std::fmt;

use heddle_protocol::control::{Command, CommandEnvelope, Report, ReportEnvelope};
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::ids::Attempt;

/// Before an ApplicationMaster has said otherwise: longer than a first start may take.
pub const ORPHAN_MS_DEFAULT: u64 = 120_000;
/// Before an ApplicationMaster has said otherwise.
pub const HEARTBEAT_MS_DEFAULT: u64 = 2_000;
/// First wait before a new connection; doubled up to [`RETRY_MS_MAX`].
const RETRY_MS_MIN: u64 = 20;
/// Longest wait: a container is back within a second of a new ApplicationMaster.
const RETRY_MS_MAX: u64 = 1_000;
/// Silence on an open connection, in heartbeats (each is answered), after which a successor is looked for.
const SILENT_BEATS: u64 = 3;
/// First wait before the ApplicationMaster is looked up; doubled up to [`LOOK_MS_MAX`].
const LOOK_MS_MIN: u64 = 1_000;
/// Longest wait between two look-ups.
const LOOK_MS_MAX: u64 = 4_000;
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

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped(reason) => write!(f, "stopped: {reason}"),
            Self::Refused(reason) => {
                write!(f, "the ApplicationMaster refused this container: {reason}")
            }
            Self::Orphaned { silent_ms } => {
                let silent_s = silent_ms / 1000;
                write!(f, "no ApplicationMaster was heard for {silent_s} s")
            }
            Self::SecretRefused => f.write_str(
                "the ApplicationMaster and this container do not share the job's secret",
            ),
        }
    }
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
    Line(Box<CommandEnvelope>),
    /// A look-up found where this attempt is.
    Found(Attempt),
    /// The application has something to report.
    Report(Box<Report>),
    /// A deadline passed.
    Timer,
}

/// What is to be done outside.
#[derive(Clone, Debug)]
pub enum Output {
    /// Connect to the address known.
    Connect,
    /// Look up where the ApplicationMaster is now.
    Look,
    /// Send a registration made now; always the first line of a connection.
    Register,
    /// Send a heartbeat made now.
    Heartbeat,
    /// Send this line.
    Send(Box<ReportEnvelope>),
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
    /// Digest of the input plan that the first welcome named.
    plan: Option<String>,
    heard_at: u64,
    look_at: u64,
    look_ms: u64,
    next_seq: u64,
    unconfirmed: VecDeque<ReportEnvelope>,
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
            plan: None,
            heard_at: now,
            look_at: now + LOOK_MS_MIN,
            look_ms: LOOK_MS_MIN,
            next_seq: 1,
            unconfirmed: VecDeque::new(),
        }
    }

    /// When [`Input::Timer`] is due.
    #[must_use]
    pub fn deadline(&self) -> u64 {
        let orphan_at = self.heard_at.saturating_add(self.orphan_ms);
        let soonest = orphan_at.min(self.next_look());
        match self.state {
            State::Disconnected { retry_at } => retry_at.min(soonest),
            State::Connecting => soonest,
            State::Connected { beat_at } => beat_at.min(soonest),
        }
    }

    fn next_look(&self) -> u64 {
        match self.state {
            State::Disconnected { .. } | State::Connecting => self.look_at,
            State::Connected { .. } => {
                let silent_at = self.heard_at + SILENT_BEATS * self.heartbeat_ms;
                self.look_at.max(silent_at)
            }
        }
    }

    /// One event; what is to be done because of it, in order.
    pub fn on(&mut self, input: Input, now: u64) -> Vec<Output> {
        match input {
            Input::Opened => self.opened(now),
            Input::Failed | Input::Closed => self.closed(now),
            Input::SecretRefused => vec![Output::Exit(Exit::SecretRefused)],
            Input::Line(down) => self.line(*down, now),
            Input::Found(attempt) => self.found(attempt, now),
            Input::Report(report) => self.report(*report),
            Input::Timer => self.timer(now),
        }
    }

    fn opened(&mut self, now: u64) -> Vec<Output> {
        self.state = State::Connected { beat_at: now + self.heartbeat_ms };
        let mut outputs = vec![Output::Register];
        outputs.extend(self.unconfirmed.iter().cloned().map(|line| Output::Send(Box::new(line))));
        outputs
    }

    /// A successor is followed at once, also from a connection that stands: whoever is at its other end leads no more.
    fn found(&mut self, attempt: Attempt, now: u64) -> Vec<Output> {
        if attempt <= self.attempt {
            return Vec::new();
        }
        self.attempt = attempt;
        self.retry_ms = RETRY_MS_MIN;
        self.look_at = now + self.look_ms;
        self.state = State::Disconnected { retry_at: now };
        vec![Output::Close]
    }

    fn closed(&mut self, now: u64) -> Vec<Output> {
        if let State::Connected { .. } = self.state {
            self.look_at = now + self.look_ms;
        }
        self.state = State::Disconnected { retry_at: now + self.retry_ms };
        self.retry_ms = (self.retry_ms * 2).min(RETRY_MS_MAX);
        Vec::new()
    }

    fn line(&mut self, down: CommandEnvelope, now: u64) -> Vec<Output> {
        if down.attempt < self.attempt {
            return vec![Output::Close];
        }
        self.attempt = down.attempt;
        self.heard_at = now;
        self.retry_ms = RETRY_MS_MIN;
        self.look_ms = LOOK_MS_MIN;
        self.look_at = now;
        while self.unconfirmed.front().is_some_and(|line| line.seq <= down.heard) {
            self.unconfirmed.pop_front();
        }
        match down.command {
            None => Vec::new(),
            Some(Command::Refused { reason }) => vec![Output::Exit(Exit::Refused(reason))],
            Some(Command::Stop { reason }) => vec![Output::Exit(Exit::Stopped(reason))],
            Some(command) => {
                if let Command::Welcome(welcome) = &command {
                    let digest = &welcome.plan.sha256;
                    if self.plan.get_or_insert_with(|| digest.clone()) != digest {
                        // Numbers of tasks mean other records to this container than to that ApplicationMaster.
                        return self.report(Report::Fatal {
                            failure: Failure::new(
                                ErrorClass::Input,
                                "data.train, data.test: the files are not what they were when the job began, and \
                                 there is no checkpoint yet: submit the job again",
                            ),
                        });
                    }
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

    fn report(&mut self, report: Report) -> Vec<Output> {
        let line = ReportEnvelope { seq: self.next_seq, report };
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
        let mut outputs = Vec::new();
        if now >= self.next_look() {
            outputs.push(Output::Look);
            self.look_at = now + self.look_ms;
            self.look_ms = (self.look_ms * 2).min(LOOK_MS_MAX);
        }
        match &mut self.state {
            State::Disconnected { retry_at } if now >= *retry_at => {
                self.state = State::Connecting;
                outputs.push(Output::Connect);
            }
            State::Connected { beat_at } if now >= *beat_at => {
                *beat_at = now + self.heartbeat_ms;
                outputs.push(Output::Heartbeat);
            }
            State::Disconnected { .. } | State::Connecting | State::Connected { .. } => {}
        }
        outputs
    }
}

#[cfg(test)]
mod tests {
    use heddle_protocol::control::Welcome;
    use heddle_protocol::ids::{Epoch, Generation, RunId};
    use heddle_protocol::plan_file::PlanFile;

    use super::*;

    fn stepping(count: u32) -> Input {
        Input::Report(Box::new(Report::Stepping {
            epoch: Epoch { generation: Generation(1), count },
        }))
    }

    fn line(attempt: u32, heard: u64, command: Option<Command>) -> Input {
        Input::Line(Box::new(CommandEnvelope { attempt: Attempt(attempt), heard, command }))
    }

    fn connected(now: u64) -> Machine {
        let mut machine = Machine::new(now);
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
        assert!(machine.on(stepping(9), 4).is_empty(), "kept while there is no connection");
        let outputs = machine.on(Input::Opened, 5);
        assert!(matches!(outputs[0], Output::Register));
        assert_eq!(sent(&outputs), [2, 3, 4]);
    }

    fn welcome(plan: &str) -> Command {
        Command::Welcome(Box::new(Welcome {
            run: RunId(uuid::Uuid::nil()),
            spec: heddle_protocol::spec::job::sample(),
            plan: PlanFile { sha256: plan.to_owned(), ..PlanFile::default() },
            heartbeat_ms: 1_000,
            orphan_ms: 1_000,
        }))
    }

    #[test]
    fn another_input_plan_in_a_later_welcome_fails_the_job() {
        let mut machine = connected(0);
        for _ in 0..2 {
            let outputs = machine.on(line(1, 0, Some(welcome("aa"))), 1);
            assert!(matches!(outputs[..], [Output::Deliver(_)]), "{outputs:?}");
        }
        let outputs = machine.on(line(2, 0, Some(welcome("bb"))), 2);
        let fatal = outputs.iter().any(|output| match output {
            Output::Send(line) => {
                matches!(&line.report, Report::Fatal { failure } if failure.class == ErrorClass::Input)
            }
            _ => false,
        });
        assert!(fatal, "{outputs:?}");
        let delivered = |output: &Output| matches!(output, Output::Deliver(_));
        assert!(!outputs.iter().any(delivered), "{outputs:?}");
    }

    #[test]
    fn a_lower_attempt_is_not_obeyed() {
        let mut machine = connected(0);
        machine.on(line(2, 0, None), 1);
        let stop = Command::Stop { reason: "zombie".into() };
        assert!(matches!(machine.on(line(1, 0, Some(stop.clone())), 2)[..], [Output::Close]));
        assert!(matches!(
            machine.on(line(2, 0, Some(stop)), 3)[..],
            [Output::Exit(Exit::Stopped(_))]
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
        assert!(matches!(outputs[..], [Output::Exit(Exit::Orphaned { .. })]), "{outputs:?}");
    }

    #[test]
    fn reconnects_back_off_and_start_over_once_heard() {
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

    /// When the machine looks, from `now` for so long, beating and connecting in vain meanwhile.
    fn looks(machine: &mut Machine, now: u64, for_ms: u64) -> Vec<u64> {
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
    fn a_lost_application_master_is_looked_for_ever_more_rarely() {
        let mut machine = connected(0);
        machine.on(line(1, 0, None), 100_000);
        machine.on(Input::Closed, 100_000);
        assert_eq!(looks(&mut machine, 100_000, 12_000), [1_000, 2_000, 4_000, 8_000]);
    }

    #[test]
    fn silence_on_an_open_connection_is_looked_into_and_answered_beats_are_not() {
        let mut machine = connected(0);
        machine.on(line(1, 0, None), 100_000);
        assert_eq!(looks(&mut machine, 100_000, 10_000), [6_000, 7_000, 9_000]);
        for beat in 1..20 {
            machine.on(line(1, 0, None), 110_000 + beat * HEARTBEAT_MS_DEFAULT);
            let at = 110_000 + beat * HEARTBEAT_MS_DEFAULT;
            assert!(looks(&mut machine, at, HEARTBEAT_MS_DEFAULT).is_empty());
        }
    }

    #[test]
    fn a_successor_is_followed_and_its_predecessor_never_again() {
        let mut machine = connected(0);
        machine.on(line(1, 0, None), 1);
        assert!(
            machine.on(Input::Found(Attempt(1)), 2).is_empty(),
            "it is the one at the other end"
        );
        assert!(matches!(machine.on(Input::Found(Attempt(2)), 3)[..], [Output::Close]));
        assert!(matches!(machine.on(Input::Timer, 3)[..], [Output::Connect]));
        machine.on(Input::Opened, 4);
        assert!(
            matches!(machine.on(line(1, 0, None), 5)[..], [Output::Close]),
            "the old one answered in its place"
        );
        assert!(machine.on(Input::Found(Attempt(1)), 6).is_empty());
        assert!(machine.on(line(2, 0, None), 7).is_empty(), "now it is the one that was found");
    }

    #[test]
    fn a_refusal_ends_it_with_its_own_code() {
        let mut machine = connected(0);
        let refused = Command::Refused { reason: "superseded".into() };
        let outputs = machine.on(line(1, 0, Some(refused)), 1);
        assert!(matches!(&outputs[..], [Output::Exit(exit)] if exit.code() == 9), "{outputs:?}");
    }
}
