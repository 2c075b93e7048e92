//! Processes that send heartbeats and do not work.

use heddle_am_core::Event;
use heddle_protocol::control::{HeartbeatStats, LongStep, ThreadTurn};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::ids::{Incarnation, Member, TaskAttempt, TaskId};
use heddle_protocol::view::JobEvent as Notice;

use crate::harness::Job;

/// Time passes; all send heartbeats each second, and this one's is changed by the number of seconds so far.
fn beats(job: &mut Job, seconds: u64, from: Member, change: impl Fn(u64, &mut HeartbeatStats)) {
    for second in 1..=seconds {
        job.now += 1_000;
        for member in job.processes.keys().copied().collect::<Vec<_>>() {
            job.beat(member, |beat| {
                if member == from {
                    change(second, beat);
                }
            });
        }
        job.on(Event::Timer);
    }
}

fn causes(job: &Job) -> Vec<String> {
    let cause = |notice: &Notice| match notice {
        Notice::Lost { slot, cause, .. } => Some(format!("{slot} {cause}")),
        _ => None,
    };
    job.notices.iter().filter_map(cause).collect()
}

fn hangs(second: u64, beat: &mut HeartbeatStats) {
    let turn_ms = second * 1_000;
    beat.slow_thread = Some(ThreadTurn { thread: "data-0".to_owned(), turn_ms });
}

#[test]
fn s40_pserver_with_a_thread_that_hangs_is_given_up_at_dead() {
    let mut job = Job::bsp();
    let (pserver, trainers) = (job.pserver(0), job.trainers());
    beats(&mut job, 9, pserver, hangs);
    assert_eq!(job.pserver(0), pserver);
    beats(&mut job, 2, pserver, |second, beat| hangs(9 + second, beat));
    assert!(job.pserver(0).incarnation > pserver.incarnation);
    assert!(job.stopped.contains(&pserver), "its process is killed");
    assert_eq!(job.trainers(), trainers);
    let causes = causes(&job);
    assert!(causes[0].starts_with("pserver-0 hangs: data-0 took no turn for 10 s"), "{causes:?}");
}

#[test]
fn one_late_turn_after_a_standstill_of_the_machine_is_no_hang() {
    let mut job = Job::bsp();
    let pserver = job.pserver(0);
    beats(&mut job, 1, pserver, |_, beat| hangs(60, beat));
    beats(&mut job, 3, pserver, |_, _| {});
    assert_eq!(job.pserver(0), pserver);
}

/// The trainer's algorithm computes one step of this task for `seconds`.
fn computes(job: &mut Job, trainer: Member, task: TaskId, seconds: u64) {
    beats(job, seconds, trainer, |second, beat| {
        let step = LongStep { task, attempt: TaskAttempt(0), for_ms: second * 1_000 };
        beat.long_step = Some(step);
    });
}

#[test]
fn trainer_that_computes_a_step_without_end_is_replaced() {
    let mut job = Job::bsp();
    let trainer = job.trainer(0);
    computes(&mut job, trainer, TaskId(0), 599);
    assert_eq!(job.trainer(0), trainer, "a step may take minutes");
    computes(&mut job, trainer, TaskId(0), 601);
    assert!(job.trainer(0).incarnation > trainer.incarnation);
    let causes = causes(&job);
    assert!(causes[0].starts_with("trainer-0 is stuck: it has computed"), "{causes:?}");
    let told = |notice: &Notice| match notice {
        Notice::Warning { text, .. } => text.starts_with("task 0 failed on trainer-0"),
        _ => false,
    };
    assert!(job.notices.iter().any(told), "its task has an error");
}

#[test]
fn task_that_is_stuck_four_times_ends_the_job() {
    let mut job = Job::bsp();
    for incarnation in 1..=4 {
        let trainer = job.trainer(0);
        assert_eq!(trainer.incarnation, Incarnation(incarnation));
        computes(&mut job, trainer, TaskId(0), 601);
        // A slot whose processes fail again and again is filled after a pause.
        beats(&mut job, 60, trainer, |_, _| {});
    }
    let outcome = job.outcome.clone().expect("the job gets nowhere");
    assert_eq!(outcome.exit_code, ExitCode::JobFailed);
    assert!(outcome.message.contains("task 0 failed 4 times"), "{}", outcome.message);
}

#[test]
fn s38_container_that_receives_nothing_is_given_up() {
    let mut job = Job::bsp();
    let trainer = job.trainer(1);
    beats(&mut job, 12, trainer, |second, beat| beat.unheard_ms = second * 1_000);
    assert!(job.trainer(1).incarnation > trainer.incarnation);
    assert!(causes(&job)[0].contains("trainer-1 has received nothing for 10 s"));
}

#[test]
fn s36_lines_that_a_suspended_master_did_not_send_prove_nothing() {
    let mut job = Job::bsp();
    let everybody: Vec<Member> = job.processes.keys().copied().collect();
    let trainer = job.trainer(1);
    beats(&mut job, 12, trainer, |_, _| {});
    job.now += 15_000;
    job.on(Event::StoodStill { ms: 15_000 });
    // Its heartbeats of that time are read now.
    for second in 1..15 {
        job.beat(trainer, |beat| beat.unheard_ms = second * 1_000);
    }
    beats(&mut job, 3, trainer, |_, _| {});
    assert_eq!(job.processes.keys().copied().collect::<Vec<_>>(), everybody);
}
