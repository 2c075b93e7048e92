//! What can be wrong with a request of the training program, and with an answer of a shard.

use heddle_protocol::frame::{Kind, Status};
use heddle_protocol::ids::{Lane, ShardId, Step, TableId, TaskId};

use crate::machine::Unit;

/// A request that cannot be carried out whatever the servers say: a fault of the program that made it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// See [`crate::layout::Layout::new`].
    #[error("a job needs at least one shard, and tables of 1 to 2^32-1 rows and 1 to 2^20 columns")]
    Layout,
    /// No such table.
    #[error("the job has no table {0}")]
    Table(TableId),
    /// A row beyond the table's end.
    #[error("row {row} of table {table}, which has {rows} rows")]
    Rows {
        /// The table.
        table: TableId,
        /// The row asked for, or the end of the range.
        row: u64,
        /// Rows that there are.
        rows: u64,
    },
    /// Keys must be sorted and unique.
    #[error("key {key} of table {table} is not above the one before it")]
    Unsorted {
        /// The table.
        table: TableId,
        /// The first key out of order.
        key: u32,
    },
    /// As many values as rows × columns are needed.
    #[error("{got} values for table {table}, {expected} expected")]
    Values {
        /// The table.
        table: TableId,
        /// Values given.
        got: usize,
        /// Rows × columns.
        expected: usize,
    },
    /// Steps of a task follow one another.
    #[error("step {got} of task {task} was pushed, {expected} is next")]
    Step {
        /// The task.
        task: TaskId,
        /// The step pushed.
        got: Step,
        /// The step that is next.
        expected: Step,
    },
    /// A task or lane has more than [`crate::machine::UNREACHED_STEPS_MAX`] steps that are not acknowledged.
    #[error("too many steps of {0} are not acknowledged yet; wait for some to be reached")]
    TooManySteps(Unit),
    /// The lane has ended.
    #[error("lane {0} was pushed to after its end")]
    LaneEnded(Lane),
}

/// A shard's answer that ends the work: one of the two has a fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A request of the training program.
    #[error("a request to the parameter servers is wrong")]
    Request(#[from] RequestError),
    /// A shard refused for a reason that waiting does not cure.
    #[error("shard {shard} refused a {kind:?} of step {step}: {status:?}")]
    Refused {
        /// The shard.
        shard: ShardId,
        /// The request.
        kind: Kind,
        /// Its step.
        step: Step,
        /// Why.
        status: Status,
    },
    /// An answer that does not fit its request.
    #[error("shard {shard} answered a {asked:?} with a {got:?} that does not fit it")]
    Answer {
        /// The shard.
        shard: ShardId,
        /// The request.
        asked: Kind,
        /// The answer.
        got: Kind,
    },
}
