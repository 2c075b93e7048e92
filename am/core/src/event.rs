//! Events: everything that happens to a job, one value at a time.

use heddle_protocol::control::{Operation, Registration, Report};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::failure::Failure;
use heddle_protocol::ids::{Attempt, CutId, Generation, Incarnation, Member, Slot};
use heddle_protocol::view::RecoveryView;

use crate::action::{CallId, Checkpoint, ConnectionId, ContainerName, OperationId, RecordId};
use crate::record::Record;
use crate::token_lifetime::{FetchedTokens, TokenLifetime};

/// Something that happened. The driver turns each input into exactly one event.
#[derive(Clone, Debug)]
pub enum Event {
    /// The first event, and only the first: the content of the claim, the journal and the checkpoint directory.
    Startup(Box<StartupState>),

    /// The cluster gives a container for this ask. One for an ask that is not open is released.
    Allocated {
        /// The container.
        container: ContainerName,
        /// The ask's slot.
        slot: Slot,
        /// The ask's incarnation.
        incarnation: Incarnation,
        /// Host name of the node it is on, as the cluster writes it, without a port: for reports, for the restart policy, and
        /// for data locality.
        node: String,
    },
    /// A container ended: its process ended, or the cluster reports it as completed. Repeats are ignored.
    Exited {
        /// The container.
        container: ContainerName,
        /// How it ended.
        exit: Exit,
        /// Its final output (the end of its stderr), at most some lines; empty if there is none.
        text: String,
    },
    /// The container's NodeManager is unreachable or is killing the container, and its process has no control connection. If
    /// the process has connected meanwhile, the event is ignored.
    NodeUnreachable {
        /// The container.
        container: ContainerName,
        /// What its node does, to follow "trainer-1 is gone: ".
        cause: String,
    },
    /// The cluster may preempt this container for another job.
    Preempting {
        /// The container.
        container: ContainerName,
        /// Time until then, ms; none if the cluster does not report it.
        deadline_ms: Option<u64>,
    },
    /// This node leaves the cluster soon (it is unhealthy or being decommissioned): its containers move.
    NodeLeaving {
        /// The node, written as in `Allocated`.
        node: String,
    },

    /// A container has proved that it has the secret and has sent its first line. Answered with
    /// [`Command::Welcome`](heddle_protocol::control::Command::Welcome) or `Refused`.
    Registered {
        /// The control connection; unique in the driver's life.
        connection: ConnectionId,
        /// What it reports about itself.
        registration: Box<Registration>,
    },
    /// Any later line of a registered container, heartbeats included. [`Report::Register`] never comes this way.
    Report {
        /// The connection that it came on.
        connection: ConnectionId,
        /// The line.
        report: Box<Report>,
    },
    /// A control connection is closed.
    Closed {
        /// The connection.
        connection: ConnectionId,
    },
    /// Answer to [`Action::ProbePort`](crate::Action::ProbePort).
    Probed {
        /// The member that listens on the port.
        member: Member,
        /// The result of the connection.
        outcome: Probe,
    },

    /// The journal has this record and all before it on disk.
    RecordDurable {
        /// The last record on disk.
        record: RecordId,
    },
    /// The journal cannot be written any more. The job ends: every decision must be recorded.
    JournalFailed {
        /// Names the file and the cause.
        error: String,
        /// Whether another ApplicationMaster has claimed the directory.
        fenced: bool,
        /// `Denied` where the write was refused, `Unreachable` where storage did not respond.
        exit_code: ExitCode,
    },
    /// A store call is over.
    Stored {
        /// The call.
        call: CallId,
        /// Its result.
        outcome: Stored,
    },

    /// The ResourceManager answered (local runs do not send it, see
    /// [`Config::cluster_lease_ms`](crate::Config::cluster_lease_ms)).
    ClusterHeard,
    /// The cluster has disowned this attempt, or the claim is not the highest any more: commit nothing,
    /// delete nothing, send no command, end with exit code 9.
    Fenced {
        /// Which ApplicationMaster took over, for the log.
        reason: String,
    },
    /// The cluster has ended the whole application, so no attempt follows: as [`Fenced`](Self::Fenced), but the containers get the
    /// order to stop. Their NodeManagers may not be able to end them.
    ApplicationOver {
        /// The state of the application, for the log.
        reason: String,
    },
    /// The cluster refuses what is asked (queue, limits): the job ends with exit code 4.
    Rejected {
        /// The cluster's message.
        reason: String,
    },
    /// What the cluster reports about why containers do not come (for example, which users fill the queue). It is part of
    /// the error if the job ends because they do not come.
    ClusterSays {
        /// A sentence or some lines.
        text: String,
    },
    /// How long file systems accept the job's tokens. Replaces that of an earlier event; a job without tokens has no such event.
    TokensLast(TokenLifetime),
    /// The ApplicationMaster has fetched tokens for file systems, which all containers get.
    TokensFetched(Box<FetchedTokens>),
    /// It could not fetch tokens, and tries again.
    TokensNotFetched {
        /// Names each file system without a new token, and the cause.
        error: String,
        /// Whether one of them is new among them.
        is_first: bool,
    },
    /// An operator asks for something.
    Operation {
        /// Names the answer.
        id: OperationId,
        /// What.
        operation: Operation,
    },
    /// The driver did not run for this time (its process was suspended, or its machine stood still): what containers sent
    /// meanwhile is still to be read, so that they were not silent.
    StoodStill {
        /// For how long, ms.
        ms: u64,
    },
    /// [`Core::next_deadline`](crate::Core::next_deadline) has passed. An early or late timer does no harm.
    Timer,
}

