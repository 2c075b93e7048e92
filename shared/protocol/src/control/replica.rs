//! Replicas of shards: views, which the ApplicationMaster orders, and the state of a copy.
//!
//! A view names the primary of a shard and its in-sync set: the copies that have every acknowledged change. Views are absolute
//! and idempotent. A holder ignores a view whose (term, version) is not higher than that of its own view in the same epoch.
//! Without `pservers.replicas` there is no view, and no message has a field of this module.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::ids::{Epoch, Member, ShardId, Term, ViewVersion};

/// The holders of a shard at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardView {
    /// The shard.
    pub shard: ShardId,
    /// Fencing number of the primary; higher terms supersede lower ones.
    pub term: Term,
    /// Orders the views of a term.
    pub version: ViewVersion,
    /// The copy that serves trainers.
    pub primary: Member,
    /// Copies for which acknowledgements wait, the primary included. Only these can be promoted.
    pub in_sync: Vec<Member>,
    /// Copies to which the primary streams its changes.
    pub backups: Vec<BackupPlace>,
    /// The term began with a hand-over at the change with this number, which every copy of the set had. None: with the loss of
    /// a primary, or with the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began_at: Option<u64>,
}

impl ShardView {
    /// The first view of an epoch of a shard with one copy.
    #[must_use]
    pub fn alone(shard: ShardId, primary: Member) -> Self {
        let (term, version, in_sync) = (Term(1), ViewVersion(1), vec![primary]);
        Self { shard, term, version, primary, in_sync, backups: Vec::new(), began_at: None }
    }

    /// What orders the views of a shard within an epoch.
    #[must_use]
    pub fn order(&self) -> (Term, ViewVersion) {
        (self.term, self.version)
    }
}

/// A backup and the address of its copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupPlace {
    /// The pserver's container.
    pub member: Member,
    /// Address of the data thread that owns the copy.
    pub endpoint: SocketAddr,
    /// The copy is, or was, brought up to date by a refill. Until it is in the in-sync set it takes part in nothing else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fill: Option<FillOrder>,
}

/// The order to fill a copy, by the primary of the shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FillOrder {
    /// The version of the view that ordered it: the number of the refill.
    pub version: ViewVersion,
    /// The data thread of the receiver that owns the copy, from 0.
    pub thread: u32,
}

/// How far a refill is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FillProgress {
    /// The shard.
    pub shard: ShardId,
    /// The receiver.
    pub member: Member,
    /// Bytes of rows that it has.
    pub bytes: u64,
    /// Bytes of rows of the shard, as far as they exist now.
    pub of_bytes: u64,
}

/// How far the slowest backup of the in-sync sets is behind its primary. Answers wait for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicationLag {
    /// Changes of a shard that it has not acknowledged.
    pub entries: u64,
    /// Bytes of changes that a primary keeps for its backups until they are acknowledged.
    pub bytes: u64,
    /// For how long it has owed an acknowledgement, ms.
    pub ms: u64,
}

impl ReplicationLag {
    /// The worst of both in each field.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            entries: self.entries.max(other.entries),
            bytes: self.bytes.max(other.bytes),
            ms: self.ms.max(other.ms),
        }
    }
}

/// See [`ShardCommand::Views`](super::ShardCommand::Views).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetViews {
    /// The epoch.
    pub epoch: Epoch,
    /// Views of shards that the receiver holds, or held.
    pub views: Vec<ShardView>,
}

/// See [`ShardCommand::HandOver`](super::ShardCommand::HandOver).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandOver {
    /// The epoch.
    pub epoch: Epoch,
    /// Shards of which the receiver is the primary.
    pub shards: Vec<ShardStop>,
}

/// A shard that is to stop in this view. A primary in another view ignores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardStop {
    /// The shard.
    pub shard: ShardId,
    /// The primary's term.
    pub term: Term,
    /// The version of its view.
    pub version: ViewVersion,
}

/// State of a copy of a shard, for an ApplicationMaster that takes over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaState {
    /// The highest term that the copy has received.
    pub term: Term,
    /// The version of its view.
    pub version: ViewVersion,
    /// Whether it serves trainers.
    pub primary: bool,
    /// The number of its last change.
    pub number: u64,
    /// Whether it has all rows: it is loaded, or filled to the end.
    pub whole: bool,
}

