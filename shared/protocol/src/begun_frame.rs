//! The replicated change that a shard began a phase, as a frame between pservers.

use crate::control::{Phase, Sharing};
use crate::frame::{Header, Kind};
use crate::ids::{Epoch, ShardId, TableId};

/// The change that the shard began `phase`. The table and the unit are its sharing.
#[must_use]
pub fn begun(epoch: Epoch, shard: ShardId, phase: Phase) -> Header {
    let (sharing, unit) = match phase.sharing {
        Sharing::Lanes { lanes } => (0, lanes),
        Sharing::Queue => (1, 0),
        Sharing::ClockedQueue { staleness } => (2, staleness),
        Sharing::ReadOnly => (3, 0),
    };
    let table = TableId(sharing);
    Header { shard, phase: phase.no, unit, table, ..Header::new(Kind::Begun, epoch) }
}

/// The phase of a `Begun`; none if its sharing is unknown.
#[must_use]
pub fn begun_phase(header: &Header) -> Option<Phase> {
    let sharing = match header.table.0 {
        0 => Sharing::Lanes { lanes: header.unit },
        1 => Sharing::Queue,
        2 => Sharing::ClockedQueue { staleness: header.unit },
        3 => Sharing::ReadOnly,
        _ => return None,
    };
    Some(Phase { no: header.phase, sharing })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::PhaseNo;

    #[test]
    fn every_sharing_of_a_begun_phase_arrives() {
        let sharings = [
            Sharing::Lanes { lanes: 8 },
            Sharing::Queue,
            Sharing::ClockedQueue { staleness: 3 },
            Sharing::ReadOnly,
        ];
        for sharing in sharings {
            let phase = Phase { no: PhaseNo(7), sharing };
            let sent = begun(Epoch::default(), ShardId(1), phase);
            let arrived = Header::decode(&sent.encode()).expect("a frame");
            assert_eq!(begun_phase(&arrived), Some(phase));
        }
        let unknown = Header { table: TableId(4), ..Header::new(Kind::Begun, Epoch::default()) };
        assert_eq!(begun_phase(&unknown), None);
    }
}
