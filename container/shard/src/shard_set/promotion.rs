//! A copy that a view has made the primary begins to serve.

use heddle_protocol::ids::ShardId;

use super::ShardSet;
use crate::effect::ShardEffect;

impl ShardSet {
    /// Goes on where the copy's primary has stopped. A copy that a change did not fit may have other content than was
    /// acknowledged: it ends its process instead, so that the ApplicationMaster promotes another one, or rolls back.
    pub(super) fn begin_serving(&mut self, id: ShardId, out: &mut Vec<ShardEffect>) {
        if !self.serves(id) {
            return out.push(ShardEffect::CannotServe { shard: id });
        }
        self.clocked.promoted(self.members.iter());
        let Some(shard) = self.shards.get_mut(&id) else { return };
        // The ApplicationMaster ends each cut of a command that this pserver has received, also after a restart.
        let open = (self.highest_cut > self.ended_cut).then_some(self.highest_cut);
        shard.promote(open, out);
        // The command to begin the phase may have come before this view.
        if let Some(phase) = self.phase.filter(|phase| phase.no > shard.phase()) {
            shard.begin(phase, out);
        }
    }
}