impl ReplicaState {
    /// The only copy of a shard, in the first view of its epoch ([`ShardView::alone`]).
    pub const ALONE: Self =
        Self { term: Term(1), version: ViewVersion(1), primary: true, number: 0, whole: true };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{
        Command, LoadShards, Phase, PserverCommand, ShardCommand, ShardState, Sharing,
    };
    use crate::ids::{Incarnation, PhaseNo, Slot, Step};
    use crate::task_set::TaskSet;

    fn member(index: u32) -> Member {
        Member { slot: Slot::pserver(index), incarnation: Incarnation(1) }
    }

    fn view() -> ShardView {
        let endpoint = SocketAddr::from(([127, 0, 0, 1], 7000));
        ShardView {
            shard: ShardId(3),
            term: Term(2),
            version: ViewVersion(5),
            primary: member(1),
            in_sync: vec![member(1), member(0)],
            backups: vec![BackupPlace { member: member(0), endpoint, fill: None }],
            began_at: None,
        }
    }

    fn load(views: Vec<ShardView>) -> LoadShards {
        let phase = Phase { no: PhaseNo(0), sharing: Sharing::Queue };
        LoadShards {
            epoch: Epoch::default(),
            shards: vec![ShardId(3)],
            base: None,
            phase,
            step: Step(0),
            lost: None,
            views,
        }
    }

    fn state(replica: ReplicaState) -> ShardState {
        ShardState {
            shard: ShardId(3),
            phase: PhaseNo(0),
            step: Step(0),
            ended: false,
            counted: None,
            tasks: Vec::new(),
            done: TaskSet::default(),
            replica,
        }
    }

    #[test]
    fn order_to_load_without_views_has_no_field_of_them() {
        let json =
            serde_json::to_string(&Command::Pserver(PserverCommand::LoadShards(load(Vec::new()))))
                .expect("JSON");
        assert_eq!(
            json,
            r#"{"command":"pserver","pserver_command":"load-shards","epoch":{"generation":0,"count":0},"shards":[3],"base":null,"phase":{"no":0,"sharing":{"mode":"queue"}},"step":0}"#
        );
    }

    #[test]
    fn views_and_states_of_copies_arrive() {
        let json = serde_json::to_string(&load(vec![view()])).expect("JSON");
        let arrived: LoadShards = serde_json::from_str(&json).expect("what was sent arrives");
        assert_eq!(arrived.views, [view()]);
        let views = SetViews { epoch: Epoch::default(), views: vec![view()] };
        let json = serde_json::to_string(&Command::Shards(ShardCommand::Views(views.clone())))
            .expect("JSON");
        let Command::Shards(ShardCommand::Views(arrived)) =
            serde_json::from_str(&json).expect("what was sent arrives")
        else {
            panic!("another command")
        };
        assert_eq!(arrived, views);
        let (term, version) = view().order();
        let copy = ReplicaState { term, version, primary: false, number: 9, whole: true };
        let json = serde_json::to_string(&state(copy)).expect("JSON");
        let arrived: ShardState = serde_json::from_str(&json).expect("what was sent arrives");
        assert_eq!(arrived, state(copy));
    }

    #[test]
    fn an_order_to_fill_is_a_field_of_its_backup_alone() {
        let [mut place] = <[BackupPlace; 1]>::try_from(view().backups).expect("one backup");
        assert!(!serde_json::to_string(&place).expect("JSON").contains("fill"));
        place.fill = Some(FillOrder { version: ViewVersion(6), thread: 1 });
        let json = serde_json::to_string(&place).expect("JSON");
        assert!(json.ends_with(r#""fill":{"version":6,"thread":1}}"#), "{json}");
        assert_eq!(serde_json::from_str::<BackupPlace>(&json).expect("reads back"), place);
    }

    #[test]
    fn the_number_of_a_hand_over_is_a_field_of_its_views_alone() {
        assert!(!serde_json::to_string(&view()).expect("JSON").contains("began_at"));
        let handed_over = ShardView { began_at: Some(7), ..view() };
        let json = serde_json::to_string(&handed_over).expect("JSON");
        assert!(json.ends_with(r#","began_at":7}"#), "{json}");
        assert_eq!(serde_json::from_str::<ShardView>(&json).expect("reads back"), handed_over);
    }

    #[test]
    fn a_higher_term_is_a_later_view_whatever_the_version() {
        let later = ShardView { term: Term(3), version: ViewVersion(1), ..view() };
        assert!(later.order() > view().order());
    }
}
