//! Records of the journal: decisions that no other process can report.
//!
//! It has no task completions (shards have them, and a rollback would make them false) and no containers (the
//! cluster has them). Records are only ever added to; unknown fields of later versions are ignored.

use heddle_protocol::ids::{
    Attempt, CutId, Epoch, Generation, Member, PhaseNo, SaveNo, ShardId, Slot, Step, Term,
    ViewVersion,
};
use heddle_protocol::mutation::Mutation;
use heddle_protocol::set_aside::SetAsideTask;
use heddle_protocol::view::{EvaluationView, SetBy, TrainingPassView};
use serde::{Deserialize, Serialize};

use crate::outcome::Outcome;

/// The view of a shard, as the journal has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedView {
    /// The shard.
    pub shard: ShardId,
    /// Fencing token of the primary.
    pub term: Term,
    /// Orders the views of the epoch.
    pub version: ViewVersion,
    /// The copy that serves trainers.
    pub primary: Member,
    /// The copies that may be promoted, the primary included.
    pub in_sync: Vec<Member>,
    /// Copies that a refill brings or has brought up to date. One that is not in `in_sync` is being filled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fills: Vec<RecordedFill>,
    /// The number of the change at which a hand-over began the term, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began_at: Option<u64>,
}

/// A refill of a copy, as the journal has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedFill {
    /// The receiver.
    pub member: Member,
    /// Its data thread that owns the copy.
    pub thread: u32,
    /// The version of the view that ordered it.
    pub version: ViewVersion,
}

impl RecordedView {
    /// The first view of an epoch of a shard with one copy.
    pub(crate) fn alone(shard: ShardId, primary: Member) -> Self {
        let (term, version, in_sync) = (Term(1), ViewVersion(1), vec![primary]);
        Self { shard, term, version, primary, in_sync, fills: Vec::new(), began_at: None }
    }

    /// The refills that are not over.
    pub fn open_fills(&self) -> impl Iterator<Item = &RecordedFill> {
        self.fills.iter().filter(|fill| !self.in_sync.contains(&fill.member))
    }

    /// The copies that the shard has or is getting.
    pub(crate) fn members(&self) -> impl Iterator<Item = Member> + '_ {
        self.in_sync.iter().copied().chain(self.open_fills().map(|fill| fill.member))
    }
}

/// A granted request for a save of the model, as the journal has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantedSave {
    /// The number of the save.
    pub save: SaveNo,
    /// The trainer that asked.
    pub member: Member,
    /// The number of its request.
    pub request: u64,
    /// For how long requests of others wait, ms.
    pub block_ms: u64,
    /// The last cut of the job at that time: the save is made from a later one.
    pub after: CutId,
    /// Milliseconds since 1970.
    pub at_ms: u64,
}

/// What local recoveries have lost, as the journal has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostUpdates {
    /// The epoch of the recovery.
    pub epoch: Epoch,
    /// Updates lost in it.
    pub updates: u64,
    /// Updates that each shard of the job has lost, by earlier recoveries too; ascending by shard. (A map with numbers as keys
    /// cannot be read back from a record with a tag.)
    pub by_shard: Vec<(ShardId, u64)>,
    /// Milliseconds since 1970.
    pub at_ms: u64,
}

