//! The stage of the job: which transition follows which, and the data that belongs to each stage.
//!
//! ```text
//!  New ──▶ (Takeover) ──▶ Restoring ──▶ Idle ──▶ Beginning ──▶ Working ──▶ Idle ──▶ … ──▶ Exporting ──▶ Stopping ──▶ Over
//!                            ▲            a pserver is lost      │
//!                            └───────── (AwaitingCommit) ◀───────┘
//! ```
//!
//! [`StageMachine::go`] alone assigns the stage. `transitions.txt` lists the legal transitions; a test compares it with the
//! table here. An illegal one ends the job. What a transition means for the other components is routed in `core`.

pub(crate) mod export;
pub(crate) mod local_losses;
pub(crate) mod placement;
pub(crate) mod recovery_timing;
pub(crate) mod replicas;
pub(crate) mod shard_map;
pub(crate) mod shard_names;
pub(crate) mod stop;
pub(crate) mod takeover;

use std::collections::BTreeSet;
use std::fmt;

use heddle_protocol::control::PserverState;
use heddle_protocol::ids::{Member, PhaseNo, ShardId, Slot};
use heddle_protocol::view::JobState;

use crate::checkpoint::cut::CutPoint;
use crate::fleet::Fleet;
use crate::outcome::Outcome;
use crate::time::MonotonicMs;
use export::ModelExport;
use local_losses::LocalLosses;
use recovery_timing::RecoveryTimings;
use replicas::{SettledViews, ShardViews, ViewList};
use shard_map::ShardMap;
use stop::StopOrder;
use takeover::Takeover;

/// What follows when nothing holds the job up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextStep {
    /// Begin this phase: the one before is over.
    Begin(PhaseNo),
    /// Dispatch the work of the phase that shards already serve.
    StartWork,
    /// As `StartWork`, after a takeover: shards may be a step apart, so that no cut is possible until work goes on.
    Resume,
    /// The last phase is over.
    End,
}

/// Shards on their way to a common state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Restoring {
    /// Since when.
    pub since: MonotonicMs,
    /// Slots that have answered for this epoch.
    pub answered: BTreeSet<Slot>,
    /// Where their shards came from.
    pub sources: RestoredShards,
    /// The failure of a load that is tried again.
    pub retry_cause: Option<String>,
}

/// Where shards got the common state from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RestoredShards {
    /// Snapshots in the memory of pservers.
    pub from_memory: u32,
    /// Files, or initial values.
    pub from_storage: u32,
}

/// The stage of the job.
#[derive(Clone, Debug)]
pub(crate) enum JobStage {
    /// The attempt has not started.
    New,
    /// The containers of an earlier attempt register.
    Takeover(Takeover),
    /// A shard is lost while a commit is under way: its outcome decides which checkpoint to return to.
    AwaitingCommit { cause: String },
    /// The checkpoint is damaged; an older one is being looked for.
    FindingCheckpoint { cause: String },
    /// Shards go to a common state.
    Restoring(Restoring),
    /// No work is under way. A cut that not all shards have taken, or too few trainers, can hold the job up.
    Idle(NextStep),
    /// Pservers get the order to serve the next phase; these have answered.
    Beginning { begun: BTreeSet<Slot> },
    /// Trainers work on the phase.
    Working,
    /// The final checkpoint is committed; the model is being written and published.
    Exporting(ModelExport),
    /// The outcome is recorded; containers end.
    Stopping(Outcome),
    /// Nothing follows.
    Over(JobState),
}

/// A stage without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StageKind {
    New,
    Takeover,
    AwaitingCommit,
    FindingCheckpoint,
    Restoring,
    Idle,
    Beginning,
    Working,
    Exporting,
    Stopping,
    Over,
}

