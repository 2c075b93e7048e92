//! The training loss of a pass: each task counts once, and it outlives rollbacks and the ApplicationMaster.

use heddle_protocol::control::{Operation, Report, TrainerReport};
use heddle_protocol::ids::{Member, TaskId};
use heddle_protocol::job_spec::{AlgorithmKind, Consistency, Every};
use heddle_protocol::metrics::{LossSum, RecordSums, TaskMetrics};
use heddle_protocol::process_figures::ProcessFigure;
use heddle_protocol::view::{JobEvent, TrainingPassView};

use crate::harness::{Job, spec};

const ROWS: u64 = 10;

fn pass(pass: u32, rows: u64, loss: f64) -> TrainingPassView {
    TrainingPassView { pass, rows, loss: Some(loss) }
}

/// The losses that were reported when passes ended.
fn told(job: &Job) -> Vec<TrainingPassView> {
    let of = |event: &JobEvent| match event {
        JobEvent::PassTrained(trained) => Some(trained.clone()),
        _ => None,
    };
    job.notices.iter().filter_map(of).collect()
}

/// ASP: a trainer finishes this task; each of its records has this loss.
fn finish(job: &mut Job, member: Member, task: TaskId, loss: f64) {
    let process = job.process(member).clone();
    let grant = *process.tasks.iter().find(|grant| grant.task == task).expect("it is held");
    let mut up = process.finished(grant);
    if let Report::Trainer(TrainerReport::TaskFinished { metrics, .. }) = &mut up {
        **metrics = TaskMetrics { rows: ROWS, loss_sum: ROWS as f64 * loss, ..Default::default() };
    }
    let held = &mut job.processes.get_mut(&member).expect("it is there").tasks;
    held.retain(|held| held.task != task);
    job.report(member, up);
}

/// ASP: all tasks of the pass are finished; the records of task n have the loss n + 1.
fn finish_all(job: &mut Job) {
    let phase = job.core.view().phase;
    while job.core.view().phase == phase
        && job.outcome.is_none()
        && let Some((member, task)) = job
            .trainers()
            .into_iter()
            .find_map(|member| Some((member, job.process(member).tasks.first()?.task)))
    {
        finish(job, member, task, f64::from(task.0 + 1));
    }
}

/// ASP: a checkpoint is taken where the job is.
fn checkpoint(job: &mut Job) {
    job.operate(1, Operation::Checkpoint);
    let cut = job.cut();
    job.snap_all(cut, 0);
    job.save_all(cut);
}

fn asp(passes: u32) -> Job {
    let mut spec = spec(Consistency::Asp);
    spec.data.passes = passes;
    spec.checkpoint.every = Every::Passes(100);
    Job::started(spec, 4, 0)
}

/// The ApplicationMaster's memory and each checkpoint's manifest have an end.
#[test]
fn newest_passes_of_a_long_job_are_kept() {
    let mut job = asp(1_100);
    for _ in 0..1_100 {
        finish_all(&mut job);
    }
    let passes = job.core.view().passes;
    let ends = [passes.first(), passes.last()].map(|trained| trained.map(|trained| trained.pass));
    assert_eq!((passes.len(), ends), (1_000, [Some(100), Some(1_099)]));
    let last = job.checkpoints.last().expect("the final one");
    assert_eq!(last.manifest.progress.training.passes, passes);
}

/// BSP: a task was read to its end.
fn read(job: &mut Job, task: u32, loss: f64) {
    let member = job.trainer(0);
    let phase = job.core.view().phase;
    let metrics = TaskMetrics { rows: ROWS, loss_sum: ROWS as f64 * loss, ..Default::default() };
    let (task, metrics) = (TaskId(task), Box::new(metrics));
    job.report(member, TrainerReport::TaskSteps { phase, task, steps: 5, metrics });
}

#[test]
fn loss_of_a_pass_is_the_mean_over_its_records() {
    let mut job = asp(2);
    finish_all(&mut job);
    assert_eq!(told(&job), [pass(0, 40, 2.5)]);
    assert_eq!(job.core.view().passes, [pass(0, 40, 2.5)]);
    finish_all(&mut job);
    assert_eq!(job.core.view().passes.len(), 2);
    let last = job.checkpoints.last().expect("the final one");
    assert_eq!(last.manifest.progress.training.passes, job.core.view().passes);
}

