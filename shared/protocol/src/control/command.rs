//! Commands: what the ApplicationMaster sends to a container.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::model_save::{ExportOrder, SaveAnswer};
use super::ordered_fault::OrderedFault;
use super::replica::ShardView;
use super::shard::ShardCommand;
use super::tokens::InstallTokens;
use crate::ids::{
    Attempt, CutId, Epoch, HandOut, Lane, Member, PhaseNo, RunId, ShardId, Step, TaskAttempt,
    TaskId,
};
use crate::job_spec::JobSpec;
use crate::manifest::ShardFile;
use crate::plan_file::PlanFile;
use crate::task_set::TaskSet;

/// How trainers share the work of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "mode")]
pub enum Sharing {
    /// Fixed lanes in lock-step (BSP): gradients are buffered, and a step is applied when all lanes are done.
    Lanes {
        /// Number of lanes of the job.
        lanes: u32,
    },
    /// A queue of tasks whose pushes are applied on arrival (ASP).
    Queue,
    /// As [`Sharing::Queue`]; pulls wait until no trainer is too far behind (SSP).
    ClockedQueue {
        /// How far the number of a granted pull may be above the lowest clock.
        staleness: u32,
    },
    /// A queue of tasks that change nothing (evaluation). Pushes are refused.
    ReadOnly,
}

impl Sharing {
    /// Whether trainers change parameters by tasks (ASP, SSP).
    #[must_use]
    pub fn is_queue_of_pushes(self) -> bool {
        match self {
            Self::Queue | Self::ClockedQueue { .. } => true,
            Self::Lanes { .. } | Self::ReadOnly => false,
        }
    }

    /// SSP: how far the number of a granted pull may be above the lowest clock.
    #[must_use]
    pub fn staleness(self) -> Option<u32> {
        match self {
            Self::ClockedQueue { staleness } => Some(staleness),
            Self::Lanes { .. } | Self::Queue | Self::ReadOnly => None,
        }
    }
}

/// A phase as shards and trainers need it. Its kind follows from the spec and the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phase {
    /// Ordinal in the job.
    pub no: PhaseNo,
    /// How trainers share its work.
    pub sharing: Sharing,
}

/// The pserver and the endpoint of a shard.
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
    /// The run that took the cut; the header of each file names it.
    pub run: RunId,
    /// The epoch of the cut; the header of each file names it.
    pub epoch: Epoch,
    /// The checkpoint's directory, as a URL that `heddle-storage` reads.
    pub dir: String,
    /// Files of the shards that this pserver must hold. Empty if the checkpoint is `initial`.
    #[serde(with = "pairs")]
    pub files: BTreeMap<ShardId, ShardFile>,
    /// The cut has the initial values: shards without its snapshot make them again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub initial: bool,
}

/// Where a cut is taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CutAt {
    /// When a barrier of each of these trainers has arrived (ASP). Empty: at once.
    Barriers(Vec<Member>),
    /// Right after this many job steps of the phase were applied (BSP); a phase that ends before is cut at its end.
    Steps(Step),
}

/// One task handed to a trainer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskGrant {
    /// The task.
    pub task: TaskId,
    /// Number of its hand-out; reports carry it.
    pub attempt: TaskAttempt,
    /// First step to compute; shards refuse the parts that they have.
    pub start: Step,
}

/// One hand-out of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TaskHandOut {
    /// The task.
    pub task: TaskId,
    /// Number of its hand-out.
    pub attempt: TaskAttempt,
}

/// One lane handed to a trainer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneGrant {
    /// The lane.
    pub lane: Lane,
    /// Number of its hand-out: shards fence lower numbers after the first query of this one.
    pub hand_out: HandOut,
}

/// The answer to a registration, once per connection.
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
    /// How long to run without a message from an ApplicationMaster.
    pub orphan_ms: u64,
}

/// A line from the ApplicationMaster.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CommandEnvelope {
    /// The sender's attempt. The container ignores an attempt below the highest that it has seen: it is stale.
    pub attempt: Attempt,
    /// The highest [`ReportEnvelope::seq`](super::ReportEnvelope::seq) that this attempt has received;
    /// the container does not repeat reports up to it.
    pub acknowledged: u64,
    /// The command; `None` where the line only confirms reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Command>,
}

impl CommandEnvelope {
    /// The end of a line that [`CommandEnvelope::open`] begins.
    pub const CLOSE: &'static [u8] = b"}\n";

    /// The line up to its command. The caller appends the command as JSON and [`CommandEnvelope::CLOSE`], so that a command
    /// for many containers is encoded once. `None` when the envelope has a command.
    #[must_use]
    pub fn open(&self) -> Option<Vec<u8>> {
        if self.command.is_some() {
            return None;
        }
        let mut line = self.to_json().ok()?.into_bytes();
        line.pop();
        line.extend_from_slice(b",\"command\":");
        Some(line)
    }
}

