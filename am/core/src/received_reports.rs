//! Which reports of containers were received: the driver confirms them, and gives each to the core once.
//!
//! A container repeats every report that is not confirmed when its connection opens again. **Rule:** only reports on
//! the connection on which the container was accepted last count. The core drops those on an older connection, which may
//! still be read after it was replaced, and those after a refused registration: a report confirmed there would be lost, since
//! the container never sends it again.
//!
//! **Limit:** two members of each slot: the one that registered last, and the one with the highest incarnation. The core
//! refuses all others, so nothing that they report counts.

use std::collections::BTreeMap;

use heddle_protocol::ids::{Incarnation, Member, Slot};
use heddle_protocol::mutation::Mutation;

use crate::action::ConnectionId;

/// The reports of all containers.
#[derive(Clone, Debug, Default)]
pub struct ReceivedReports {
    slots: BTreeMap<Slot, BTreeMap<Incarnation, ReceivedFrom>>,
}

/// The reports of one container.
#[derive(Clone, Copy, Debug)]
struct ReceivedFrom {
    /// Where it registered last.
    connection: ConnectionId,
    /// The highest number of a report that was received, 0 before the first.
    highest: u64,
}

impl ReceivedReports {
    /// The core accepted a registration on this connection; what the container sent on others is repeated here.
    pub fn registered(&mut self, member: Member, connection: ConnectionId) {
        let incarnation = member.incarnation;
        let slot = self.slots.entry(member.slot).or_default();
        slot.entry(incarnation)
            .and_modify(|received| received.connection = connection)
            .or_insert(ReceivedFrom { connection, highest: 0 });
        let last = slot.last_key_value().map(|(last, _)| *last);
        slot.retain(|other, _| *other == incarnation || Some(*other) == last);
    }

    /// Whether a line is given to the core: it came on the container's connection, and it is not a repeat. `seq`: the number of
    /// its report, counted from 1; 0 for lines that are not numbered.
    pub fn takes(&mut self, member: Member, connection: ConnectionId, seq: u64) -> bool {
        let slot = self.slots.get_mut(&member.slot);
        let Some(received) = slot.and_then(|slot| slot.get_mut(&member.incarnation)) else {
            return false;
        };
        let replaced = received.connection != connection;
        if replaced && !Mutation::HeardOnReplacedConnection.is_on() {
            return false;
        }
        if seq == 0 {
            return true;
        }
        let is_news = seq > received.highest;
        received.highest = seq.max(received.highest);
        is_news
    }

    /// The highest report of a container that was received, 0 before the first: all up to it are confirmed.
    #[must_use]
    pub fn highest(&self, member: Member) -> u64 {
        let slot = self.slots.get(&member.slot);
        slot.and_then(|slot| slot.get(&member.incarnation)).map_or(0, |received| received.highest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMBER: Member = Member {
        slot: Slot { role: heddle_protocol::ids::Role::Pserver, index: 0 },
        incarnation: Incarnation(1),
    };
    const OLD: ConnectionId = ConnectionId(1);
    const NEW: ConnectionId = ConnectionId(2);

    #[test]
    fn a_repeat_is_taken_once() {
        let mut reports = ReceivedReports::default();
        reports.registered(MEMBER, OLD);
        assert!(reports.takes(MEMBER, OLD, 1) && reports.takes(MEMBER, OLD, 2));
        reports.registered(MEMBER, NEW);
        assert!(!reports.takes(MEMBER, NEW, 1) && !reports.takes(MEMBER, NEW, 2));
        assert!(reports.takes(MEMBER, NEW, 3));
        assert_eq!(reports.highest(MEMBER), 3);
    }

    #[test]
    fn a_report_on_a_replaced_connection_is_not_confirmed() {
        let mut reports = ReceivedReports::default();
        reports.registered(MEMBER, OLD);
        reports.registered(MEMBER, NEW);
        assert!(!reports.takes(MEMBER, OLD, 1), "the core would drop it");
        assert!(!reports.takes(MEMBER, OLD, 0), "its heartbeat is ignored");
        assert_eq!(reports.highest(MEMBER), 0, "so it is sent again");
        assert!(reports.takes(MEMBER, NEW, 1));
    }

    #[test]
    fn at_most_two_members_of_a_slot_are_kept() {
        let of = |number| Member { incarnation: Incarnation(number), ..MEMBER };
        let mut reports = ReceivedReports::default();
        for number in 1..=1000 {
            let connection = ConnectionId(u64::from(number));
            reports.registered(of(number), connection);
            assert!(reports.takes(of(number), connection, 7));
        }
        assert_eq!(reports.slots[&MEMBER.slot].len(), 1, "later incarnations replace earlier ones");
        // Stale processes register, in any order: the latest incarnation keeps its numbers.
        for number in [3, 900, 5] {
            reports.registered(of(number), ConnectionId(2000 + u64::from(number)));
            assert_eq!(reports.slots[&MEMBER.slot].len(), 2);
            assert!(reports.takes(of(number), ConnectionId(2000 + u64::from(number)), 1));
        }
        assert_eq!(reports.highest(of(1000)), 7);
        assert!(reports.takes(of(1000), ConnectionId(1000), 8));
        assert!(!reports.takes(of(900), ConnectionId(2900), 2), "it is superseded");
    }
}
