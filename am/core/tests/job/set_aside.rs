//! Tasks that are set aside: the pass goes on without them, they are listed, and the next pass tries them again.

use heddle_am_core::Exit;
use heddle_protocol::control::{Operation, TrainerReport};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::ids::{Member, TaskId};
use heddle_protocol::job_spec::{Consistency, DurationMs, TaskShare};
use heddle_protocol::manifest::{TaskState, Work};
use heddle_protocol::set_aside::SetAsideTask;

use crate::failover::taken_over;
use crate::harness::{Job, spec};

/// An ASP job of two trainers whose passes may lack a part of the tasks.
fn job(tasks: u32, share: u8, passes: u32) -> Job {
    let mut tolerant = spec(Consistency::Asp);
    tolerant.data.failed_share = TaskShare(share);
    tolerant.data.passes = passes;
    tolerant.checkpoint.last_save = DurationMs(0);
    Job::started(tolerant, tasks, 0)
}

fn holder(job: &Job, task: TaskId) -> Option<Member> {
    let holds = |member: &Member| job.process(*member).tasks.iter().any(|grant| grant.task == task);
    job.trainers().into_iter().find(holds)
}

/// The holder of a task could not compute it.
fn fail(job: &mut Job, task: TaskId, retryable: bool) {
    let member = holder(job, task).expect("a trainer holds it");
    let process = job.processes.get_mut(&member).expect("it is there");
    let (epoch, phase) = (process.epoch, process.phase.expect("it works").no);
    let at = process.tasks.iter().position(|grant| grant.task == task).expect("it is held");
    let attempt = process.tasks.remove(at).attempt;
    let class = if retryable { ErrorClass::Unreachable } else { ErrorClass::Input };
    let failure = Failure::new(class, "connection reset");
    job.report(
        member,
        TrainerReport::TaskFailed { epoch, phase, task, attempt, retryable, failure },
    );
}

/// The task fails until it is set aside, or the job has ended.
fn fail_for_good(job: &mut Job, task: TaskId) {
    for _ in 0..8 {
        if job.outcome.is_none() && holder(job, task).is_some() {
            fail(job, task, true);
        }
    }
}

/// All tasks of the phase that trainers hold are finished.
fn finish_all(job: &mut Job) {
    let phase = job.core.view().phase;
    while job.core.view().phase == phase
        && job.outcome.is_none()
        && let Some((member, grant)) = job
            .trainers()
            .into_iter()
            .find_map(|member| Some((member, *job.process(member).tasks.first()?)))
    {
        let up = job.process(member).finished(grant);
        job.processes.get_mut(&member).expect("it is there").tasks.remove(0);
        job.report(member, up);
    }
}

/// Other tasks are finished until a trainer works on this one.
fn finish_until_first(job: &mut Job, task: TaskId) {
    while let Some(member) = holder(job, task)
        && let Some(first) = job.process(member).tasks.first().copied()
        && first.task != task
    {
        let up = job.process(member).finished(first);
        job.processes.get_mut(&member).expect("it is there").tasks.remove(0);
        job.report(member, up);
    }
}

fn checkpoint(job: &mut Job) {
    job.operate(1, Operation::Checkpoint);
    let cut = job.cut();
    job.snap_all(cut, 0);
    job.save_all(cut);
}

fn listed(job: &Job) -> Vec<SetAsideTask> {
    job.core.view().set_aside
}

#[test]
fn pass_goes_on_without_a_task_and_the_next_tries_it_again() {
    let mut job = job(4, 25, 2);
    fail_for_good(&mut job, TaskId(1));
    assert!(job.outcome.is_none(), "{:?}", job.outcome);
    let [entry] = &listed(&job)[..] else { panic!("{:?}", listed(&job)) };
    assert_eq!((entry.task, entry.error.as_str()), (TaskId(1), "connection reset"));
    assert!(!entry.file.is_empty() && entry.end > entry.start, "{entry}");
    assert!(job.warned("set aside"));
    let phase = job.core.view().phase;
    finish_all(&mut job);
    assert_eq!(job.core.view().phase, phase.next(), "the pass has ended");
    assert!(holder(&job, TaskId(1)).is_some(), "and the next one has the task");
    finish_all(&mut job);
    assert_eq!(listed(&job).len(), 1, "it stays listed");
}

/// The schedule S43, on three nodes: the trainer on one of them fails each task that it gets.
#[test]
fn s43_a_node_that_fails_four_tasks_is_avoided_and_no_task_is() {
    let mut tolerant = spec(Consistency::Asp);
    tolerant.data.failed_share = TaskShare(50);
    (tolerant.trainers.min, tolerant.trainers.max) = (2, 2);
    let mut job = Job::new(tolerant, 64, 0);
    job.node = |slot| format!("node-{}-{}", slot.role, slot.index);
    job.start();
    let bad = job.trainer(0);
    let mut failed = std::collections::BTreeSet::new();
    for _ in 0..12 {
        let process = job.processes.get_mut(&bad).expect("it is there");
        let (epoch, phase) = (process.epoch, process.phase.expect("it works").no);
        if process.tasks.is_empty() {
            break;
        }
        let grant = process.tasks.remove(0);
        failed.insert(grant.task);
        let (task, attempt, retryable) = (grant.task, grant.attempt, true);
        let failure = Failure::new(ErrorClass::Unreachable, "input/output error");
        job.report(
            bad,
            TrainerReport::TaskFailed { epoch, phase, task, attempt, retryable, failure },
        );
        if failed.len() == 4 {
            break;
        }
        // The other trainer computes it.
        let other = job.trainer(1);
        while let Some(grant) = job.process(other).tasks.first().copied() {
            let up = job.process(other).finished(grant);
            job.processes.get_mut(&other).expect("it is there").tasks.remove(0);
            job.report(other, up);
            if grant.task == task {
                break;
            }
        }
    }
    assert_eq!(failed.len(), 4, "{failed:?}");
    assert_eq!(listed(&job), [], "two trainers must fail a task");
    job.exit(bad, Exit::Code(1));
    assert_eq!(job.avoided.last().cloned(), Some(vec!["node-trainer-0".to_owned()]));
}