impl StageKind {
    /// The stages that can follow.
    fn next(self) -> &'static [Self] {
        use StageKind::{
            AwaitingCommit, Beginning, Exporting, FindingCheckpoint, Idle, New, Over, Restoring,
            Stopping, Takeover, Working,
        };
        match self {
            New => &[Takeover, Restoring, Idle, Stopping],
            Takeover | AwaitingCommit | FindingCheckpoint => &[Restoring, Idle, Stopping],
            Restoring => &[Restoring, Idle, AwaitingCommit, FindingCheckpoint, Stopping],
            Idle => &[Idle, Beginning, Working, Exporting, AwaitingCommit, Restoring, Stopping],
            Beginning | Working => &[Idle, AwaitingCommit, Restoring, Stopping],
            Exporting => &[Stopping],
            Stopping => &[Stopping, Over],
            Over => &[],
        }
    }
}

impl JobStage {
    pub(crate) fn kind(&self) -> StageKind {
        match self {
            Self::New => StageKind::New,
            Self::Takeover(_) => StageKind::Takeover,
            Self::AwaitingCommit { .. } => StageKind::AwaitingCommit,
            Self::FindingCheckpoint { .. } => StageKind::FindingCheckpoint,
            Self::Restoring(_) => StageKind::Restoring,
            Self::Idle(_) => StageKind::Idle,
            Self::Beginning { .. } => StageKind::Beginning,
            Self::Working => StageKind::Working,
            Self::Exporting(_) => StageKind::Exporting,
            Self::Stopping(_) => StageKind::Stopping,
            Self::Over(_) => StageKind::Over,
        }
    }
}

/// A transition that the table does not have: a defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IllegalTransition {
    from: StageKind,
    to: StageKind,
}

impl fmt::Display for IllegalTransition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "illegal transition of the job from {:?} to {:?}", self.from, self.to)
    }
}

/// The stage, and what outlives it: the shard map, an operator's stop, the recoveries.
#[derive(Clone, Debug)]
pub(crate) struct StageMachine {
    stage: JobStage,
    /// The first that was refused.
    illegal: Option<IllegalTransition>,
    /// Work has been dispatched at least once.
    started: bool,
    map: ShardMap,
    views: ShardViews,
    /// Loads of the base that failed in a row.
    load_tries: u32,
    stop_order: Option<StopOrder>,
    recoveries: RecoveryTimings,
    losses: LocalLosses,
}

impl StageMachine {
    pub(crate) fn new() -> Self {
        Self {
            stage: JobStage::New,
            illegal: None,
            started: false,
            map: ShardMap::default(),
            views: ShardViews::default(),
            load_tries: 0,
            stop_order: None,
            recoveries: RecoveryTimings::default(),
            losses: LocalLosses::default(),
        }
    }

    /// What local recoveries have lost, and lose.
    pub(crate) fn losses(&self) -> &LocalLosses {
        &self.losses
    }

    pub(crate) fn losses_mut(&mut self) -> &mut LocalLosses {
        &mut self.losses
    }

    /// Assigns the stage. An illegal transition is refused, and ends the job by [`Self::take_illegal`].
    pub(crate) fn go(&mut self, next: JobStage) {
        let (from, to) = (self.stage.kind(), next.kind());
        if from.next().contains(&to) {
            self.stage = next;
        } else {
            self.illegal.get_or_insert(IllegalTransition { from, to });
        }
    }

    /// Whether a transition was refused and not taken.
    pub(crate) fn has_illegal(&self) -> bool {
        self.illegal.is_some()
    }

    /// The transition that was refused, once.
    pub(crate) fn take_illegal(&mut self) -> Option<IllegalTransition> {
        self.illegal.take()
    }

    /// The stage.
    pub(crate) fn now(&self) -> &JobStage {
        &self.stage
    }

    /// The stage without its data.
    pub(crate) fn kind(&self) -> StageKind {
        self.stage.kind()
    }

    /// Whether trainers work on the phase.
    pub(crate) fn is_working(&self) -> bool {
        self.kind() == StageKind::Working
    }

    /// Whether the job is ending.
    pub(crate) fn is_stopping(&self) -> bool {
        self.kind() == StageKind::Stopping
    }

    /// Whether nothing follows.
    pub(crate) fn is_over(&self) -> bool {
        self.kind() == StageKind::Over
    }

    /// Whether all shards are in a common state and the job goes through its phases.
    pub(crate) fn is_in_phase(&self) -> bool {
        matches!(self.kind(), StageKind::Idle | StageKind::Beginning | StageKind::Working)
    }

