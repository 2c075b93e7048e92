//! Known defects that a test can switch on, to show that the simulation finds each of them.
//!
//! Only builds with the feature `mutations` can. In all others [`Mutation::is_on`] is a constant `false`, so that a
//! switch in the product has no cost and no effect.

#[cfg(feature = "mutations")]
use std::sync::atomic::{AtomicU8, Ordering};

/// A defect that can be put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Mutation {
    /// Shards take a push that they have had before.
    NoOnceOnlyMemory = 1,
    /// Containers receive a command before the journal has its decision.
    CommandsBeforeJournal,
    /// An attempt that the ResourceManager does not answer publishes and removes.
    NoLease,
    /// Shards serve frames of every epoch.
    AnyEpoch,
    /// What is written after a cut is in its snapshot.
    TornSnapshot,
    /// A barrier names its cut by the number alone, which starts again in every generation.
    BarrierByNumber,
    /// Shards serve every trainer that was ever given a lane.
    AnyHandOut,
    /// A report that came on a connection which was replaced is confirmed, though it is dropped.
    HeardOnReplacedConnection,
    /// A container that was ended for its memory counts as a crash if its port refused before the report of the cluster.
    LateMemoryExitIsCrash,
    /// The allocation timeout runs on when all containers are there.
    AllocationTimeoutRunsOn,
    /// Training continues before the score that can end it is durable.
    ScoreNotDurable,
    /// What a trainer reports after its barrier counts for the cut.
    ProgressPassesBarrier,
    /// A trainer reports what it has sent, acknowledged or not.
    SentIsReached,
    /// The score that ends training makes every earlier checkpoint a final one.
    LaterScoreEndsTraining,
    /// SSP: a trainer without a task is counted.
    IdleTrainerIsCounted,
    /// SSP: a pull waits for the trainer's own clock alone.
    OwnClockAlone,
    /// SSP with backups: a promoted copy grants pulls before it has the clocks of all trainers.
    UnknownTrainerIsNotAwaited,
    /// SSP with backups: a trainer whose connection closed is not counted.
    ClosedTrainerIsNotCounted,
    /// SSP with backups: pulls are granted while their shard is handed over.
    StoppedShardIsPulled,
    /// The next pass begins before the checkpoint of the best one is durable.
    BestPassIsNotHeld,
    /// A process whose threads hang keeps its place while its heartbeats come.
    HungThreadIsKept,
    /// Replicas: a primary answers before its backups have what the answer is about.
    AnswersDoNotWait,
    /// Replicas: a primary stops waiting for a slow backup before a view without it.
    PrimaryLeavesBackupOut,
    /// Replicas: pservers receive a view before its record is durable.
    ViewsBeforeRecord,
    /// Replicas: training goes on after a rollback before the backups are in the state of the epoch.
    BackupsNeedNotLoad,
    /// Replicas: a new attempt takes positions from primaries alone.
    TakeoverTrustsPrimaries,
    /// Replicas: the files of a shard in a checkpoint may differ.
    CopiesAreNotCompared,
    /// Refills: a primary waits for a filled copy by the view alone, after it has reported the copy in sync.
    FilledCopyIsNotCounted,
    /// Refills: an answer to an earlier attempt counts for the present one.
    AnyFillName,
    /// Refills: a beginning that was superseded is taken.
    StaleFillBegin,
    /// Refills: rows are sent before the changes that are in them.
    ChunksOvertakeChanges,
    /// Hand-overs: a primary neither stops nor waits for its backups, and its copy counts wherever it is.
    HandOverWithoutDraining,
    /// A primary that gets its first other copy does not begin to record its changes.
    FillIsNotRecorded,
    /// Moves: a pserver that is only unwanted is given up after a checkpoint, like one on a node that leaves.
    UnwantedPserverIsGivenUp,
    /// Moves: a new attempt refuses a pserver that is not wanted any more and still serves shards.
    UnwantedPserverIsRefused,
    /// Moves: the copy that a shard moves to is in excess before it serves.
    SurplusDoesNotWait,
    /// Replicas: a new primary goes on before the other copies of the set have answered.
    SurvivorsAreNotAligned,
    /// Spares: more trainers join than the job wants.
    SparesJoin,
    /// Spares: the shards of a lost pserver wait for a container.
    SpareStaysIdle,
    /// Extra trainers: they stay when no task is late any more.
    ExtraTrainersStay,
    /// Saves: what a trainer reports under an earlier lease is published.
    AnySaveLease,
    /// Saves: a new attempt does not go on with a save that is not over.
    SaveIsForgotten,
    /// Local recovery: lost shards take what the job does not send again as missing.
    LostShardsTakeAll,
    /// Local recovery: a new attempt forgets the lost updates.
    LostUpdatesForgotten,
    /// Tasks that a pass went on without are not recorded at its end.
    SetAsideForgotten,
    /// Cuts are taken of a job whose phases only read.
    CutsWithoutState,
    /// A job follows the orders of a controller that another one has superseded.
    StaleController,
    /// An order about the numbers of containers is answered before its record is durable.
    OrderAnsweredEarly,
}