#[test]
fn more_than_the_share_ends_the_job_and_names_all() {
    let mut job = job(4, 25, 1);
    fail_for_good(&mut job, TaskId(0));
    fail_for_good(&mut job, TaskId(1));
    let outcome = job.outcome.clone().expect("the job has failed");
    assert_eq!(outcome.exit_code, ExitCode::Unreachable);
    for text in ["task 1 failed", "2 of 4 tasks", "data.failed-share = 25%", "task 0 of phase 0"] {
        assert!(outcome.message.contains(text), "{text}: {}", outcome.message);
    }
}

#[test]
fn unusable_records_set_their_task_aside_at_once() {
    let mut job = job(4, 25, 1);
    fail(&mut job, TaskId(0), false);
    assert!(job.outcome.is_none(), "{:?}", job.outcome);
    assert_eq!(listed(&job).len(), 1);
    fail(&mut job, TaskId(1), false);
    assert_eq!(job.outcome.map(|outcome| outcome.exit_code), Some(ExitCode::Input));
}

#[test]
fn rollback_keeps_what_its_checkpoint_lists() {
    let mut job = job(4, 50, 1);
    fail_for_good(&mut job, TaskId(0));
    checkpoint(&mut job);
    let manifest = &job.checkpoints.last().expect("committed").manifest;
    let Work::Queue { tasks } = &manifest.work else { panic!("{:?}", manifest.work) };
    let aside = tasks.iter().find(|queued| queued.task == TaskId(0)).map(|queued| queued.state);
    assert_eq!(aside, Some(TaskState::SetAside));
    assert_eq!(manifest.progress.set_aside.len(), 1);
    fail_for_good(&mut job, TaskId(1));
    assert_eq!(listed(&job).len(), 2);
    let pserver = job.pserver(0);
    job.kill(pserver);
    assert_eq!(listed(&job).len(), 1, "what was set aside after it is tried again");
    assert!(holder(&job, TaskId(1)).is_some());
    assert_eq!(holder(&job, TaskId(0)), None);
    finish_all(&mut job);
    assert!(job.core.view().tasks_done == 3 || job.outcome.is_some());
}

#[test]
fn s29_deaths_at_one_step_set_a_task_aside_within_the_share() {
    for (share, is_set_aside) in [(50, true), (0, false)] {
        let mut job = job(4, share, 1);
        job.node = |slot| format!("node-{slot}");
        while job.outcome.is_none() && listed(&job).is_empty() {
            finish_until_first(&mut job, TaskId(0));
            // Where it is late, two trainers compute it.
            match holder(&job, TaskId(0)) {
                Some(dies) => job.exit(dies, Exit::Code(139)),
                None => job.pass(1_000),
            }
        }
        let text = format!("{share}: {:?} {:?}", listed(&job), job.outcome);
        let is_well = job.outcome.as_ref().is_none_or(|ended| ended.exit_code == ExitCode::Ok);
        assert_eq!(is_well, is_set_aside, "{text}");
        assert_eq!(listed(&job).len(), usize::from(is_set_aside), "{text}");
    }
}

/// A takeover in a later pass: no checkpoint lists the task, and no shard does.
#[test]
fn set_aside_tasks_of_a_pass_outlive_the_am() {
    let mut job = job(4, 25, 2);
    fail_for_good(&mut job, TaskId(1));
    finish_all(&mut job);
    let before = listed(&job);
    assert_eq!(before.len(), 1);
    let next = taken_over(&job);
    assert_eq!(next.core.view().phase, job.core.view().phase);
    assert_eq!(listed(&next), before);
}

/// The pass was not over: its task is tried again, and would be listed twice.
#[test]
fn takeover_within_the_pass_tries_its_tasks_again() {
    let mut job = job(4, 25, 2);
    fail_for_good(&mut job, TaskId(1));
    let next = taken_over(&job);
    assert_eq!(listed(&next), []);
    assert!(holder(&next, TaskId(1)).is_some());
}

#[test]
fn task_that_is_set_aside_during_a_cut_is_not_in_it() {
    let mut job = job(4, 25, 1);
    job.operate(1, Operation::Checkpoint);
    let cut = job.cut();
    fail_for_good(&mut job, TaskId(1));
    job.snap_all(cut, 0);
    job.save_all(cut);
    assert_eq!(listed(&job).len(), 1);
    let manifest = &job.checkpoints.last().expect("committed").manifest;
    assert_eq!(manifest.progress.set_aside, [], "{:?}", manifest.work);
}
