//! The control plane's messages: what a container tells the ApplicationMaster ([`Report`]) and what it is
//! told ([`CommandEnvelope`]), one JSON object a line on one long-lived HTTP connection per container.
//!
//! Commands state what should be, not what changed, and are safe to repeat: after a reconnect the
//! ApplicationMaster simply sends what holds now. Every report carries the epoch it speaks of (and
//! the sender's last cut where a queue depends on it), so that a stale one can be told apart.
//! Framing, sockets and authentication are in `heddle-agent` and `heddle-am`.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::ids::{
    Attempt, CutId, Epoch, HandOut, Lane, Member, PhaseNo, RunId, ShardId, Step, TaskAttempt,
    TaskId,
};
use crate::manifest::ShardFile;
use crate::metrics::TaskMetrics;
use crate::plan_file::PlanFile;
use crate::spec::JobSpec;
use crate::task_set::TaskSet;

/// Longest line either side accepts: an evaluation's score bins are the longest that occur.
pub const LINE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// How the work of a phase is shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "mode")]
pub enum Sharing {
    /// Fixed lanes in lock-step (BSP): gradients are staged, a step is applied when all lanes are done.
    Lanes {
        /// Number of lanes of the job.
        lanes: u32,
    },
    /// A queue of tasks, parts applied as they come (ASP).
    Queue,
    /// A queue of tasks that change nothing (evaluation). Pushes are refused.
    ReadOnly,
}

/// A phase as shards and trainers need it. Its kind follows from the spec and the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phase {
    /// Ordinal in the job.
    pub no: PhaseNo,
    /// How its work is shared out.
    pub sharing: Sharing,
}

/// Where a shard is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardPlace {
    /// The shard.
    pub shard: ShardId,
    /// The pserver's container that holds it.
    pub holder: Member,
    /// Address of the data thread that owns it.
    pub endpoint: SocketAddr,
}

/// The checkpoint that a pserver returns to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Base {
    /// The cut that was committed.
    pub cut: CutId,
    /// The checkpoint's directory, as a URL that `heddle-storage` reads.
    pub dir: String,
    /// Files of the shards that this pserver is to hold.
    #[serde(with = "pairs")]
    pub files: BTreeMap<ShardId, ShardFile>,
}

/// Where a cut is taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CutAt {
    /// When a barrier has come from each of these (ASP). Empty: at once.
    Barriers(Vec<Member>),
    /// Right after this many job steps of the phase were applied (BSP); a phase that ends before is cut at its end.
    Steps(Step),
}

/// One task handed to a trainer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskGrant {
    /// The task.
    pub task: TaskId,
    /// Which time it is handed out; reports carry it back.
    pub attempt: TaskAttempt,
    /// First step to compute; shards refuse what they have of it.
    pub start: Step,
}

/// One lane handed to a trainer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneGrant {
    /// The lane.
    pub lane: Lane,
    /// Which time it is handed out: shards fence lower numbers once this one has asked them.
    pub hand_out: HandOut,
}

/// What the ApplicationMaster answers to a registration, once per connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Welcome {
    /// The run.
    pub run: RunId,
    /// The job.
    pub spec: JobSpec,
    /// The file with the input plan. Trainers read it once; the plan of a run never changes.
    pub plan: PlanFile,
    /// How often to send a heartbeat.
    pub heartbeat_ms: u64,
    /// How long to live on without hearing from an ApplicationMaster.
    pub orphan_ms: u64,
}

/// A line from the ApplicationMaster.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CommandEnvelope {
    /// The sender's attempt; lower than the highest seen means a zombie, which is not obeyed.
    pub attempt: Attempt,
    /// The highest [`ReportEnvelope::seq`] that this attempt has taken in; reports up to it need not be sent again.
    pub heard: u64,
    /// What it says; none where the line only confirms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Command>,
}

impl CommandEnvelope {
    /// What follows the command in a line made by [`CommandEnvelope::open`].
    pub const CLOSE: &'static [u8] = b"}\n";

