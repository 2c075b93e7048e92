//! The names of what a shard holds, as files know them.

use std::ops::Range;

use heddle_protocol::ids::{CutId, PhaseNo, ShardId, Step, TableId};

use crate::dedup::DedupError;

/// One array of a shard: the values of a table's slice, or one kind of its optimizer state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// The table.
    pub table: TableId,
    /// Its name in the job.
    pub name: String,
    /// `values`, or the name of the optimizer's state (`z` and `n` of FTRL).
    pub plane: &'static str,
    /// Rows of the whole table that are here.
    pub rows: Range<u64>,
    /// f32 per row.
    pub cols: u32,
}

impl Section {
    /// Number of f32.
    #[must_use]
    pub fn values(&self) -> usize {
        (self.rows.end - self.rows.start) as usize * self.cols as usize
    }
}

/// The snapshot that was asked for is not there any more: its cut is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cut {cut} of shard {shard} is over")]
pub struct SnapshotGone {
    /// The shard.
    pub shard: ShardId,
    /// The cut.
    pub cut: CutId,
}

/// A saved state that this shard cannot take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContentError {
    /// The once-only memory cannot be read.
    #[error("the once-only memory of shard {shard} cannot be read")]
    DedupState {
        /// The shard.
        shard: ShardId,
        /// Why.
        #[source]
        source: DedupError,
    },
    /// The saved state belongs to a phase after the one it is wanted for.
    #[error("shard {shard} was saved in phase {saved}, and phase {wanted} is asked for")]
    Phase {
        /// The shard.
        shard: ShardId,
        /// Of the file.
        saved: PhaseNo,
        /// Of the command.
        wanted: PhaseNo,
    },
    /// BSP: the saved state stands at another job step.
    #[error("shard {shard} was saved at job step {saved}, and step {wanted} is asked for")]
    Step {
        /// The shard.
        shard: ShardId,
        /// Of the file.
        saved: Step,
        /// Of the command.
        wanted: Step,
    },
    /// The saved state was made with another number of lanes or another consistency.
    #[error("shard {shard} was saved with another consistency or number of lanes")]
    Sharing {
        /// The shard.
        shard: ShardId,
    },
}
