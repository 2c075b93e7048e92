//! Large jobs: what a message carries does not grow with the number of tasks. What events cost is in
//! `benches/containers.rs`.

use heddle_protocol::control::{Command, Report, TrainerCommand, TrainerReport};
use heddle_protocol::ids::{Lane, PhaseNo, TaskId};
use heddle_protocol::job_spec::{BadRecords, Consistency};
use heddle_protocol::metrics::TaskMetrics;
use heddle_protocol::view::JobState;

use crate::harness::{Job, spec};

#[test]
fn welcome_is_small_for_any_input() {
    let job = Job::asp(100_000);
    let welcomes: Vec<&Command> = job
        .sent
        .iter()
        .map(|(_, command)| command)
        .filter(|command| matches!(command, Command::Welcome(_)))
        .collect();
    assert_eq!(welcomes.len(), 4);
    for welcome in welcomes {
        let bytes = serde_json::to_vec(welcome).unwrap().len();
        assert!(bytes < 10_000, "{bytes} bytes");
    }
}

#[test]
fn lanes_carry_the_steps_of_their_own_tasks_only() {
    let mut job = Job::started(spec(Consistency::Bsp), 10, 0);
    let (t0, t1) = (job.trainer(0), job.trainer(1));
    for task in 0..10 {
        let report = Report::Trainer(TrainerReport::TaskSteps {
            phase: PhaseNo(0),
            task: TaskId(task),
            steps: 100 + u64::from(task),
            metrics: Box::new(TaskMetrics::default()),
        });
        job.report(t0, report);
    }
    let from = job.sent.len();
    job.disconnect(t1);
    job.registers(t1);
    let told = job.told(t1, from);
    let steps = told.iter().find_map(|command| match command {
        Command::Trainer(TrainerCommand::Lanes { lanes, task_steps, .. }) => {
            let lanes: Vec<Lane> = lanes.iter().map(|grant| grant.lane).collect();
            Some((lanes, task_steps.clone()))
        }
        _ => None,
    });
    let (lanes, steps) = steps.unwrap();
    assert_eq!(lanes, [Lane(1)]);
    let own: Vec<(TaskId, u64)> =
        (0..5).map(|n| (TaskId(2 * n + 1), u64::from(2 * n + 101))).collect();
    assert_eq!(steps.into_iter().collect::<Vec<_>>(), own);
}

#[test]
fn bad_records_are_summed_over_the_tasks_of_a_phase() {
    let mut spec = spec(Consistency::Bsp);
    spec.data.bad_records = BadRecords::Skip(5);
    let mut job = Job::started(spec, 10, 0);
    let trainer = job.trainer(0);
    for (task, bad) in [(0, 3), (0, 3), (1, 2), (2, 0), (3, 1)] {
        assert!(job.outcome.is_none(), "five are allowed");
        let report = Report::Trainer(TrainerReport::TaskSteps {
            phase: PhaseNo(0),
            task: TaskId(task),
            steps: 1,
            metrics: Box::new(TaskMetrics {
                bad_records: bad,
                bad_examples: vec![format!("file:{task}: wrong"); usize::from(bad > 0)],
                ..TaskMetrics::default()
            }),
        });
        job.report(trainer, report);
    }
    let view = job.core.view();
    assert_eq!(view.bad_records, 6);
    assert_eq!(view.state, JobState::Failed);
    assert!(job.warned("file:0: wrong"));
}
