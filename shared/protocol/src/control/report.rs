//! Reports: what a container sends to the ApplicationMaster.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::command::{LaneGrant, TaskHandOut};
use super::model_save::{ExportFailure, ExportedModel, SaveRequest};
use super::shard::ShardReport;
use super::state::{HeartbeatStats, PserverState, ShardState, TaskPosition, TrainerState};
use crate::failure::Failure;
use crate::ids::{CutId, Epoch, Member, PhaseNo, ShardId, TaskAttempt, TaskId};
use crate::manifest::ShardFile;
use crate::metrics::TaskMetrics;
use crate::table_statistics::TableStatistics;

/// A line from a container.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReportEnvelope {
    /// Counted from 1 over the container's life. Reports that
    /// [`CommandEnvelope::acknowledged`](super::CommandEnvelope::acknowledged) does not cover are sent again, in order,
    /// after the registration of a new connection. 0: registrations and heartbeats, which are not repeated.
    pub seq: u64,
    /// The report.
    pub report: Report,
}

/// A report of a container.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "report")]
pub enum Report {
    /// The first line on every connection.
    Register(Box<Registration>),
    /// Alive.
    Heartbeat(HeartbeatStats),
    /// Of a pserver.
    Pserver(PserverReport),
    /// Of a shard of a pserver.
    Shard {
        /// The epoch that the shard is in.
        epoch: Epoch,
        /// The report; its tag is beside the epoch.
        #[serde(flatten, rename = "shard_report")]
        report: ShardReport,
    },
    /// Of a trainer, about its work.
    Trainer(TrainerReport),
    /// Trainer: a data connection to this container is refused or broke.
    Unreachable {
        /// The container; the ApplicationMaster probes its port.
        member: Member,
    },
    /// Trainer: its program asks for a save of the model. Answered by [`Command::SaveAnswer`](super::Command::SaveAnswer).
    SaveModel(SaveRequest),
    /// Trainer: the model is written.
    Exported(ExportedModel),
    /// Trainer: the model could not be written.
    ExportFailed(ExportFailure),
    /// The tokens are in the container's token file, the answer to [`Command::Tokens`](super::Command::Tokens).
    TokensInstalled {
        /// Their number.
        serial: u64,
    },
    /// A failure that ends the job.
    Fatal {
        /// Its class gives the job's exit code.
        failure: Failure,
    },
}

/// A report of a pserver.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "pserver_report")]
pub enum PserverReport {
    /// All shards are loaded, the answer to [`PserverCommand::LoadShards`](super::PserverCommand::LoadShards).
    ShardsReady {
        /// The epoch.
        epoch: Epoch,
        /// Shards restored from the snapshot in memory.
        from_memory: u32,
        /// Shards loaded from storage, or made again with their initial values.
        from_storage: u32,
        /// `pservers.recovery = "local"`: the states in which shards that went back alone were loaded.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        loaded: Vec<ShardState>,
    },
    /// A checkpoint file could not be used.
    LoadFailed {
        /// The epoch asked for.
        epoch: Epoch,
        /// Names the file. [`ErrorClass::Corrupt`](crate::failure::ErrorClass::Corrupt): the file is proven corrupt; any
        /// other class: another try can read it.
        failure: Failure,
    },
    /// Loaded a shard from another copy of its file, since these copies are missing or damaged.
    CopiesPassedOver {
        /// The epoch.
        epoch: Epoch,
        /// The shard.
        shard: ShardId,
        /// For each copy: its path and what is wrong with it.
        passed: Vec<String>,
    },
    /// The phase has begun, the answer to [`PserverCommand::Begin`](super::PserverCommand::Begin).
    Begun {
        /// The epoch.
        epoch: Epoch,
        /// The phase.
        phase: PhaseNo,
    },
    /// Has received the cut, so that trainers may receive it.
    CutArmed {
        /// The cut.
        cut: CutId,
        /// The epoch.
        epoch: Epoch,
    },
    /// Data and sidecar are durable in the staging directory. Of a cut of initial values they were, and are removed.
    Saved {
        /// The cut.
        cut: CutId,
        /// The epoch.
        epoch: Epoch,
        /// What was written.
        file: ShardFile,
        /// Figures of its tables.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tables: Vec<TableStatistics>,
    },
    /// The shard could not be saved; its file does not count.
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
}

