//! What one data thread owns: its shards, who may speak to them, and the cut that is open.
//!
//! The epoch, membership and barriers are common to all shards of a thread, since a trainer has one
//! connection to the thread; the rest of a frame is for its shard. Everything is answered in the
//! order of the effects that come out.
//!
//! A host is in one epoch. [`ShardSet::hold`] moves it to the next, drops what waits and says which
//! shards must be brought ([`ShardSet::install`]); until they are here it answers `NotReady`.

mod connections;
mod cuts;
mod frames;
mod phases;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use heddle_protocol::control::{Phase, ShardState};
use heddle_protocol::ids::{CutId, Epoch, Incarnation, Member, PhaseNo, ShardId, Step};

use crate::content::ContentError;
use crate::cut::OpenCut;
use crate::effect::Conn;
use crate::shard::{Shard, Waiting};

/// Bytes of frames that a host holds back during a cut, before it stops reading the connections that
/// send them: some hundred parts, more than trainers have in flight in a cut's few milliseconds.
const HELD_BYTES_MAX: usize = 64 << 20;

/// The shards of one data thread.
#[derive(Default)]
pub struct ShardSet {
    epoch: Epoch,
    phase: Option<Phase>,
    step: Step,
    shards: BTreeMap<ShardId, Shard>,
    /// Shards of this host that are being brought.
    missing: BTreeSet<ShardId>,
    conns: BTreeMap<Conn, Connection>,
    conns_made: u64,
    /// Trainers by slot.
    members: BTreeMap<u32, Incarnation>,
    /// The highest incarnation that was a member of a slot.
    known: BTreeMap<u32, Incarnation>,
    open: Option<OpenCut>,
    /// The highest cut heard of.
    heard: CutId,
    held_bytes: usize,
    refused: u64,
}

struct Connection {
    member: Member,
    /// Frames that wait for the end of a cut, or for the saver, and those that came after them.
    held: VecDeque<Waiting>,
}

/// A command that a host cannot follow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShardSetError {
    /// It speaks of another epoch.
    #[error("in epoch {own}, told of epoch {told}")]
    Epoch {
        /// The host's.
        own: Epoch,
        /// The command's.
        told: Epoch,
    },
    /// The content of a shard does not fit.
    #[error(transparent)]
    Content(#[from] ContentError),
}

impl ShardSet {
    /// A host without shards, in no epoch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The highest cut heard of.
    #[must_use]
    pub fn heard(&self) -> CutId {
        self.heard
    }

    /// Where each shard stands.
    #[must_use]
    pub fn states(&self) -> Vec<ShardState> {
        self.shards.values().map(Shard::state).collect()
    }

    /// The phase served and the lowest number of job steps applied among the shards; nothing without shards.
    #[must_use]
    pub fn position(&self) -> Option<(PhaseNo, Step)> {
        self.shards.values().map(|shard| (shard.phase(), shard.step())).min()
    }

    /// Push frames applied or staged, and frames refused, so far.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        let add = |(pushes, refused), shard: &Shard| {
            let counts = shard.counts();
            (pushes + counts.pushes, refused + counts.refused)
        };
        self.shards.values().fold((0, self.refused), add)
    }

    /// A shard, for reading.
    #[must_use]
    pub fn shard(&self, shard: ShardId) -> Option<&Shard> {
        self.shards.get(&shard)
    }
}
