//! State that containers report: when they register, and with each heartbeat.

use serde::{Deserialize, Serialize};

use super::command::LaneGrant;
use super::model_save::ExportProgress;
use super::replica::{FillProgress, ReplicaState, ReplicationLag};
use super::sparse_table_size::SparseTableSize;
use crate::ids::{CutId, Epoch, Member, PhaseNo, ShardId, Step, TaskAttempt, TaskId};
use crate::metrics::CountedPhase;
use crate::process_figures::ProcessFigures;
use crate::task_set::TaskSet;

/// Progress of an ASP task on a shard or a trainer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskPosition {
    /// The task.
    pub task: TaskId,
    /// Number of its hand-out; 0 on shards, which do not know it.
    pub attempt: TaskAttempt,
    /// The first step that is not complete (trainer: not acknowledged by every shard).
    pub step: Step,
}

/// State of a shard, for an ApplicationMaster that takes over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardState {
    /// The shard.
    pub shard: ShardId,
    /// The phase that it serves.
    pub phase: PhaseNo,
    /// BSP: job steps of the phase applied.
    pub step: Step,
    /// BSP: all lanes have ended and the last step is applied.
    pub ended: bool,
    /// BSP, of the shard that counts: the last phase that has ended, and what its records add up to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted: Option<CountedPhase>,
    /// ASP: tasks of this phase that are begun here and not done, ascending by task.
    pub tasks: Vec<TaskPosition>,
    /// ASP: tasks of this phase that are marked done here. Within [`PserverState`] without those of [`PserverState::done`].
    pub done: TaskSet,
    /// Its role as a copy of the shard.
    pub replica: ReplicaState,
}

/// State of a pserver that registers again; absent on its first connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PserverState {
    /// The epoch that it is in.
    pub epoch: Epoch,
    /// The highest cut that it has received.
    pub cut: CutId,
    /// ASP: tasks that all of its shards mark done. The sets of its shards differ little, so the registration of a pserver
    /// with many shards stays short.
    pub done: TaskSet,
    /// Its shards.
    pub shards: Vec<ShardState>,
}

impl PserverState {
    /// The state of a pserver with these shards, each with all of its done tasks in [`ShardState::done`].
    #[must_use]
    pub fn new(epoch: Epoch, cut: CutId, mut shards: Vec<ShardState>) -> Self {
        let mut done = TaskSet::default();
        if let Some((first, others)) = shards.split_first()
            && others.iter().all(|other| other.phase == first.phase)
        {
            let both = |done: TaskSet, other: &ShardState| done.intersection(&other.done);
            done = others.iter().fold(first.done.clone(), both);
            for shard in &mut shards {
                shard.done = shard.done.difference(&done);
            }
        }
        Self { epoch, cut, done, shards }
    }
}

/// State of a trainer that registers again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrainerState {
    /// The epoch that it works in.
    pub epoch: Epoch,
    /// The phase.
    pub phase: PhaseNo,
    /// The highest cut that it has received.
    pub cut: CutId,
    /// ASP, evaluation: the tasks it holds.
    pub tasks: Vec<TaskPosition>,
    /// BSP: the lanes it runs.
    pub lanes: Vec<LaneGrant>,
}

