//! Containers that are killed for their memory or by signal 9, and whose refused port is seen before the cluster's report.

use heddle_am_core::{Exit, Probe};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::ids::{Incarnation, Member, Slot};
use heddle_protocol::job_spec::Bytes;
use heddle_protocol::view::JobState;

use crate::harness::Job;

/// A pserver's process ends: its connection closes and its port refuses, before the cluster reports anything.
fn dies(job: &mut Job) -> Member {
    let pserver = job.pserver(0);
    job.disconnect(pserver);
    job.probed(pserver, Probe::Refused);
    pserver
}

/// The cluster's report of it.
fn reported(job: &mut Job, member: Member, exit: Exit) {
    job.exit(member, exit);
}

fn out_of_memory() -> Exit {
    Exit::OutOfMemory { error: "70 MB of 64 MB used".to_owned() }
}

fn by_port() -> Job {
    let mut job = Job::bsp();
    job.auto.exit = false;
    job.memory.clear();
    job
}

#[test]
fn pserver_out_of_memory_gets_more_though_its_port_showed_first() {
    let mut job = by_port();
    job.auto.cluster = false;
    let first = dies(&mut job);
    let small = (Slot::pserver(0), Incarnation(2));
    assert!(job.asks.contains(&small));
    assert!(job.memory.is_empty(), "the cause is not known yet");
    reported(&mut job, first, out_of_memory());
    assert!(!job.asks.contains(&small), "the ask for the same memory is withdrawn");
    assert_eq!(job.memory, [(Slot::pserver(0), Bytes::mib(96))]);
    assert!(job.warned("70 MB of 64 MB used"));
    assert!(job.outcome.is_none());
}

#[test]
fn container_with_too_little_memory_is_replaced_before_it_loads() {
    let mut job = by_port();
    job.auto.register = false;
    let first = dies(&mut job);
    let small = job.pserver(0);
    reported(&mut job, first, out_of_memory());
    assert!(job.stopped.contains(&small));
    assert_eq!(job.pserver(0).incarnation, Incarnation(3));
    assert_eq!(job.memory, [(Slot::pserver(0), Bytes::mib(96))]);
}

#[test]
fn replacement_of_the_old_size_uses_no_retry() {
    let mut job = by_port();
    let first = dies(&mut job);
    let second = job.pserver(0);
    // The report comes when the replacement has registered with the old memory, which is too small for it as well.
    reported(&mut job, first, out_of_memory());
    assert_eq!(job.pserver(0), second);
    assert_eq!(dies(&mut job), second);
    reported(&mut job, second, out_of_memory());
    assert!(job.outcome.is_none(), "more memory was not tried yet");
    assert_eq!(job.memory, [(Slot::pserver(0), Bytes::mib(96))]);
    let third = dies(&mut job);
    reported(&mut job, third, out_of_memory());
    let outcome = job.outcome.clone().or_else(|| {
        job.pass(60_000);
        job.outcome.clone()
    });
    let outcome = outcome.expect("96 MiB are not enough either");
    assert!(outcome.message.contains("pservers.memory"), "{}", outcome.message);
}

#[test]
fn kill_loop_shown_by_refused_ports_backs_off_and_ends_the_job() {
    let mut job = by_port();
    let begun = job.now;
    let mut kills = 0;
    while job.outcome.is_none() && job.core.view().state != JobState::Failed {
        kills += 1;
        assert!(kills <= 8, "rolled back at full speed");
        let pserver = dies(&mut job);
        reported(&mut job, pserver, Exit::Signal(9));
        job.pass(20_000);
    }
    job.pass(60_000);
    let outcome = job.outcome.clone().expect("the job gets nowhere");
    assert_eq!((outcome.exit_code, kills), (ExitCode::JobFailed, 8));
    assert!(
        outcome.message.contains("pserver-0 failed too often")
            && outcome.message.contains("its port refused connections"),
        "{}",
        outcome.message
    );
    assert!(job.now - begun > 8_000);
}

#[test]
fn kill_loop_on_a_silent_node_ends_the_job() {
    let mut job = by_port();
    for _ in 0..8 {
        if job.core.view().state == JobState::Failed {
            break;
        }
        let pserver = dies(&mut job);
        job.processes.remove(&pserver);
        job.pass(20_000);
    }
    job.pass(60_000);
    let outcome = job.outcome.clone().expect("the job gets nowhere");
    assert!(outcome.message.contains("its port refused connections"), "{}", outcome.message);
}

#[test]
fn losses_that_the_cluster_explains_do_not_count_as_failures() {
    for exit in [Exit::NodeLost, Exit::Preempted] {
        let mut job = by_port();
        for loss in 0..30 {
            let pserver = dies(&mut job);
            reported(&mut job, pserver, exit.clone());
            // A little later than the back-off after an unexplained loss.
            job.pass(1_000);
            assert!(job.outcome.is_none(), "{exit:?}, {loss}");
        }
        assert_eq!(job.core.view().state, JobState::Running);
    }
}
