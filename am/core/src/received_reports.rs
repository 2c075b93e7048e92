//! Which reports of containers were taken in: what the driver confirms, and what it hands to the core once.
//!
//! A container repeats every report that is not confirmed when its connection opens again. **Rule:** only what comes on
//! the connection on which the container registered last counts. The core drops what comes on an older one, which may
//! still be read after it was replaced: a report confirmed there would be lost, since the container never sends it again.

use std::collections::BTreeMap;

use heddle_protocol::ids::Member;
use heddle_protocol::mutation::Mutation;

use crate::action::ConnectionId;

/// The reports of all containers.
#[derive(Clone, Debug, Default)]
pub struct ReceivedReports {
    /// Where each container registered last.
    current: BTreeMap<Member, ConnectionId>,
    /// The highest number of a report that was taken in.
    highest: BTreeMap<Member, u64>,
}

impl ReceivedReports {
    /// A container registered on this connection; what it sent on others is repeated here.
    pub fn registered(&mut self, member: Member, connection: ConnectionId) {
        self.current.insert(member, connection);
    }

    /// Whether a line is handed to the core: it came on the container's connection, and it is no repeat. `seq`: the number of
    /// its report, counted from 1; 0 for lines that are not numbered.
    pub fn takes(&mut self, member: Member, connection: ConnectionId, seq: u64) -> bool {
        let replaced = self.current.get(&member) != Some(&connection);
        if replaced && !Mutation::HeardOnReplacedConnection.is_on() {
            return false;
        }
        if seq == 0 {
            return true;
        }
        let highest = self.highest.entry(member).or_default();
        let is_news = seq > *highest;
        *highest = seq.max(*highest);
        is_news
    }

    /// The highest report of a container that was taken in, 0 before the first: all up to it are confirmed.
    #[must_use]
    pub fn highest(&self, member: Member) -> u64 {
        self.highest.get(&member).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_protocol::ids::{Incarnation, Slot};

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
}