/// See [`PserverCommand::LoadShards`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoadShards {
    /// The epoch.
    pub epoch: Epoch,
    /// All shards of this pserver.
    pub shards: Vec<ShardId>,
    /// Where their content comes from.
    pub base: Option<Base>,
    /// The phase that the job is in.
    pub phase: Phase,
    /// BSP: job steps of the phase applied in `base`.
    pub step: Step,
    /// Replicas: the view of each shard. The pserver is the primary of the shards whose view names it, and a backup of the
    /// others. Empty without `pservers.replicas`: it is the only holder of all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub views: Vec<ShardView>,
    /// `pservers.recovery = "local"`: the shards that go back, if not all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<LostShards>,
}

/// `pservers.recovery = "local"`: some shards go back to the base of a [`LoadShards`], the others keep their state.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LostShards {
    /// The shards that go back, ascending.
    pub shards: Vec<ShardId>,
    /// The steps at which unfinished tasks of the phase go on, ascending by task; others go on at 0. These shards take nothing
    /// before it.
    pub tasks: Vec<(TaskId, Step)>,
    /// The tasks of the phase that are done.
    pub done: TaskSet,
    /// Steps of training between the base and these positions: they count as applied.
    pub steps: u64,
}

/// See [`PserverCommand::Begin`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct BeginPhase {
    /// The epoch this holds in.
    pub epoch: Epoch,
    /// The new phase.
    pub phase: Phase,
}

/// See [`PserverCommand::Cut`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TakeCut {
    /// Its name.
    pub cut: CutId,
    /// The epoch.
    pub epoch: Epoch,
    /// The phase it falls into.
    pub phase: PhaseNo,
    /// Where.
    pub at: CutAt,
    /// Directory (URL) that exists already; files are created in it without creating parents.
    pub staging: String,
    /// Shards of which this pserver holds a copy that it saves too, beside the shards that it serves: backups
    /// (`checkpoint.copies`), and those promoted after their snapshot was taken.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copies: Vec<ShardId>,
    /// The shards have their initial values. In place of each one's file the pserver writes one without values, to prove that
    /// it can save, and removes it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub initial: bool,
    /// The job ends with this cut: what would be trained between its snapshots and its end would be lost.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub last: bool,
}

/// A command to a container.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "command")]
pub enum Command {
    /// Registered; the first line on every connection.
    Welcome(Box<Welcome>),
    /// The container is superseded or its slot is unknown: stop now, exit code 9.
    Refused {
        /// Why, for the log.
        reason: String,
    },
    /// Stop in order: a pserver after its saves are done, a trainer at once. Exit code 0.
    Stop {
        /// Why, for the log.
        reason: String,
    },
    /// Use these tokens of file systems from the next connection on. Answered by [`Report::TokensInstalled`](super::Report::TokensInstalled).
    Tokens(InstallTokens),
    /// Bring this fault upon yourself: the job is to be shown to survive it (`run.chaos`).
    Fault(OrderedFault),
    /// To a pserver.
    Pserver(PserverCommand),
    /// To the shards of a pserver.
    Shards(ShardCommand),
    /// To a trainer, about its work.
    Trainer(TrainerCommand),
    /// Trainer: write the model of this checkpoint to a new directory below that of the save. Answered by
    /// [`Report::Exported`](super::Report::Exported) or [`Report::ExportFailed`](super::Report::ExportFailed).
    Export(ExportOrder),
    /// Trainer: the answer to [`Report::SaveModel`](super::Report::SaveModel).
    SaveAnswer {
        /// The number of the request.
        request: u64,
        /// Its outcome.
        outcome: SaveAnswer,
    },
}

/// A command to a pserver.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "pserver_command")]
pub enum PserverCommand {
    /// Be in this epoch with exactly these shards, as they were at `base` (`None`: initial values), in this
    /// phase at this step. Drops waiting and buffered requests. A pserver that is in the epoch already only answers
    /// [`PserverReport::ShardsReady`](super::PserverReport::ShardsReady).
    LoadShards(LoadShards),
    /// The phase before has ended; drop its progress and serve this one. Answered by
    /// [`PserverReport::Begun`](super::PserverReport::Begun).
    Begin(BeginPhase),
    /// Take this cut and save it into `staging`. Answered by [`PserverReport::CutArmed`](super::PserverReport::CutArmed) at
    /// once, then per shard.
    Cut(TakeCut),
}