    /// Whether the job takes containers: not before it has started, not during a takeover, not at its end.
    pub(crate) fn takes_containers(&self) -> bool {
        let takes_none =
            [StageKind::New, StageKind::Takeover, StageKind::Stopping, StageKind::Over];
        !takes_none.contains(&self.kind()) && !self.saves_last()
    }

    /// Whether the job has failed and saves its state before it ends.
    pub(crate) fn saves_last(&self) -> bool {
        self.stop_order.as_ref().is_some_and(StopOrder::is_for_failure)
    }

    /// Where the job can be cut now.
    pub(crate) fn cut_point(&self) -> Option<CutPoint> {
        match self.stage {
            JobStage::Idle(NextStep::Resume) => None,
            JobStage::Idle(NextStep::Begin(_) | NextStep::End) => {
                Some(CutPoint::Idle { phase_is_over: true })
            }
            JobStage::Idle(NextStep::StartWork) => Some(CutPoint::Idle { phase_is_over: false }),
            JobStage::Working => Some(CutPoint::Working),
            _ => None,
        }
    }

    /// Whether work has been dispatched at least once.
    pub(crate) fn has_started(&self) -> bool {
        self.started
    }

    /// Work is dispatched, or an earlier attempt had dispatched it.
    pub(crate) fn set_started(&mut self, started: bool) {
        self.started = started;
    }

    /// The slot of each shard.
    pub(crate) fn map(&self) -> &ShardMap {
        &self.map
    }

    pub(crate) fn set_map(&mut self, map: ShardMap) {
        self.map = map;
    }

    /// With replicas: the views of the shards.
    pub(crate) fn views(&self) -> &ShardViews {
        &self.views
    }

    pub(crate) fn views_mut(&mut self) -> &mut ShardViews {
        &mut self.views
    }

    /// The views, while the job goes through its phases and copies can be promoted.
    pub(crate) fn views_in_phase(&mut self) -> Option<&mut SettledViews> {
        match self.is_in_phase() {
            true => self.views.settled_mut(),
            false => None,
        }
    }

    /// The map gets the primaries and the data threads of the views. The slot `lost` has no copies any more.
    pub(crate) fn follow_views(&mut self, lost: Option<Slot>) {
        let views = self.views.all();
        let map = self.map.with_primaries(views.holders(), lost);
        self.map = map.with_filled(views.filled_threads());
    }

    /// Whether the slot holds the shard, with replicas as its primary.
    pub(crate) fn holds(&self, slot: Slot, shard: ShardId) -> bool {
        self.map.holds(slot, shard)
    }

    /// The recoveries of this attempt.
    pub(crate) fn recoveries(&self) -> &RecoveryTimings {
        &self.recoveries
    }

    pub(crate) fn recoveries_mut(&mut self) -> &mut RecoveryTimings {
        &mut self.recoveries
    }

    /// What the containers of an earlier attempt reported, during a takeover.
    pub(crate) fn takeover(&mut self) -> Option<&mut Takeover> {
        match &mut self.stage {
            JobStage::Takeover(takeover) => Some(takeover),
            _ => None,
        }
    }

    /// The same, with the views that say which copies count; none if the journal has none.
    pub(crate) fn takeover_by_views(&mut self) -> Option<(&mut Takeover, &ViewList)> {
        let views = self.views.settled()?.list();
        match &mut self.stage {
            JobStage::Takeover(takeover) => Some((takeover, views)),
            _ => None,
        }
    }

    /// Whether every pserver that holds shards has registered, during a takeover.
    pub(crate) fn has_all_pservers(&self) -> bool {
        matches!(&self.stage, JobStage::Takeover(takeover) if takeover.has_all_pservers(&self.map))
    }

    /// Shards that do not move are where the map of the journal's last epoch has them.
    pub(crate) fn take_over_places(&mut self) {
        self.views.take_over_places(&self.map);
    }