    /// The line up to its command: what is put behind it is the command as JSON, then [`CommandEnvelope::CLOSE`]. So a command for
    /// many containers is encoded once. None when this one has a command already.
    #[must_use]
    pub fn open(&self) -> Option<Vec<u8>> {
        if self.command.is_some() {
            return None;
        }
        let mut line = serde_json::to_vec(self).ok()?;
        line.pop();
        line.extend_from_slice(b",\"command\":");
        Some(line)
    }
}

/// A line from a container.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReportEnvelope {
    /// Counted from 1 over the container's life; reports not confirmed by [`CommandEnvelope::heard`] are sent again, in order,
    /// after the registration of a new connection. 0: registrations and heartbeats, which are not repeated.
    pub seq: u64,
    /// What it says.
    pub report: Report,
}

/// What a container is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "command")]
pub enum Command {
    /// Registered; the first line on every connection.
    Welcome(Box<Welcome>),
    /// This container is not wanted (superseded, unknown slot): stop now, exit code 9.
    Refused {
        /// Why, for the log.
        reason: String,
    },
    /// End in order: a pserver after its savers are done, a trainer at once. Exit code 0.
    Stop {
        /// Why, for the log.
        reason: String,
    },

    /// Pserver: be in this epoch with exactly these shards, as they were at `base` (none: initial values), in this
    /// phase at this step. Drops parked and staged requests. One already in the epoch only answers [`Report::ShardsReady`].
    LoadShards {
        /// The epoch.
        epoch: Epoch,
        /// All shards of this pserver.
        shards: Vec<ShardId>,
        /// Where their content comes from.
        base: Option<Base>,
        /// The phase that the job is in.
        phase: Phase,
        /// BSP: job steps of the phase applied in `base`.
        step: Step,
    },
    /// Pserver: the phase before is over; forget its marks and serve this one. Answered by [`Report::Begun`].
    Begin {
        /// The epoch this holds in.
        epoch: Epoch,
        /// The new phase.
        phase: Phase,
    },
    /// Pserver: exactly these trainers may be connected; connections of others are closed unread and
    /// taken out of any open cut's set.
    Members {
        /// All trainers of the job now.
        trainers: Vec<Member>,
    },
    /// Pserver: take this cut and save it into `staging`. Answered by [`Report::CutArmed`] at once, then per shard.
    Cut {
        /// Its name.
        cut: CutId,
        /// The epoch.
        epoch: Epoch,
        /// The phase it falls into.
        phase: PhaseNo,
        /// Where.
        at: CutAt,
        /// Directory (URL) that exists already; files are created in it without creating parents.
        staging: String,
    },
    /// Pserver: the cut is over. Committed: its snapshot may be kept for rollback, older ones go. Else: forget it.
    CutEnd {
        /// The cut.
        cut: CutId,
        /// Whether it became a checkpoint.
        committed: bool,
    },

    /// Trainer: the epoch, the phase and where shards are. Whoever is in another epoch or phase drops all that is
    /// in flight and all tasks; a new map in the same epoch and phase only moves connections.
    Work {
        /// The epoch.
        epoch: Epoch,
        /// The phase.
        phase: Phase,
        /// Every shard's place, ordered by shard.
        places: Vec<ShardPlace>,
    },
    /// Trainer (BSP): run exactly these lanes. A lane that is new here, or has a higher hand-out than before, is taken over
    /// by asking the shards where it stands. One with the hand-out that it has already goes on as it is.
    Lanes {
        /// The epoch.
        epoch: Epoch,
        /// The phase.
        phase: PhaseNo,
        /// All lanes of this trainer.
        lanes: Vec<LaneGrant>,
        /// Steps of tasks of these lanes as far as known; lets the successor skip tasks without reading them.
        #[serde(with = "pairs")]
        task_steps: BTreeMap<TaskId, u64>,
    },
    /// Trainer (ASP, evaluation): these tasks besides those it has. One that it has with the same attempt is ignored.
    Tasks {
        /// The epoch.
        epoch: Epoch,
        /// The phase.
        phase: PhaseNo,
        /// The tasks, in the order to work on them.
        tasks: Vec<TaskGrant>,
    },
    /// Trainer: send a barrier down every data connection as soon as no step is half sent; answer [`Report::AtBarrier`].
    Barrier {
        /// The cut.
        cut: CutId,
        /// The epoch.
        epoch: Epoch,
    },
    /// Trainer: stop taking steps, hand back tasks or lanes ([`Report::Drained`]), then exit with code 0.
    Drain,
    /// Trainer: write the model of this checkpoint to a new directory below `dir`. Answered by [`Report::Exported`] or [`Report::ExportFailed`].
    Export {
        /// The checkpoint's directory (URL).
        checkpoint: String,
        /// The output directory (URL).
        dir: String,
    },
}

