//! Errors of requests of the training program, and of replies of shards.

use heddle_protocol::frame::{Kind, Status};
use heddle_protocol::ids::{Lane, ShardId, Step, TableId, TaskId};

use crate::machine::unit::Unit;

/// An invalid request: a bug of the program that made it, whatever the servers reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// See [`crate::layout::Layout::new`].
    #[error(
        "a job must have at least one shard, and tables of 1 to 2^32-1 rows and 1 to 2^20 columns"
    )]
    Layout,
    /// The job does not have this table.
    #[error("table {0} does not exist in the job")]
    Table(TableId),
    /// A row is outside its table.
    #[error("rows of table {table} must be within 0..{rows} (got {row})")]
    Rows {
        /// The table.
        table: TableId,
        /// The requested row, or the end of the requested range.
        row: u64,
        /// Rows of the table.
        rows: u64,
    },
    /// Keys are not sorted and unique.
    #[error(
        "keys of table {table} must be sorted and unique (got {key} after a key that is not lower)"
    )]
    Unsorted {
        /// The table.
        table: TableId,
        /// The first key out of order.
        key: u64,
    },
    /// Rows of a sparse table are named by positions, those of a dense one never are.
    #[error(
        "table {table} is {}",
        if *is_sparse {
            "sparse: its rows are named by positions"
        } else {
            "dense: it has no positions"
        }
    )]
    Kind {
        /// The table.
        table: TableId,
        /// Whether the table is sparse.
        is_sparse: bool,
    },
    /// The number of values is not rows × columns.
    #[error("a gradient of these rows of table {table} must have {expected} values (got {got})")]
    Values {
        /// The table.
        table: TableId,
        /// Values of the gradient.
        got: usize,
        /// Rows × columns.
        expected: usize,
    },
    /// Steps of a task are consecutive.
    #[error("the next step of task {task} must be {expected} (got {got})")]
    Step {
        /// The task.
        task: TaskId,
        /// The pushed step.
        got: Step,
        /// The next step.
        expected: Step,
    },
    /// A task or lane has [`crate::machine::UNREACHED_STEPS_MAX`] steps without acknowledgement.
    #[error("cannot push to {0}: too many steps are not acknowledged; wait for acknowledgements")]
    TooManySteps(Unit),
    /// The lane has ended.
    #[error("cannot push to lane {0}: it has ended")]
    LaneEnded(Lane),
}

/// An error that waiting does not cure: the client or the shard has a bug.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A request of the training program is invalid.
    #[error("invalid request to the parameter servers")]
    Request(#[from] RequestError),
    /// A shard rejected a frame for a reason that waiting does not cure.
    #[error("shard {shard} rejected a {kind:?} of step {step}: {status:?}")]
    Refused {
        /// The shard.
        shard: ShardId,
        /// Kind of the request.
        kind: Kind,
        /// Step of the request.
        step: Step,
        /// The reason.
        status: Status,
    },
    /// A reply does not match its request.
    #[error("shard {shard} answered a {asked:?} with a {got:?} that does not match it")]
    Answer {
        /// The shard.
        shard: ShardId,
        /// Kind of the request.
        asked: Kind,
        /// Kind of the reply.
        got: Kind,
    },
}