#[test]
fn bsp_counts_a_task_once_though_it_is_read_again() {
    let mut job = Job::bsp();
    for task in 0..3 {
        read(&mut job, task, 1.0);
    }
    job.kill(job.pserver(0));
    for task in 0..4 {
        read(&mut job, task, 2.0);
    }
    job.end_phase(5);
    assert_eq!(told(&job), [pass(0, 40, 1.25)]);
}

/// The last reports of trainers may come after the phase: what the shards count is complete.
#[test]
fn bsp_has_the_sums_of_the_shards_and_not_those_of_late_reports() {
    let mut job = Job::bsp();
    read(&mut job, 0, 2.0);
    job.end_phase_with(5, Some(RecordSums { rows: 40, loss: LossSum::new(50.0) }));
    assert_eq!(told(&job), [pass(0, 40, 1.25)]);
}

/// A rollback takes the tasks back that were finished after the checkpoint; those before it are not computed again.
#[test]
fn loss_after_a_rollback_has_the_tasks_of_the_checkpoint() {
    let mut job = asp(1);
    let trainer = job.trainer(0);
    let first = job.process(trainer).tasks[0].task;
    finish(&mut job, trainer, first, 9.0);
    checkpoint(&mut job);
    let training = &job.checkpoints.last().expect("as ordered").manifest.progress.training;
    assert_eq!((training.rows, training.loss), (10, 90.0));
    let second = job.process(trainer).tasks[0].task;
    finish(&mut job, trainer, second, 100.0);
    job.kill(job.pserver(0));
    finish_all(&mut job);
    let others: f64 = (0..4).filter(|task| *task != first.0).map(|task| f64::from(task + 1)).sum();
    assert_eq!(told(&job), [pass(0, 40, (9.0 + others) / 4.0)]);
}

#[test]
fn losses_outlive_the_am_unless_they_are_trained_again() {
    let mut job = asp(3);
    finish_all(&mut job);
    finish_all(&mut job);
    // From the journal: no checkpoint has them.
    let mut next = job.successor();
    next.recover(2, 2, Vec::new());
    assert_eq!(next.core.view().passes, [], "all shards return to the first checkpoint");
    checkpoint(&mut job);
    let known = job.core.view().passes;
    assert_eq!(known.len(), 2);
    // From the manifest and from the journal it is the same.
    for records in [job.records.clone(), Vec::new()] {
        let mut next = job.successor();
        next.durable = records.len();
        next.records = records;
        next.recover(2, 2, Vec::new());
        assert_eq!(next.core.view().passes, known);
    }
}

#[test]
fn program_that_computes_no_loss_has_none() {
    let mut spec = spec(Consistency::Asp);
    spec.model.algorithm = AlgorithmKind::Custom;
    let mut job = Job::started(spec, 2, 0);
    for task in 0..2 {
        let holds = |member: &Member| {
            job.process(*member).tasks.iter().any(|grant| grant.task == TaskId(task))
        };
        let member = job.trainers().into_iter().find(holds).expect("it is held");
        finish(&mut job, member, TaskId(task), 0.0);
    }
    assert_eq!(told(&job), [TrainingPassView { pass: 0, rows: 20, loss: None }]);
}

#[test]
fn share_and_time_left_follow_the_records() {
    let mut job = asp(4);
    assert_eq!(job.core.view().phase_done, Some(0.0));
    let trainer = job.trainer(0);
    let task = job.process(trainer).tasks[0].task;
    finish(&mut job, trainer, task, 1.0);
    assert_eq!(job.core.view().phase_done, Some(0.25));
    assert_eq!(job.core.view().left_ms, None, "no trainer has reported a rate");
    for rows in [0, 20] {
        job.now += 1_000;
        job.beat(trainer, |beat| {
            beat.figures.set(ProcessFigure::Rows, rows);
            beat.loss_rows = rows;
        });
    }
    let view = job.core.view();
    assert_eq!(view.phase_done, Some(0.5), "20 of 40 records");
    let left = 140.0 / view.rows_per_second;
    assert_eq!(view.left_ms, Some((left * 1000.0) as u64), "half a pass and three more");
}