/// Where an ASP task stands on a shard or a trainer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskPosition {
    /// The task.
    pub task: TaskId,
    /// Which hand-out of it (0 on shards, which do not know).
    pub attempt: TaskAttempt,
    /// The first step that is not wholly there (trainer: not acknowledged by every shard).
    pub step: Step,
}

/// What a shard says of itself when an ApplicationMaster takes over.
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
    /// ASP: tasks of this phase that are begun here and not done, ascending by task.
    pub tasks: Vec<TaskPosition>,
    /// ASP: tasks of this phase that are marked done here. Within [`PserverState`] without those of [`PserverState::done`].
    pub done: TaskSet,
}

/// What a pserver holds when it registers: nothing on its first connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PserverState {
    /// The epoch that it is in.
    pub epoch: Epoch,
    /// The highest cut that it has heard of.
    pub cut: CutId,
    /// ASP: tasks that all of its shards mark done. Its shards' sets differ by little, so that this keeps the registration
    /// of a pserver with many shards short.
    pub done: TaskSet,
    /// Its shards.
    pub shards: Vec<ShardState>,
}

impl PserverState {
    /// What a pserver says of shards in these states (all tasks that each marks done in [`ShardState::done`]).
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

/// What a trainer is at when it registers again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrainerState {
    /// The epoch that it works in.
    pub epoch: Epoch,
    /// The phase.
    pub phase: PhaseNo,
    /// The highest cut that it has heard of.
    pub cut: CutId,
    /// ASP, evaluation: the tasks it holds.
    pub tasks: Vec<TaskPosition>,
    /// BSP: the lanes it runs.
    pub lanes: Vec<LaneGrant>,
}

/// Figures of a container, sent with each heartbeat. Counters run since the container's start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HeartbeatStats {
    /// Resident memory, bytes.
    pub rss_bytes: u64,
    /// Trainer: records computed, recomputed ones included.
    pub rows: u64,
    /// Trainer: those of `rows` that were computed for evaluations.
    #[serde(default)]
    pub evaluated_rows: u64,
    /// Trainer: steps reached (acknowledged by every shard).
    pub steps: u64,
    /// Trainer: own computing time, without waiting, ms.
    pub compute_ms: u64,
    /// Trainer: sum of training losses over `rows` of this phase, for progress only.
    pub loss_sum: f64,
    /// Trainer: records behind `loss_sum`.
    pub loss_rows: u64,
    /// Pserver: push frames applied or staged.
    pub pushes: u64,
    /// Pserver: frames refused (other epoch, no member, …).
    pub refused: u64,
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
    /// Trainer: pservers that a data connection is wanted to and cannot be opened, or broke and did not come back yet.
    /// Sorted, unique; at most one entry for each pserver.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreachable: Vec<Member>,
}

/// A reader that waits for the storage of its input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputWait {
    /// How long, ms, failed tries included.
    pub for_ms: u64,
    /// The file, as a person would type it: `hdfs://nn:8020/data/part-0`.
    pub file: String,
    /// Why the last try failed; empty while the first one has no answer.
    pub error: String,
}

impl HeartbeatStats {
    /// Trainer: records computed for training and measuring.
    #[must_use]
    pub fn trained_rows(&self) -> u64 {
        self.rows.saturating_sub(self.evaluated_rows)
    }
}

