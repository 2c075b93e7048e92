//! How large sparse tables are, for users.

use serde::{Deserialize, Serialize};

/// A sparse table of the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SparseTableView {
    /// Its name.
    pub name: String,
    /// Rows on all pservers.
    pub rows: u64,
    /// Bytes of values, optimizer state, positions and index.
    pub bytes: u64,
    /// Pushed rows that found no room since the pservers loaded their shards.
    pub dropped: u64,
}
