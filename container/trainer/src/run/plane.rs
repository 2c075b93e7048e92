//! What the training loop needs of the data plane. One implementer talks to pservers; tests have another,
//! which holds the tables itself.

use heddle_client::machine::{Era, PullAt, PullId, PullItem, StepPush, Unit};
use heddle_client::shell::Handle;
use heddle_protocol::control::{LaneGrant, Phase, ShardPlace, TaskGrant};
use heddle_protocol::ids::{CutId, Epoch, Lane, TaskId};

/// Calls into the data plane, as [`heddle_client::machine::Machine`] describes them. What comes of them is told by
/// [`heddle_client::machine::Event`]s.
pub trait DataPlane: Send {
    /// The epoch, the phase, and where shards are.
    fn work(&mut self, epoch: Epoch, phase: Phase, places: Vec<ShardPlace>);
    /// Sends the barrier of a cut.
    fn barrier(&mut self, cut: CutId, epoch: Epoch);
    /// Runs a lane from now on.
    fn take_over(&mut self, era: Era, grant: LaneGrant);
    /// Runs a lane no more.
    fn give_up(&mut self, era: Era, lane: Lane);
    /// Takes a task on.
    fn hold_task(&mut self, era: Era, grant: TaskGrant);
    /// Gives a task back.
    fn drop_task(&mut self, era: Era, task: TaskId);
    /// No more steps of this task come.
    fn task_done(&mut self, era: Era, task: TaskId);
    /// Asks for values.
    fn pull(&mut self, era: Era, at: PullAt, items: Vec<PullItem>) -> PullId;
    /// Hands over a step's gradient.
    fn push_step(&mut self, era: Era, unit: Unit, push: StepPush);
}

impl DataPlane for Handle {
    fn work(&mut self, epoch: Epoch, phase: Phase, places: Vec<ShardPlace>) {
        Handle::work(self, epoch, phase, places);
    }

    fn barrier(&mut self, cut: CutId, epoch: Epoch) {
        Handle::barrier(self, cut, epoch);
    }

    fn take_over(&mut self, era: Era, grant: LaneGrant) {
        Handle::take_over(self, era, grant);
    }

    fn give_up(&mut self, era: Era, lane: Lane) {
        Handle::give_up(self, era, lane);
    }

    fn hold_task(&mut self, era: Era, grant: TaskGrant) {
        Handle::hold_task(self, era, grant);
    }

    fn drop_task(&mut self, era: Era, task: TaskId) {
        Handle::drop_task(self, era, task);
    }

    fn task_done(&mut self, era: Era, task: TaskId) {
        Handle::task_done(self, era, task);
    }

    fn pull(&mut self, era: Era, at: PullAt, items: Vec<PullItem>) -> PullId {
        Handle::pull(self, era, at, items)
    }

    fn push_step(&mut self, era: Era, unit: Unit, push: StepPush) {
        Handle::push_step(self, era, unit, push);
    }
}