/// What a container reports.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "report")]
pub enum Report {
    /// The first line on every connection.
    Register {
        /// Who.
        member: Member,
        /// Process id.
        pid: u32,
        /// Host name or address of its node.
        host: String,
        /// The cluster's name of its container, where it has one: an ApplicationMaster that did not start it learns
        /// so which one it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        container: Option<String>,
        /// Pserver: one address per data thread.
        endpoints: Vec<SocketAddr>,
        /// Pserver: what it holds already.
        held: Option<PserverState>,
        /// Trainer: what it is at already.
        busy: Option<TrainerState>,
    },
    /// Alive.
    Heartbeat(HeartbeatStats),
    /// Pserver: as told by [`Command::LoadShards`].
    ShardsReady {
        /// The epoch.
        epoch: Epoch,
        /// Shards restored from the snapshot in memory.
        from_memory: u32,
        /// Shards loaded from storage.
        from_storage: u32,
        /// Time that restoring took, ms.
        load_ms: u64,
    },
    /// Pserver: a checkpoint file could not be used.
    LoadFailed {
        /// The epoch asked for.
        epoch: Epoch,
        /// Names the file. [`ErrorClass::Corrupt`](crate::failure::ErrorClass::Corrupt): the file is proven corrupt; any
        /// other class: another try can read it.
        failure: Failure,
    },
    /// Pserver: as told by [`Command::Begin`].
    Begun {
        /// The epoch.
        epoch: Epoch,
        /// The phase.
        phase: PhaseNo,
    },
    /// Pserver, BSP: all lanes have ended on this shard and its last step is applied.
    PhaseEnded {
        /// The epoch.
        epoch: Epoch,
        /// The phase.
        phase: PhaseNo,
        /// The shard.
        shard: ShardId,
        /// Job steps applied in the phase; the same on every shard.
        step: Step,
    },
    /// Pserver: heard of the cut; trainers may be told.
    CutArmed {
        /// The cut.
        cut: CutId,
        /// The epoch.
        epoch: Epoch,
    },
    /// Pserver: this shard's state of the cut is fixed.
    SnapshotTaken {
        /// The cut.
        cut: CutId,
        /// The epoch.
        epoch: Epoch,
        /// The shard.
        shard: ShardId,
        /// BSP: job steps applied.
        step: Step,
    },
    /// Pserver: this shard gave the cut up (waited too long, stands beyond it, heard of a higher one).
    CutAborted {
        /// The cut.
        cut: CutId,
        /// The epoch.
        epoch: Epoch,
        /// The shard.
        shard: ShardId,
        /// BSP, if it stands beyond the step that the cut names: job steps applied.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        step: Option<Step>,
        /// Why.
        reason: String,
    },
    /// Pserver: data and sidecar are durable in the staging directory.
    Saved {
        /// The cut.
        cut: CutId,
        /// The epoch.
        epoch: Epoch,
        /// What was written.
        file: ShardFile,
    },
    /// Pserver: could not be written; nothing of it counts.
    SaveFailed {
        /// The cut.
        cut: CutId,
        /// The epoch.
        epoch: Epoch,
        /// The shard.
        shard: ShardId,
        /// Names the file and the cause.
        failure: Failure,
    },
    /// Trainer: its barrier of the cut has gone down every connection; these are its unfinished tasks with
    /// the first step not acknowledged by every shard. All its later reports carry the cut.
    AtBarrier {
        /// The cut.
        cut: CutId,
        /// The epoch.
        epoch: Epoch,
        /// Its tasks.
        tasks: Vec<TaskPosition>,
    },
    /// Trainer (ASP): steps of its tasks that every shard has acknowledged, sent now and then.
    Progress {
        /// The epoch.
        epoch: Epoch,
        /// The phase.
        phase: PhaseNo,
        /// The highest cut whose barrier it has sent.
        cut: CutId,
        /// Its tasks.
        tasks: Vec<TaskPosition>,
    },
    /// Trainer: the last step of the task is acknowledged by every shard (evaluation: is computed).
    TaskFinished {
        /// The epoch.
        epoch: Epoch,
        /// The phase.
        phase: PhaseNo,
        /// The highest cut whose barrier it has sent.
        cut: CutId,
        /// The task.
        task: TaskId,
        /// Which hand-out.
        attempt: TaskAttempt,
        /// Records, losses, scores.
        metrics: Box<TaskMetrics>,
    },
    /// Trainer (BSP): the task was read to its end. A fact about the data, whatever the epoch.
    TaskSteps {
        /// The phase.
        phase: PhaseNo,
        /// The task.
        task: TaskId,
        /// Minibatches in it.
        steps: u64,
        /// Records, losses, bad records.
        metrics: Box<TaskMetrics>,
    },
    /// Trainer (BSP): a shard refused the lane, since a later hand-out has asked it; the lane is not run here any more.
    /// Where the ApplicationMaster knows of no later one (its predecessor gave it to a trainer that is gone), it
    /// hands the lane out again.
    LaneFenced {
        /// The epoch.
        epoch: Epoch,
        /// The phase.
        phase: PhaseNo,
        /// The lane, with the hand-out that was refused.
        lane: LaneGrant,
    },
    /// Trainer: reached its first step since the epoch began.
    Stepping {
        /// The epoch.
        epoch: Epoch,
    },
    /// Trainer: this task cannot be worked on; the reason lies in the data or in its storage.
    TaskFailed {
        /// The epoch.
        epoch: Epoch,
        /// The phase.
        phase: PhaseNo,
        /// The task.
        task: TaskId,
        /// Which hand-out (0 in BSP).
        attempt: TaskAttempt,
        /// Whether another try can help (storage) or not (bad data: the job fails with exit code 7).
        retryable: bool,
        /// `file:line:column: what`.
        error: String,
    },
    /// Trainer: gives up what it holds, after [`Command::Drain`].
    Drained {
        /// The epoch.
        epoch: Epoch,
        /// The phase.
        phase: PhaseNo,
        /// Unfinished tasks with the first step not acknowledged everywhere.
        tasks: Vec<TaskPosition>,
    },
    /// Trainer: a data connection to this container is refused or broke.
    Unreachable {
        /// The container; the ApplicationMaster probes its port.
        member: Member,
    },
    /// Trainer: the model is written.
    Exported {
        /// The checkpoint exported.
        checkpoint: String,
        /// Directory below the output directory that holds the files.
        dir: String,
        /// Names and lengths of the files.
        files: Vec<ExportedFile>,
    },
    /// Trainer: the model could not be written.
    ExportFailed {
        /// The checkpoint.
        checkpoint: String,
        /// What failed, and where.
        failure: Failure,
    },
    /// A failure that ends the job.
    Fatal {
        /// Its class gives the job's exit code.
        failure: Failure,
    },
}