    /// A pserver of an earlier attempt has registered, during a takeover.
    pub(crate) fn pserver_is_back(&mut self, member: Member, held: Option<PserverState>) {
        if let JobStage::Takeover(takeover) = &mut self.stage {
            self.views.is_back(member, self.map.of(member.slot));
            takeover.pserver_registered(member.slot, held);
        }
    }

    /// The model on its way out, once training is over.
    pub(crate) fn export(&mut self) -> Option<&mut ModelExport> {
        match &mut self.stage {
            JobStage::Exporting(export) => Some(export),
            _ => None,
        }
    }

    /// A pserver serves the phase that begins. Ignored in other stages: a pserver that connects again reports it again.
    pub(crate) fn begun(&mut self, slot: Slot) {
        if let JobStage::Beginning { begun } = &mut self.stage {
            begun.insert(slot);
        }
    }

    /// A pserver has become the primary of shards that may not serve the phase that begins.
    pub(crate) fn must_begin_again(&mut self, slot: Slot) {
        if let JobStage::Beginning { begun } = &mut self.stage {
            begun.remove(&slot);
        }
    }

    /// Whether every pserver serves the phase that begins.
    pub(crate) fn has_begun(&self) -> bool {
        matches!(&self.stage, JobStage::Beginning { begun } if self.map.is_covered_by(begun))
    }

    /// A pserver has the state that shards go to. Ignored in other stages: a pserver that connects again reports it again.
    pub(crate) fn restored(&mut self, slot: Slot, shards: RestoredShards) {
        if let JobStage::Restoring(restoring) = &mut self.stage
            && restoring.answered.insert(slot)
        {
            restoring.sources.from_memory += shards.from_memory;
            restoring.sources.from_storage += shards.from_storage;
        }
    }

    /// Whether every shard has the common state and its pserver is there.
    pub(crate) fn is_restored(&self, fleet: &Fleet) -> bool {
        let JobStage::Restoring(restoring) = &self.stage else { return false };
        self.map.is_loaded_by(&restoring.answered)
            && self.map.slots().all(|slot| fleet.holder(slot).is_some())
    }

    /// A load failed and is tried again. Returns the failed tries in a row; nothing if this try had failed before: one
    /// outage of the storage fails the loads of all pservers, and that is one try.
    pub(crate) fn load_failed(&mut self, cause: String) -> Option<u32> {
        let JobStage::Restoring(restoring) = &mut self.stage else {
            return None;
        };
        if restoring.retry_cause.replace(cause).is_some() {
            return None;
        }
        self.load_tries += 1;
        Some(self.load_tries)
    }

    /// All shards are loaded.
    pub(crate) fn loads_succeeded(&mut self) {
        self.load_tries = 0;
    }

    /// Takes out the failure of a load that is to be tried again.
    pub(crate) fn take_load_retry(&mut self) -> Option<String> {
        match &mut self.stage {
            JobStage::Restoring(restoring) => restoring.retry_cause.take(),
            _ => None,
        }
    }

    /// An operator's orderly stop.
    pub(crate) fn stop_order(&mut self) -> Option<&mut StopOrder> {
        self.stop_order.as_mut()
    }

    pub(crate) fn set_stop_order(&mut self, order: StopOrder) {
        self.stop_order = Some(order);
    }

    /// Ends an operator's orderly stop.
    pub(crate) fn take_stop_order(&mut self) -> Option<StopOrder> {
        self.stop_order.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [StageKind; 11] = [
        StageKind::New,
        StageKind::Takeover,
        StageKind::AwaitingCommit,
        StageKind::FindingCheckpoint,
        StageKind::Restoring,
        StageKind::Idle,
        StageKind::Beginning,
        StageKind::Working,
        StageKind::Exporting,
        StageKind::Stopping,
        StageKind::Over,
    ];

    #[test]
    fn legal_transitions_are_those_of_the_text_table() {
        let mut expected: Vec<String> = include_str!("transitions.txt")
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(str::to_owned)
            .collect();
        let mut legal: Vec<String> = ALL
            .iter()
            .flat_map(|from| from.next().iter().map(move |to| format!("{from:?} {to:?}")))
            .collect();
        expected.sort();
        legal.sort();
        assert_eq!(legal, expected);
    }
}