/// State and figures of a container, sent with each heartbeat. Counters run since the container's start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HeartbeatStats {
    /// What it counts. On the wire the figures that changed since the heartbeat before; the first one after each registration
    /// has all of them.
    #[serde(default)]
    pub figures: Box<ProcessFigures>,
    /// Trainer: own computing time for a record, the mean of its last 20 steps of this phase, ns; 0 before the first one.
    #[serde(default)]
    pub record_ns: u64,
    /// Trainer: sum of training losses over the records of this phase, for progress only. Not finite where training diverges.
    #[serde(with = "crate::metrics::any_float")]
    pub loss_sum: f64,
    /// Trainer: records behind `loss_sum`.
    pub loss_rows: u64,
    /// Pserver: its sparse tables, the shards added up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sparse_tables: Vec<SparseTableSize>,
    /// Pserver: refills of other pservers' copies that it sends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fills: Vec<FillProgress>,
    /// Pserver with primaries of replicated shards: how far their backups are behind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replication_lag: Option<Box<ReplicationLag>>,
    /// Pserver, BSP: lowest number of job steps applied among its shards, and the phase. Trainer: its phase and the
    /// lowest step of its lanes.
    pub phase: PhaseNo,
    /// See `phase`.
    pub step: Step,
    /// The epoch the container is in.
    pub epoch: Epoch,
    /// How long ago the control connection before the present one was lost, ms; none on a container's first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_lost_ms: Option<u64>,
    /// Trainer: the reader that has waited longest for its storage; none while all of them read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_wait: Option<InputWait>,
    /// Trainer: pservers that a data connection is wanted to and cannot be opened, or broke and did not come back yet, or whose data thread does
    /// not answer a probe.
    /// Sorted, unique; at most one entry for each pserver.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreachable: Vec<Member>,
    /// For how long each of `unreachable` has been out of reach, ms, in the same order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreachable_ms: Vec<u64>,
    /// The thread whose last turn is longest ago, if that is two seconds or more. Pserver: of its data threads. Trainer:
    /// its training loop, while it neither waits for others nor computes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow_thread: Option<ThreadTurn>,
    /// Trainer: the step that its algorithm computes, if it has done so for a second or more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub long_step: Option<LongStep>,
    /// Trainer: how far it has written a model; none while it writes none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub export: Option<Box<ExportProgress>>,
    /// Time since the last line of the ApplicationMaster, ms. It answers each heartbeat.
    #[serde(default)]
    pub unheard_ms: u64,
}

/// A thread that has not taken a turn for a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadTurn {
    /// Its name, such as `data-0`.
    pub thread: String,
    /// Time since its last turn, ms.
    pub turn_ms: u64,
}

/// A step that takes long to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LongStep {
    /// The task that it is of.
    pub task: TaskId,
    /// Which hand-out of the task (0 in BSP).
    pub attempt: TaskAttempt,
    /// How long it has been computed, ms.
    pub for_ms: u64,
}

/// A reader that waits for the storage of its input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputWait {
    /// How long, ms, failed tries included.
    pub for_ms: u64,
    /// The file, as a user would type it: `hdfs://nn:8020/data/part-0`.
    pub file: String,
    /// Why the last try failed; empty while the first one has no answer.
    pub error: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Generation;

    fn shard(number: u32, done: impl IntoIterator<Item = u32>) -> ShardState {
        ShardState {
            shard: ShardId(number),
            phase: PhaseNo(1),
            step: Step(0),
            ended: false,
            counted: None,
            tasks: Vec::new(),
            done: done.into_iter().map(TaskId).collect(),
            replica: ReplicaState::ALONE,
        }
    }

    /// A registration is a line, whatever the phase and the number of shards: 84,000 done tasks on 16 shards were
    /// 64 MiB as a list.
    #[test]
    fn a_pserver_with_many_done_tasks_registers_with_a_short_line() {
        let epoch = Epoch::first(Generation(1));
        let done = |but: u32| (0..1_000_000).step_by(2).filter(move |task| *task != but);
        let shards: Vec<_> = (0..16).map(|n| shard(n, done(2 * n))).collect();
        let held = PserverState::new(epoch, CutId::default(), shards);
        let json = serde_json::to_string(&held).expect("JSON");
        let held: PserverState = serde_json::from_str(&json).expect("what was sent arrives");
        let bytes = json.len();
        assert!(bytes < 4 << 20, "{bytes} bytes");
        assert_eq!(held.shards[3].done, shard(3, (0..16).filter(|n| *n != 3).map(|n| 2 * n)).done);
        let whole = held.done.union(&held.shards[3].done);
        assert_eq!(whole, shard(3, done(6)).done);
    }

    #[test]
    fn shards_of_different_phases_have_no_tasks_in_common() {
        let mut later = shard(1, [0, 1]);
        later.phase = PhaseNo(2);
        let shards = vec![shard(0, [0, 1]), later];
        let held = PserverState::new(Epoch::default(), CutId::default(), shards.clone());
        assert!(held.done.is_empty());
        assert_eq!(held.shards, shards);
    }
}