/// A command to a trainer about its work.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "trainer_command")]
pub enum TrainerCommand {
    /// The epoch, the phase and the places of all shards. A trainer in another epoch or phase drops all
    /// requests in flight and all tasks; a new map in the same epoch and phase only moves connections.
    Work {
        /// The epoch.
        epoch: Epoch,
        /// The phase.
        phase: Phase,
        /// Every shard's place, ordered by shard.
        places: Vec<ShardPlace>,
    },
    /// BSP: run exactly these lanes. A lane that is new here, or has a higher hand-out than before, is taken over
    /// by a query to the shards. A lane with the hand-out that it has already continues unchanged.
    Lanes {
        /// The epoch.
        epoch: Epoch,
        /// The phase.
        phase: PhaseNo,
        /// All lanes of this trainer.
        lanes: Vec<LaneGrant>,
        /// Known numbers of steps of the tasks of these lanes, so that a successor skips tasks without reading them.
        #[serde(with = "pairs")]
        task_steps: BTreeMap<TaskId, u64>,
    },
    /// ASP, evaluation: more tasks. A task that it has with the same attempt is ignored.
    Tasks {
        /// The epoch.
        epoch: Epoch,
        /// The phase.
        phase: PhaseNo,
        /// The tasks, in the order to work on them.
        tasks: Vec<TaskGrant>,
    },
    /// Send a barrier down every data connection as soon as no step is half sent; answer
    /// [`TrainerReport::AtBarrier`](super::TrainerReport::AtBarrier).
    Barrier {
        /// The cut.
        cut: CutId,
        /// The epoch.
        epoch: Epoch,
    },
    /// Stop work on these hand-outs, which are over: another trainer has finished the tasks. Answered by
    /// [`TrainerReport::Withdrawn`](super::TrainerReport::Withdrawn), whatever the phase.
    Withdraw {
        /// The epoch.
        epoch: Epoch,
        /// The phase.
        phase: PhaseNo,
        /// The hand-outs.
        tasks: Vec<TaskHandOut>,
    },
    /// Stop taking steps, hand back tasks or lanes ([`TrainerReport::Drained`](super::TrainerReport::Drained)), then exit with
    /// code 0.
    Drain,
}

impl From<PserverCommand> for Arc<Command> {
    fn from(command: PserverCommand) -> Self {
        Self::new(Command::Pserver(command))
    }
}

impl From<ShardCommand> for Arc<Command> {
    fn from(command: ShardCommand) -> Self {
        Self::new(Command::Shards(command))
    }
}

impl From<TrainerCommand> for Arc<Command> {
    fn from(command: TrainerCommand) -> Self {
        Self::new(Command::Trainer(command))
    }
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

    /// Messages survive JSON, which has no types and restricts tags and maps.
    fn through_json<T: Serialize + serde::de::DeserializeOwned>(message: &T) -> T {
        let json = serde_json::to_string(message).expect("messages are JSON");
        serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error}: {json}"))
    }

    #[test]
    fn maps_with_numbers_as_keys_arrive() {
        let lanes = Command::Trainer(TrainerCommand::Lanes {
            epoch: Epoch::first(Generation(1)),
            phase: PhaseNo(2),
            lanes: vec![LaneGrant {
                lane: Lane(3),
                hand_out: HandOut { generation: Generation(1), count: 2 },
            }],
            task_steps: BTreeMap::from([(TaskId(0), 5), (TaskId(7), 9)]),
        });
        let Command::Trainer(TrainerCommand::Lanes { task_steps, .. }) = through_json(&lanes)
        else {
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
            sha256: None,
            copies: Vec::new(),
        };
        let base = Base {
            cut: CutId { generation: Generation(1), number: 2 },
            run: RunId(uuid),
            epoch: Epoch::first(Generation(1)),
            dir: "/ckpt/g1-c2".into(),
            files: BTreeMap::from([(ShardId(1), file)]),
            initial: false,
        };
        let hold = Command::Pserver(PserverCommand::LoadShards(LoadShards {
            epoch: Epoch::first(Generation(1)),
            shards: vec![ShardId(1)],
            base: Some(base.clone()),
            phase: Phase { no: PhaseNo(0), sharing: Sharing::Lanes { lanes: 4 } },
            step: Step(0),
            lost: None,
            views: Vec::new(),
        }));
        let Command::Pserver(PserverCommand::LoadShards(LoadShards {
            base: Some(arrived), ..
        })) = through_json(&hold)
        else {
            panic!("another command")
        };
        assert_eq!(arrived, base);
    }

    #[test]
    fn a_line_put_together_from_its_parts_reads_as_one() {
        let head = CommandEnvelope { attempt: Attempt(3), acknowledged: 70, command: None };
        let command = Command::Refused { reason: "replaced".to_owned() };
        let whole = CommandEnvelope { command: Some(command.clone()), ..head.clone() };
        let mut line = head.open().expect("no command yet");
        line.extend(serde_json::to_vec(&command).expect("JSON"));
        line.extend_from_slice(CommandEnvelope::CLOSE);
        assert_eq!(line, crate::lines::encode_line(&whole).expect("JSON"));
        assert!(whole.open().is_none());
    }
}
