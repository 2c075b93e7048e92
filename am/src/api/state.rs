//! What all connections share, and what the server hands to the driver.

use heddle_am_core::ConnectionId;
use heddle_channel::PeerTimeout;
use heddle_protocol::control::{Operation, ReportEnvelope};
use heddle_protocol::handshake::{Mechanism, Secret};
use heddle_protocol::ids::{Member, RunId};
use tokio::sync::{mpsc, oneshot};

use super::command_stream::CommandStream;
use super::public::Pages;

/// What the server hands to the driver.
#[derive(Debug)]
pub enum ApiInput {
    /// A container has proved the secret; commands to it go into `lines`.
    SessionOpened {
        /// The connection.
        connection: ConnectionId,
        /// The container's member.
        member: Member,
        /// Its commands.
        lines: CommandStream,
    },
    /// A container's line.
    SessionLine {
        /// The connection.
        connection: ConnectionId,
        /// The container's member.
        member: Member,
        /// The line.
        line: Box<ReportEnvelope>,
    },
    /// The connection is closed.
    SessionClosed {
        /// The connection.
        connection: ConnectionId,
        /// The container's member.
        member: Member,
    },
    /// An operator's command.
    Operation {
        /// The command.
        operation: Operation,
        /// Receives the answer: accepted, or the reason why not.
        answer: oneshot::Sender<Result<(), String>>,
    },
}

/// What every connection shares.
pub struct ApiState {
    /// The run.
    pub run: RunId,
    /// Its secret.
    pub secret: Secret,
    /// How connections of containers and operators are secured, at least.
    pub mechanism: Mechanism,
    /// When connections to clients out of reach close.
    pub timeout: PeerTimeout,
    /// To the driver.
    pub inputs: mpsc::Sender<ApiInput>,
    /// The pages of the job.
    pub pages: Pages,
}