/// What an ApplicationMaster finds when it starts.
#[derive(Clone, Debug)]
pub struct StartupState {
    /// This ApplicationMaster's attempt.
    pub attempt: Attempt,
    /// The generation just claimed.
    pub generation: Generation,
    /// All records of the lineage in their order, without this attempt's.
    pub journal: Vec<Record>,
    /// The newest complete and verified checkpoint of the lineage.
    pub base: Option<Checkpoint>,
    /// Checkpoints of the lineage newer than the base that are damaged. They are set aside already.
    pub damaged: Vec<DamagedCheckpoint>,
    /// All complete checkpoints, oldest first: name and directory.
    pub checkpoints: Vec<Checkpoint>,
    /// Containers that an earlier attempt left running, as the cluster reports. Empty where children die with it.
    pub kept: Vec<SurvivingContainer>,
    /// Recoveries that were under way when the attempt before was lost, as far as it could note them, oldest first.
    pub unfinished: Vec<RecoveryView>,
}

/// A checkpoint that was found damaged at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedCheckpoint {
    /// Its name.
    pub cut: CutId,
    /// Where it is now.
    pub dir: String,
    /// What is wrong with it.
    pub error: String,
}

/// A container that an earlier attempt left running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SurvivingContainer {
    /// The container.
    pub container: ContainerName,
    /// Host name of its node, as in [`Event::Allocated`].
    pub node: String,
}

/// How a container ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Its process ended with this code.
    Code(i32),
    /// A signal ended it.
    Signal(i32),
    /// It could not be started.
    NotStarted {
        /// The cause.
        error: String,
    },
    /// Its node is gone or was given up by the cluster.
    NodeLost,
    /// The cluster took it for another job.
    Preempted,
    /// The cluster ended it for using more memory than it was given.
    OutOfMemory {
        /// The cluster's message: used and limit.
        error: String,
    },
    /// The cluster ended it for another reason that is not the container's fault (released, application killed).
    ByCluster {
        /// The cluster's message.
        error: String,
    },
}

/// Outcome of a probe: a connection to a data port, and a handshake on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Refused: no process listens there, so it is gone.
    Refused,
    /// The process has proved the secret over the probe's nonce: a data thread runs.
    Answered,
    /// The connection opened and no proof came within a second: the kernel accepts, and the process stands still.
    NoAnswer,
    /// It did not open within a second, or there is no route: the machine or the path is down.
    Silent,
}

/// How a store call ended.
#[derive(Clone, Debug)]
pub enum Stored {
    /// [`StoreCall::Stage`](crate::StoreCall::Stage): the directory exists, as a URL.
    Staged(String),
    /// [`StoreCall::Commit`](crate::StoreCall::Commit): the checkpoint exists under its final name.
    Committed(Box<Checkpoint>),
    /// [`StoreCall::OlderBase`](crate::StoreCall::OlderBase): the newest complete and verified one below; none if there is none.
    Base {
        /// The newest whole one that is older.
        base: Option<Box<Checkpoint>>,
        /// The damaged one, and those between that were damaged too. They are set aside.
        damaged: Vec<DamagedCheckpoint>,
    },
    /// [`StoreCall::PublishModel`](crate::StoreCall::PublishModel): the URL of the model's directory.
    Published(String),
    /// The others: done.
    Done,
    /// Surely not done; another try may help.
    NotDone {
        /// Names the file and the cause.
        failure: Failure,
    },
    /// Whether it was done could not be found out.
    Unknown {
        /// Names the file and the cause.
        failure: Failure,
    },
    /// [`StoreCall::PublishModel`](crate::StoreCall::PublishModel): another job's model has that name by now.
    Taken {
        /// Names the file and the job.
        error: String,
    },
    /// Another ApplicationMaster owns the directory.
    Fenced {
        /// Which ApplicationMaster.
        error: String,
    },
}
