//! Actions: everything that the core orders from its driver.

use std::net::SocketAddr;
use std::sync::Arc;

use heddle_protocol::control::{Command, ExportedFile, OrderedFault};
use heddle_protocol::ids::{CutId, Generation, Member, SaveNo, ShardId};
use heddle_protocol::job_spec::Bytes;
use heddle_protocol::manifest::Manifest;
use heddle_protocol::view;
use serde::{Deserialize, Serialize};

use crate::config::InputHost;
use crate::outcome::Outcome;
use crate::record::Record;

/// The cluster's name of a container; the core only compares it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ContainerName(pub String);

/// One control connection. The driver never uses a number twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// One journal record of this attempt, counted from 1 in the order of writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId(pub u64);

/// One store call of this attempt, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// One request of an operator, numbered by the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationId(pub u64);

/// A complete checkpoint: its directory and its manifest.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// Directory, as a URL.
    pub dir: String,
    /// Its manifest, shared since it is never changed.
    pub manifest: Arc<Manifest>,
}

/// An order to the source of containers: YARN, or this machine. One type from the core to the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContainerOrder {
    /// Request a container. Answered by [`Event::Allocated`](crate::Event::Allocated), at any time.
    Ask(ContainerRequest),
    /// Withdraw the request for this member.
    CancelAsk(Member),
    /// Return this container unused.
    Release(ContainerName),
    /// Start the process of this member in this container. Answered by [`Event::Exited`](crate::Event::Exited), or by
    /// the registration of the member.
    Launch {
        /// The container.
        container: ContainerName,
        /// The member that it becomes.
        member: Member,
    },
    /// End this container: ask its process to end, after `grace_ms` kill it (0: kill at once).
    /// Answered by [`Event::Exited`](crate::Event::Exited); a container that has ended already causes no answer.
    Stop {
        /// The container.
        container: ContainerName,
        /// The member that it was.
        member: Member,
        /// Time until it is killed, ms.
        grace_ms: u64,
    },
}

/// A request for a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerRequest {
    /// The member that the container is for.
    pub member: Member,
    /// Nodes to avoid, because containers failed there or because the nodes will be gone.
    pub avoid: Vec<String>,
    /// Hosts that store most of its input, the best first. A container on another host is used too.
    pub prefer: Vec<InputHost>,
    /// Memory of its process instead of the job file's, because containers of this slot exceeded theirs. The overhead
    /// grows in proportion.
    pub memory: Option<Bytes>,
}

/// Something to do, in the order given. Within one list and from list to list the driver keeps the
/// order of [`Action::Send`] per connection, of [`Action::Journal`], and of [`Action::Store`]; the
/// rest may overlap.
///
/// Actions that others can see (send, store, finish) are returned only after the journal records before them are durable:
/// the driver performs what it gets.
#[derive(Clone, Debug)]
pub enum Action {
    /// An order to the source of containers.
    Container(ContainerOrder),
    /// Send a line down this connection; nothing if it is closed.
    Send {
        /// The connection.
        connection: ConnectionId,
        /// The member at the other end, for the log.
        member: Option<Member>,
        /// The command. A command to many containers is one value: compare by [`Arc::ptr_eq`] to encode it once.
        command: Arc<Command>,
    },
    /// Close this connection after what was sent.
    Disconnect {
        /// Which.
        connection: ConnectionId,
    },
    /// Append to the journal. Answered by `RecordDurable` or `JournalFailed`.
    Journal {
        /// Its number.
        id: RecordId,
        /// Its content.
        record: Box<Record>,
    },
    /// Do this in the store. Answered by `Stored`.
    Store {
        /// Names the answer.
        id: CallId,
        /// What.
        call: Box<StoreCall>,
    },
    /// Connect to this data port and do a handshake. Answered by `Probed` within some seconds.
    ProbePort {
        /// The member whose port it is.
        member: Member,
        /// The port.
        endpoint: SocketAddr,
    },
    /// Report this event to the users of the job.
    Notice(Box<view::JobEvent>),
    /// Bring this fault upon the own process, soon after the answers before it have left: an operator ordered it.
    Fault(OrderedFault),
    /// Answer an operator.
    Answer {
        /// The request.
        id: OperationId,
        /// What was done, or why not.
        result: Result<String, String>,
    },
    /// The job is over and all containers are gone or given up. Nothing follows.
    Finish(Box<Outcome>),
}

/// Work in the checkpoint directory or the output directory.
#[derive(Clone, Debug)]
pub enum StoreCall {
    /// Make the staging directory of this cut. Answered by [`Stored::Staged`](crate::Stored::Staged).
    Stage {
        /// The cut.
        cut: CutId,
    },
    /// Write the manifest and its sidecar into the staging directory, check that the claim is still the
    /// highest, rename the directory to its final name without overwriting. An unknown reply is
    /// resolved by reading back before answering. Answered by `Committed`.
    Commit {
        /// Directory that `Stage` made, as a URL.
        staging: String,
        /// What to write.
        manifest: Box<Manifest>,
    },
    /// Remove what a cut left that did not become a checkpoint. A failure leaks and does no harm.
    Discard {
        /// The cut.
        cut: CutId,
        /// Directory that `Stage` made, as a URL.
        staging: String,
    },
    /// Remove complete checkpoints beyond the newest `keep`, and orphans, of generations not above `generation`.
    Retain {
        /// How many to keep, at least 2.
        keep: u32,
        /// This attempt's.
        generation: Generation,
        /// Never to be removed: the one that a rollback would return to.
        base: CutId,
        /// Never to be removed: the one whose model is exported, if that is not the last one.
        best: Option<CutId>,
        /// Never to be removed: the one that a save of the model is made from.
        held: Option<CutId>,
    },
    /// Find the newest complete and verified checkpoint below `below`; set the damaged one aside (renamed, never
    /// deleted). Answered by `Base`.
    OlderBase {
        /// The damaged one.
        below: CutId,
        /// What is wrong with it.
        error: String,
    },
    /// Put good copies of a shard's file in the place of bad ones, which are set aside. A failure leaves the file to the
    /// next restore.
    ReplaceCopies {
        /// The checkpoint.
        cut: CutId,
        /// The shard.
        shard: ShardId,
    },
    /// Publish a model. Save 0, of the end of the job: move the exported files to their names in `<dir>` and write
    /// `<dir>/MODEL.json` last; a model that is there is replaced if the job was started so. A save during training: write
    /// `<dir>/save-<n>/MODEL.json`, which names the folder of the files; one of this run that is there stays. Answered by
    /// `Published`.
    PublishModel {
        /// The save.
        save: SaveNo,
        /// The last cut when it was granted: a model of this save is of a later one.
        after: CutId,
        /// The output directory, as a URL.
        dir: String,
        /// Below it: the directory that a trainer has exported the files to.
        model: String,
        /// Its files.
        files: Vec<ExportedFile>,
        /// The checkpoint it was made from.
        checkpoint: CutId,
    },
}
