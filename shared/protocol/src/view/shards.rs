//! Where the shards of a job are, as a view shows it: numbers by shard, since a job may have ten thousand.

use serde::{Deserialize, Serialize};

/// The copies of all shards.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardPlacesView {
    /// By shard: the number of the pserver that serves it; empty before the first are placed.
    pub served_by: Vec<u32>,
    /// By shard: the numbers of the pservers with further copies that may be promoted; empty if no shard has one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backups: Vec<Vec<u32>>,
    /// By shard: bytes of its file in the last checkpoint; empty if that has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bytes: Vec<u64>,
}

impl ShardPlacesView {
    /// Whether the shards are not placed yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.served_by.is_empty()
    }
}