/// A file of an exported model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportedFile {
    /// Name in its directory.
    pub name: String,
    /// Length.
    pub bytes: u64,
    /// MD5, lower-case hexadecimal.
    pub md5: String,
}

/// What an operator may ask of a running job, with the job's secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "operation")]
pub enum Operation {
    /// End in order: a final checkpoint first if asked, then stop everything; the job can be continued.
    Stop {
        /// Whether to take a checkpoint.
        checkpoint: bool,
    },
    /// End at once; nothing more is saved.
    Kill,
    /// Take a checkpoint now.
    Checkpoint,
    /// Change the number of trainers within min and max.
    Scale {
        /// How many.
        trainers: u32,
    },
}

/// Maps as lists of pairs: keys that are numbers do not survive serde's tagged enums as JSON keys.
mod pairs {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<K: Serialize, V: Serialize, S: Serializer>(
        map: &BTreeMap<K, V>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(map)
    }

    pub(super) fn deserialize<'de, K, V, D>(deserializer: D) -> Result<BTreeMap<K, V>, D::Error>
    where
        K: Deserialize<'de> + Ord,
        V: Deserialize<'de>,
        D: Deserializer<'de>,
    {
        Ok(Vec::<(K, V)>::deserialize(deserializer)?.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Generation;
    use crate::manifest::Md5;

    /// Whatever is sent arrives as it was: JSON has no types, and tags and maps have traps.
    fn through_json<T: Serialize + serde::de::DeserializeOwned>(message: &T) -> T {
        let json = serde_json::to_string(message).expect("messages are JSON");
        serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error}: {json}"))
    }

    #[test]
    fn maps_with_numbers_as_keys_arrive() {
        let lanes = Command::Lanes {
            epoch: Epoch::first(Generation(1)),
            phase: PhaseNo(2),
            lanes: vec![LaneGrant {
                lane: Lane(3),
                hand_out: HandOut { generation: Generation(1), count: 2 },
            }],
            task_steps: BTreeMap::from([(TaskId(0), 5), (TaskId(7), 9)]),
        };
        let Command::Lanes { task_steps, .. } = through_json(&lanes) else {
            panic!("another command")
        };
        assert_eq!(task_steps, BTreeMap::from([(TaskId(0), 5), (TaskId(7), 9)]));

        let uuid = uuid::Uuid::from_bytes([3; 16]);
        let file = ShardFile {
            shard: ShardId(1),
            uuid,
            file: ShardFile::name(ShardId(1), uuid),
            md5: Md5([4; 16]),
            bytes: 5,
            at_ms: 6,
        };
        let base = Base {
            cut: CutId { generation: Generation(1), number: 2 },
            dir: "/ckpt/g1-c2".into(),
            files: BTreeMap::from([(ShardId(1), file)]),
        };
        let hold = Command::LoadShards {
            epoch: Epoch::first(Generation(1)),
            shards: vec![ShardId(1)],
            base: Some(base.clone()),
            phase: Phase { no: PhaseNo(0), sharing: Sharing::Lanes { lanes: 4 } },
            step: Step(0),
        };
        let Command::LoadShards { base: Some(arrived), .. } = through_json(&hold) else {
            panic!("another command")
        };
        assert_eq!(arrived, base);
    }

    fn shard(number: u32, done: impl IntoIterator<Item = u32>) -> ShardState {
        ShardState {
            shard: ShardId(number),
            phase: PhaseNo(1),
            step: Step(0),
            ended: false,
            tasks: Vec::new(),
            done: done.into_iter().map(TaskId).collect(),
        }
    }

    /// A registration is a line, whatever the phase and the number of shards: 84,000 done tasks on 16 shards were
    /// 64 MiB as a list.
    #[test]
    fn a_pserver_with_many_done_tasks_registers_with_a_short_line() {
        let epoch = Epoch::first(Generation(1));
        let done = |but: u32| (0..1_000_000).step_by(2).filter(move |task| *task != but);
        let shards: Vec<_> = (0..16).map(|n| shard(n, done(2 * n))).collect();
        let held = through_json(&PserverState::new(epoch, CutId::default(), shards));
        let bytes = serde_json::to_string(&held).expect("JSON").len();
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

    #[test]
    fn a_line_put_together_from_its_parts_reads_as_one() {
        let head = CommandEnvelope { attempt: Attempt(3), heard: 70, command: None };
        let command = Command::Refused { reason: "replaced".to_owned() };
        let whole = CommandEnvelope { command: Some(command.clone()), ..head.clone() };
        let mut line = head.open().expect("no command yet");
        line.extend(serde_json::to_vec(&command).expect("JSON"));
        line.extend_from_slice(CommandEnvelope::CLOSE);
        assert_eq!(line, crate::lines::encode_line(&whole).expect("JSON"));
        assert!(whole.open().is_none());
    }

    #[test]
    fn sums_arrive_to_the_last_bit() {
        for bits in [0x3fb9_9999_9999_999au64, 0x4009_21fb_5444_2d18, 0x3ff0_0000_0000_0001, 1] {
            let beat =
                HeartbeatStats { loss_sum: f64::from_bits(bits), ..HeartbeatStats::default() };
            let Report::Heartbeat(arrived) = through_json(&Report::Heartbeat(beat)) else {
                panic!("another report")
            };
            assert_eq!(arrived.loss_sum.to_bits(), bits);
        }
    }
}
