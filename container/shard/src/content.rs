//! The sections of a shard's file, and errors of its content.

use std::ops::Range;

use heddle_protocol::ids::{CutId, PhaseNo, ShardId, Step, TableId};
use heddle_protocol::job_spec::position::POSITIONS;

use crate::dedup::DedupError;

/// One array of a shard: the values of a table's slice, or one kind of its optimizer state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardSection {
    /// The table.
    pub table: TableId,
    /// Its name in the job.
    pub name: String,
    /// `values`, `positions`, or the name of the optimizer's state (`z` and `n` of FTRL).
    pub plane: &'static str,
    /// Rows of the whole table in this slice; of a sparse table the rows that exist, from 0.
    pub rows: Range<u64>,
    /// f32 per row; 2 of positions.
    pub cols: u32,
    /// Whether the table is sparse.
    pub is_sparse: bool,
}

/// What a file needs beside the sections: it is known when the snapshot is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotHead {
    /// The dedup state, encoded.
    pub dedup_state: Vec<u8>,
    /// Rows of each sparse table by table id; 0 for dense ones.
    pub sparse_rows: Vec<u32>,
}

impl ShardSection {
    /// Number of values: f32, or u64 of positions.
    #[must_use]
    pub fn count(&self) -> u64 {
        match self.plane {
            POSITIONS => self.rows.end - self.rows.start,
            _ => self.values() as u64,
        }
    }

    /// Number of words of four bytes.
    #[must_use]
    pub fn values(&self) -> usize {
        (self.rows.end - self.rows.start) as usize * self.cols as usize
    }
}

/// The requested snapshot does not exist any more: its cut is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cut {cut} of shard {shard} is over")]
pub struct SnapshotGone {
    /// The shard.
    pub shard: ShardId,
    /// The cut.
    pub cut: CutId,
}

/// A saved state that this shard cannot use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContentError {
    /// The dedup state is invalid.
    #[error("cannot read the dedup state of shard {shard}")]
    Dedup {
        /// The shard.
        shard: ShardId,
        /// The cause.
        #[source]
        source: DedupError,
    },
    /// The rows of a sparse table are invalid, or do not fit.
    #[error("cannot use table {table} of shard {shard}: {what}")]
    Rows {
        /// The shard.
        shard: ShardId,
        /// The table.
        table: TableId,
        /// What is wrong with them.
        what: String,
    },
    /// The saved state is of a later phase.
    #[error("the saved phase of shard {shard} must be at most {wanted} (got {saved})")]
    Phase {
        /// The shard.
        shard: ShardId,
        /// In the file.
        saved: PhaseNo,
        /// In the command.
        wanted: PhaseNo,
    },
    /// BSP: the saved state is of another job step.
    #[error("the saved job step of shard {shard} must be {wanted} (got {saved})")]
    Step {
        /// The shard.
        shard: ShardId,
        /// In the file.
        saved: Step,
        /// In the command.
        wanted: Step,
    },
    /// The saved state has another number of lanes or another consistency.
    #[error("the saved consistency and lanes of shard {shard} must be those of the job")]
    Sharing {
        /// The shard.
        shard: ShardId,
    },
}
