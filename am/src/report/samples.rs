//! Views and reports of a small job, for the tests of this module.

use heddle_am_core::Outcome;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::figure::Figure;
use heddle_protocol::ids::{Attempt, CutId, Epoch, Incarnation, PhaseNo, Role, RunId, Slot, Step};
use heddle_protocol::process_figures::ProcessFigure;
use heddle_protocol::table_statistics::TableStatistics;
use heddle_protocol::view::{
    AbortedCheckpointView, ApplicationView, CheckpointView, DamagedCheckpointView, EndedView,
    EvaluationView, FirstFigures, JobState, JobView, Placement, RecoveryKind, RecoveryView,
    SlotState, SlotView, TrainingPassView, WarningCode, WarningView,
};

use super::{JobReport, ReportFacts, RequestedContainers};

pub(crate) fn placement(n: u32) -> Placement {
    Placement {
        container: format!("container_1700000000000_0005_01_{n:06}"),
        node: "n1".into(),
        node_http: "n1:8042".into(),
    }
}

pub(crate) fn lost_pserver() -> EndedView {
    EndedView {
        slot: Slot::pserver(0),
        incarnation: Incarnation(1),
        at_ms: 1_700_000_010_000,
        cause: "was killed by signal 9 (by an operator or by the kernel)".into(),
        placement: Some(placement(2)),
    }
}

fn slot(slot: Slot, incarnation: u32, n: u32) -> SlotView {
    let figures =
        [(ProcessFigure::ResidentBytes, 5 << 20), (ProcessFigure::FramesRefused, u64::from(n))];
    SlotView {
        slot,
        incarnation: Incarnation(incarnation),
        state: SlotState::Running,
        host: "n1".into(),
        pid: 100 + n,
        per_second: 10.0,
        figures: figures.into_iter().take(1 + usize::from(slot.role == Role::Pserver)).collect(),
        total: 1000,
        heartbeat_age_ms: Some(700),
        spare: false,
        placement: Some(placement(n)),
    }
}

fn cut(number: u32) -> CutId {
    serde_json::from_value(serde_json::json!({ "generation": 1, "number": number }))
        .unwrap_or_else(|error| panic!("{error}"))
}

/// A view with one entry of each kind.
pub(crate) fn view() -> JobView {
    let mut view = JobView::starting(
        RunId(uuid::Uuid::from_u128(7)),
        "quickstart",
        Attempt(1),
        1_700_000_000_000,
    );
    view.state = JobState::Finished;
    view.rows = 10_000;
    view.application = Some(ApplicationView {
        id: "application_1700000000000_0005".into(),
        user: "alice".into(),
        queue: "default".into(),
    });
    view.slots = vec![slot(Slot::pserver(0), 2, 4), slot(Slot::trainer(0), 1, 3)];
    add_history(&mut view);
    view.checkpoints_taken = 3;
    view.checkpoints = vec![CheckpointView {
        cut: cut(3),
        phase: PhaseNo(2),
        step: Step(7),
        at_ms: 1_700_000_020_000,
        took_ms: 120,
        bytes: 4096,
        dir: "hdfs://nn/user/alice/ckpt/1.3".into(),
        tables: vec![TableStatistics {
            name: "weights".into(),
            rows: 1000,
            nonzero: 990,
            norm: Some(2.5),
        }],
    }];
    view.passes = [(0, 0.35124), (1, 0.23042)]
        .map(|(pass, loss)| TrainingPassView { pass, rows: 5_000, loss: Some(loss) })
        .to_vec();
    view.evaluations = vec![EvaluationView {
        pass: 0,
        rows: 100,
        figures: [
            (Figure::LogLoss, 0.21184),
            (Figure::Auc, 0.97291),
            (Figure::AucError, 0.00001),
            (Figure::Accuracy, 0.925),
        ]
        .into_iter()
        .collect(),
    }];
    view.recoveries = vec![rollback()];
    view.recoveries_total = 1;
    view
}

fn rollback() -> RecoveryView {
    RecoveryView {
        cause: "pserver-0 was killed by signal 9".into(),
        slot: Some(Slot::pserver(0)),
        kind: RecoveryKind::Rollback,
        at_ms: 1_700_000_010_000,
        epoch_before: Epoch::default(),
        epoch_after: Epoch::default(),
        base: Some(cut(1)),
        phase: PhaseNo(1),
        step: Step(3),
        base_step: Some(Step(1)),
        steps_again: Some(2),
        updates_lost: None,
        checkpoint_ms: Some(1200),
        save_ms: Some(40),
        notice_ms: Some(9),
        restart_ms: Some(700),
        load_ms: Some(40),
        resume_ms: Some(11),
        done: true,
    }
}

fn add_history(view: &mut JobView) {
    view.history.ended.push_back(lost_pserver());
    view.history.ended_total = 1;
    view.history.checkpoints_given_up.push_back(AbortedCheckpointView {
        cut: cut(2),
        at_ms: 1_700_000_011_000,
        reason: "pserver-0 was lost before its shards were saved".into(),
    });
    view.history.checkpoints_given_up_total = 1;
    view.history.checkpoints_damaged.push_back(DamagedCheckpointView {
        cut: cut(1),
        at_ms: 1_700_000_004_000,
        dir: "hdfs://nn/ctr/ckpt/damaged/g1-c1-00".into(),
        error: "hdfs://nn/ctr/ckpt/g1-c1/MANIFEST.json is damaged: the file is missing".into(),
    });
    view.history.checkpoints_damaged_total = 1;
    view.history.warnings.push_back(WarningView {
        at_ms: 1_700_000_012_000,
        text: "the journal is 7 s late and tried again: safe mode".into(),
        code: WarningCode::JournalDelayed,
    });
    view.history.warnings_total = 1;
    view.history.warnings_by_code = [(WarningCode::JournalDelayed, 1)].into();
    view.history.first_figures = Some(FirstFigures { rows: 0, at_ms: 1_700_000_005_000 });
}

/// The report of [`view`]'s job.
pub(crate) fn finished() -> JobReport {
    let outcome = Outcome {
        state: JobState::Finished,
        exit_code: ExitCode::Ok,
        message: String::new(),
        model: Some("hdfs://nn/user/alice/model".into()),
    };
    let facts = ReportFacts {
        ended_ms: 1_700_000_025_000,
        checkpoint_dir: "hdfs://nn/user/alice/ckpt".into(),
        events: Vec::new(),
        requested: vec![RequestedContainers {
            kind: "pserver".into(),
            containers: 1,
            memory_mib: 512,
            vcores: 1,
            ..RequestedContainers::default()
        }],
    };
    JobReport::new(&view(), &outcome, facts)
}

/// The same job, failed with this message.
pub(crate) fn failed(exit_code: ExitCode, message: &str) -> JobReport {
    JobReport {
        state: JobState::Failed,
        exit_code,
        message: message.into(),
        model: None,
        ..finished()
    }
}
