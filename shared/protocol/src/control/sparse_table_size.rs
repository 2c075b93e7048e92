//! How large sparse tables are.

use serde::{Deserialize, Serialize};

use crate::ids::TableId;

/// The size of a sparse table on one shard or several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SparseTableSize {
    /// The table.
    pub table: TableId,
    /// Its rows.
    pub rows: u64,
    /// Bytes of values, optimizer state, positions and index.
    pub bytes: u64,
    /// Pushed rows that found no room (`model.table-full = "drop"`), since the pserver loaded the shard.
    pub dropped: u64,
}

impl SparseTableSize {
    /// Adds sizes to those of the same tables in `all`.
    pub fn add(all: &mut Vec<Self>, sizes: &[Self]) {
        for size in sizes {
            match all.iter_mut().find(|own| own.table == size.table) {
                Some(own) => {
                    own.rows += size.rows;
                    own.bytes += size.bytes;
                    own.dropped += size.dropped;
                }
                None => all.push(*size),
            }
        }
    }
}