/// One journal entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "record")]
pub enum Record {
    /// An attempt has started to lead the job.
    Claim {
        /// The attempt.
        attempt: Attempt,
        /// Its generation.
        generation: Generation,
        /// The checkpoint it would return to.
        base: Option<CutId>,
        /// Milliseconds since 1970.
        at_ms: u64,
    },
    /// An epoch begins: the start of the job, or a rollback. Durable before any command carries it.
    Restore {
        /// The epoch.
        epoch: Epoch,
        /// The checkpoint that all shards are to be in; none: initial values.
        base: Option<CutId>,
        /// Where the base is, as a URL.
        dir: Option<String>,
        /// The phase that the base is in; with `lost`, the phase that goes on.
        phase: PhaseNo,
        /// BSP: job steps of the phase applied in the base.
        step: Step,
        /// The shard map: by shard, its slot.
        holders: Vec<Slot>,
        /// `pservers.recovery = "local"`: the shards that alone go back, ascending; empty: all.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        lost: Vec<ShardId>,
        /// What was lost, for reports.
        cause: String,
        /// Milliseconds since 1970.
        at_ms: u64,
    },
    /// The shards of a local recovery have their state. Durable before a trainer goes on: without this record the number of
    /// lost updates is unknown, and a successor of the attempt takes all shards back.
    UpdatesLost(LostUpdates),
    /// `pservers.replicas`: shards have these views from now on. All that one decision changes is in one record. The first of
    /// an epoch has all shards, when all copies are in its state; each later one those that another primary or another
    /// in-sync set. Durable before any command carries them.
    Views {
        /// The epoch.
        epoch: Epoch,
        /// The views, ascending by shard.
        views: Vec<RecordedView>,
        /// Why, in words.
        cause: String,
        /// Milliseconds since 1970.
        at_ms: u64,
    },
    /// A cut has become a checkpoint. (If this record is missing, the directory's listing shows it.)
    Commit {
        /// The cut.
        cut: CutId,
        /// Its directory, as a URL.
        dir: String,
        /// The phase.
        phase: PhaseNo,
        /// BSP: job steps of the phase applied.
        step: Step,
        /// Milliseconds since 1970.
        at_ms: u64,
    },
    /// An evaluation is done: its scores would otherwise be lost between two checkpoints. One of an
    /// epoch after which a `Restore` went below its phase is forgotten.
    Evaluated {
        /// In which epoch.
        epoch: Epoch,
        /// Which phase.
        phase: PhaseNo,
        /// The scores.
        scores: EvaluationView,
    },
    /// A pass is over: its training loss would otherwise be lost between two checkpoints. One with a `Restore` to its
    /// phase or below after it is forgotten.
    PassTrained {
        /// Which phase.
        phase: PhaseNo,
        /// Its loss.
        trained: TrainingPassView,
    },
    /// A phase is over that may lack tasks (`data.failed-share`): those that it lacks, if any. Durable before the next phase
    /// begins, since a takeover in a later phase finds them nowhere else. The last one of a phase counts; one with a `Restore`
    /// to its phase or below after it is forgotten.
    TasksSetAside {
        /// Which phase.
        phase: PhaseNo,
        /// The tasks, in the order in which they were set aside.
        tasks: Vec<SetAsideTask>,
    },
    /// A trainer's request for a save of the model is granted. Durable before the trainer receives it.
    SaveGranted(GrantedSave),
    /// A save is over.
    SaveEnded {
        /// The save.
        save: SaveNo,
        /// Its directory, as a URL; none: it was given up.
        model: Option<String>,
        /// Milliseconds since 1970.
        at_ms: u64,
    },
    /// The numbers of trainers or pservers were changed; holds for the attempts of this run.
    Scaled {
        /// Trainers that are wanted.
        trainers: u32,
        /// Pservers that are wanted; absent in records of earlier versions: as in the job file.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pservers: Option<u32>,
        /// By what; absent in records of earlier versions: by an operator.
        #[serde(default = "by_operator")]
        set_by: SetBy,
        /// The highest generation of a controller that has given an order; 0: before the first.
        #[serde(default)]
        generation: u64,
        /// Milliseconds since 1970.
        at_ms: u64,
    },
    /// The job is over. One that finished is never run again.
    Outcome(Outcome),
}

fn by_operator() -> SetBy {
    SetBy::Operator
}

