//! The shard set as the source of refills: which rows and states its backups need next.

use heddle_protocol::control::FillProgress;

use super::ShardSet;
use crate::replication::{FillNeed, Peer};
use crate::shard::Shard;

impl ShardSet {
    /// Reads what the refills of this backup need from the shards.
    pub(super) fn feed_fills(&mut self, peer: Peer) {
        let now = self.clocked.now();
        let copies = &mut self.replicas.copies;
        for (&id, shard) in &mut self.shards {
            while let Some(need) = copies.fill_need(id, peer, now) {
                match need {
                    FillNeed::Begin => match shard.fill_state() {
                        Some(state) => copies.begin_fills(id, &state, now),
                        None => {
                            shard.want_fill();
                            break;
                        }
                    },
                    FillNeed::Piece(cursor) => match shard.fill_piece(cursor) {
                        Some(piece) => copies.push_piece(id, peer, piece, now),
                        None => break,
                    },
                }
            }
        }
    }

    /// How far the refills are that this thread sends.
    #[must_use]
    pub fn fills(&self) -> Vec<FillProgress> {
        let bytes = |shard| self.shards.get(&shard).map_or(0, Shard::fill_bytes);
        self.replicas.copies.fills(bytes)
    }
}