impl Mutation {
    /// All of them.
    pub const ALL: [Self; 48] = [
        Self::NoOnceOnlyMemory,
        Self::CommandsBeforeJournal,
        Self::NoLease,
        Self::AnyEpoch,
        Self::TornSnapshot,
        Self::BarrierByNumber,
        Self::AnyHandOut,
        Self::HeardOnReplacedConnection,
        Self::LateMemoryExitIsCrash,
        Self::AllocationTimeoutRunsOn,
        Self::ScoreNotDurable,
        Self::ProgressPassesBarrier,
        Self::SentIsReached,
        Self::LaterScoreEndsTraining,
        Self::IdleTrainerIsCounted,
        Self::OwnClockAlone,
        Self::UnknownTrainerIsNotAwaited,
        Self::ClosedTrainerIsNotCounted,
        Self::StoppedShardIsPulled,
        Self::BestPassIsNotHeld,
        Self::HungThreadIsKept,
        Self::AnswersDoNotWait,
        Self::PrimaryLeavesBackupOut,
        Self::ViewsBeforeRecord,
        Self::BackupsNeedNotLoad,
        Self::TakeoverTrustsPrimaries,
        Self::CopiesAreNotCompared,
        Self::FilledCopyIsNotCounted,
        Self::AnyFillName,
        Self::StaleFillBegin,
        Self::ChunksOvertakeChanges,
        Self::HandOverWithoutDraining,
        Self::FillIsNotRecorded,
        Self::UnwantedPserverIsGivenUp,
        Self::UnwantedPserverIsRefused,
        Self::SurplusDoesNotWait,
        Self::SurvivorsAreNotAligned,
        Self::SparesJoin,
        Self::SpareStaysIdle,
        Self::ExtraTrainersStay,
        Self::AnySaveLease,
        Self::SaveIsForgotten,
        Self::LostShardsTakeAll,
        Self::LostUpdatesForgotten,
        Self::SetAsideForgotten,
        Self::CutsWithoutState,
        Self::StaleController,
        Self::OrderAnsweredEarly,
    ];

    /// Whether this process has the defect.
    #[cfg(not(feature = "mutations"))]
    #[inline(always)]
    #[must_use]
    pub const fn is_on(self) -> bool {
        false
    }

    /// Whether this process has the defect.
    #[cfg(feature = "mutations")]
    #[must_use]
    pub fn is_on(self) -> bool {
        ON.load(Ordering::Relaxed) == self as u8
    }
}

#[cfg(feature = "mutations")]
static ON: AtomicU8 = AtomicU8::new(0);

/// Puts one defect back into this process, or none, in place of the one before.
#[cfg(feature = "mutations")]
pub fn put_back(mutation: Option<Mutation>) {
    ON.store(mutation.map_or(0, |mutation| mutation as u8), Ordering::Relaxed);
}