impl Record {
    /// Whether others must not see what follows from it before it is durable. False for what a successor
    /// finds out without it or can do without: a committed checkpoint (its directory shows it), scores (unless
    /// `training.early-stop` makes the number of passes follow from them), losses, the numbers of containers.
    #[must_use]
    pub fn is_decision(&self) -> bool {
        match self {
            Self::Claim { .. }
            | Self::Restore { .. }
            | Self::UpdatesLost(_)
            | Self::TasksSetAside { .. }
            | Self::SaveGranted(_)
            | Self::Outcome(_) => true,
            Self::Views { .. } => !Mutation::ViewsBeforeRecord.is_on(),
            Self::Commit { .. }
            | Self::Evaluated { .. }
            | Self::PassTrained { .. }
            | Self::SaveEnded { .. }
            | Self::Scaled { .. } => false,
        }
    }

    /// Whether the claim must be checked again once the record is durable. A record that became durable after another
    /// attempt had read the journal is in no journal that counts: without the check this attempt would order a promotion
    /// that its successor does not know.
    #[must_use]
    pub fn needs_claim_after(&self) -> bool {
        matches!(self, Self::Views { .. })
    }
}

#[cfg(test)]
mod tests {
    use heddle_protocol::ids::Incarnation;

    use super::*;

    #[test]
    fn lost_updates_are_written_as_the_formats_page_says() {
        let record = Record::UpdatesLost(LostUpdates {
            epoch: Epoch { count: 2, ..Epoch::first(Generation(1)) },
            updates: 96,
            by_shard: vec![(ShardId(1), 48), (ShardId(3), 48)],
            at_ms: 1,
        });
        let json = serde_json::to_string(&record).expect("JSON");
        let page = include_str!("../../../docs/formats.md");
        assert!(page.lines().any(|line| line == json), "docs/formats.md lacks {json}");
        assert_eq!(serde_json::from_str::<Record>(&json).expect("reads back"), record);
        assert!(record.is_decision());
    }

    #[test]
    fn views_are_written_as_the_formats_page_says() {
        let member = |slot| Member { slot: Slot::pserver(slot), incarnation: Incarnation(1) };
        let view = RecordedView {
            shard: ShardId(3),
            term: Term(2),
            version: ViewVersion(2),
            primary: member(1),
            in_sync: vec![member(1)],
            fills: Vec::new(),
            began_at: None,
        };
        let record = Record::Views {
            epoch: Epoch::first(Generation(1)),
            views: vec![view],
            cause: "pserver-0 exited with signal 9".to_owned(),
            at_ms: 1,
        };
        let json = serde_json::to_string(&record).expect("JSON");
        let page = include_str!("../../../docs/formats.md");
        assert!(page.lines().any(|line| line == json), "docs/formats.md lacks {json}");
        assert_eq!(serde_json::from_str::<Record>(&json).expect("reads back"), record);
        assert!(record.is_decision() && record.needs_claim_after());
        let Record::Views { epoch, mut views, .. } = record else { panic!("another record") };
        views[0].version = ViewVersion(3);
        let (member, version) = (member(2), ViewVersion(3));
        views[0].fills = vec![RecordedFill { member, thread: 1, version }];
        assert_eq!(views[0].open_fills().count(), 1);
        let cause = "another copy of shard 3".to_owned();
        let record = Record::Views { epoch, views, cause, at_ms: 1 };
        let json = serde_json::to_string(&record).expect("JSON");
        assert!(page.lines().any(|line| line == json), "docs/formats.md lacks {json}");
        assert_eq!(serde_json::from_str::<Record>(&json).expect("reads back"), record);
        let Record::Views { mut views, .. } = record else { panic!("another record") };
        let view = &mut views[0];
        (view.term, view.version, view.primary) = (Term(3), ViewVersion(4), member);
        (view.in_sync, view.fills) = (vec![member, view.in_sync[0]], Vec::new());
        view.began_at = Some(120);
        let cause = "pserver-1 hands shard 3 over: others serve fewer".to_owned();
        let record = Record::Views { epoch, views, cause, at_ms: 1 };
        let json = serde_json::to_string(&record).expect("JSON");
        assert!(page.lines().any(|line| line == json), "docs/formats.md lacks {json}");
        assert_eq!(serde_json::from_str::<Record>(&json).expect("reads back"), record);
    }
}