/// A report of a trainer about its work.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "trainer_report")]
pub enum TrainerReport {
    /// Its barrier of the cut has gone down every connection; these are its unfinished tasks with
    /// the first step not acknowledged by every shard. All its later reports carry the cut.
    AtBarrier {
        /// The cut.
        cut: CutId,
        /// The epoch.
        epoch: Epoch,
        /// Its tasks.
        tasks: Vec<TaskPosition>,
    },
    /// ASP: steps of its tasks that every shard has acknowledged, sent now and then.
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
    /// The last step of the task is acknowledged by every shard (evaluation: is computed).
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
    /// BSP: the task was read to its end. A fact about the data, whatever the epoch.
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
    /// BSP: a shard refused the lane, since a later hand-out has asked it; the lane is not run here any more.
    /// If the ApplicationMaster has no later one (its predecessor handed it to a trainer that has ended), it hands the
    /// lane out again.
    LaneFenced {
        /// The epoch.
        epoch: Epoch,
        /// The phase.
        phase: PhaseNo,
        /// The lane, with the hand-out that was refused.
        lane: LaneGrant,
    },
    /// Reached its first step since the epoch began.
    Stepping {
        /// The epoch.
        epoch: Epoch,
    },
    /// This task cannot be computed because of its data or its storage.
    TaskFailed {
        /// The epoch.
        epoch: Epoch,
        /// The phase.
        phase: PhaseNo,
        /// The task.
        task: TaskId,
        /// Which hand-out (0 in BSP).
        attempt: TaskAttempt,
        /// Whether another try can help (storage) or not (bad data).
        retryable: bool,
        /// Its class gives the job's exit code; `file:line:column: what`.
        failure: Failure,
    },
    /// Does not work on these hand-outs any more, after [`TrainerCommand::Withdraw`](super::TrainerCommand::Withdraw).
    Withdrawn {
        /// The hand-outs.
        tasks: Vec<TaskHandOut>,
    },
    /// Returns all work, after [`TrainerCommand::Drain`](super::TrainerCommand::Drain).
    Drained {
        /// The epoch.
        epoch: Epoch,
        /// The phase.
        phase: PhaseNo,
        /// Unfinished tasks with the first step not acknowledged everywhere.
        tasks: Vec<TaskPosition>,
    },
}

impl From<PserverReport> for Report {
    fn from(report: PserverReport) -> Self {
        Self::Pserver(report)
    }
}

impl From<TrainerReport> for Report {
    fn from(report: TrainerReport) -> Self {
        Self::Trainer(report)
    }
}

/// What a container reports about itself when it registers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Registration {
    /// The sender.
    pub member: Member,
    /// Process id.
    pub pid: u32,
    /// Host name or address of its node.
    pub host: String,
    /// The cluster's id of its container, where it has one: it identifies the container to an ApplicationMaster that
    /// did not start it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Pserver: one address per data thread.
    pub endpoints: Vec<SocketAddr>,
    /// Pserver: its state.
    pub pserver_state: Option<PserverState>,
    /// Trainer: its state.
    pub trainer_state: Option<TrainerState>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Step;

    #[test]
    fn the_tag_of_a_shards_report_is_beside_its_epoch() {
        let (shard, step) = (ShardId(3), Step(7));
        let ended = ShardReport::PhaseEnded { shard, phase: PhaseNo(2), step, sums: None };
        let report = Report::Shard { epoch: Epoch::default(), report: ended.clone() };
        let json = serde_json::to_string(&report).expect("messages are JSON");
        assert_eq!(
            json,
            r#"{"report":"shard","epoch":{"generation":0,"count":0},"shard_report":"phase-ended","shard":3,"phase":2,"step":7}"#
        );
        let arrived = serde_json::from_str(&json).expect("what was sent arrives");
        let Report::Shard { report: arrived, .. } = arrived else { panic!("another report") };
        assert_eq!(arrived, ended);
    }

    #[test]
    fn sums_arrive_to_the_last_bit() {
        for bits in [0x3fb9_9999_9999_999au64, 0x4009_21fb_5444_2d18, 0x3ff0_0000_0000_0001, 1] {
            let beat =
                HeartbeatStats { loss_sum: f64::from_bits(bits), ..HeartbeatStats::default() };
            let arrived = serde_json::from_str(
                &serde_json::to_string(&Report::Heartbeat(beat)).expect("messages are JSON"),
            )
            .expect("what was sent arrives");
            let Report::Heartbeat(arrived) = arrived else { panic!("another report") };
            assert_eq!(arrived.loss_sum.to_bits(), bits);
        }
    }

    /// A heartbeat that cannot be read ends the connection, and the next one too.
    #[test]
    fn heartbeat_of_a_diverging_trainer_arrives() {
        for loss_sum in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let beat = HeartbeatStats { loss_sum, ..HeartbeatStats::default() };
            let sent = serde_json::to_string(&Report::Heartbeat(beat)).expect("JSON");
            let arrived = serde_json::from_str(&sent).expect("what was sent arrives");
            let Report::Heartbeat(arrived) = arrived else { panic!("another report") };
            assert_eq!(arrived.loss_sum.to_string(), loss_sum.to_string());
        }
    }
}
