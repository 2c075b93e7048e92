//! The allocation timeout counts registered containers, and ends when allocation ends.

use heddle_am_core::{ContainerName, Core, Event};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::ids::{Incarnation, Member, Role, Slot};
use heddle_protocol::job_spec::{Consistency, DurationMs};
use heddle_protocol::view::JobState;

use crate::harness::{Job, spec};

/// Beyond the allocation timeout.
fn wait(job: &mut Job) {
    let limit = job.config.limits.allocation_ms;
    job.pass(limit + 60_000);
}

#[test]
fn export_may_take_longer_than_the_allocation_timeout() {
    let mut spec = spec(Consistency::Bsp);
    // It is slow and makes progress.
    spec.output.save_lease = DurationMs::secs(3_600);
    let mut job = Job::started(spec, 4, 0);
    job.auto.export = false;
    job.end_phase(5);
    // The ApplicationMaster is lost in the export; the next attempt finds the final checkpoint.
    let mut next = job.successor();
    next.auto.export = false;
    next.recover(2, 2, Vec::new());
    assert_eq!(next.core.view().state, JobState::Finishing);
    wait(&mut next);
    assert!(next.outcome.is_none(), "{:?}", next.outcome);
}

#[test]
fn export_without_a_container_ends_after_its_timeout() {
    let mut job = Job::bsp();
    job.auto.export = false;
    job.end_phase(5);
    let mut next = job.successor();
    next.auto.cluster = false;
    next.recover(2, 2, Vec::new());
    wait(&mut next);
    assert_eq!(next.outcome.map(|outcome| outcome.exit_code), Some(ExitCode::Busy));
}

#[test]
fn load_may_take_longer_than_the_allocation_timeout() {
    let mut job = Job::new(spec(Consistency::Bsp), 4, 0);
    job.auto.hold = false;
    job.start();
    wait(&mut job);
    assert!(job.outcome.is_none(), "all containers are there: {:?}", job.outcome);
    job.auto.hold = true;
    for pserver in job.pservers() {
        job.disconnect(pserver);
        job.registers(pserver);
    }
    assert_eq!(job.core.view().state, JobState::Running);
}

#[test]
fn container_lost_before_the_start_is_awaited_from_its_loss() {
    let mut job = Job::new(spec(Consistency::Bsp), 4, 0);
    job.auto.hold = false;
    job.start();
    wait(&mut job);
    job.auto.cluster = false;
    job.kill(job.trainer(0));
    job.pass(60_000);
    assert!(job.outcome.is_none(), "its time has just begun");
    wait(&mut job);
    assert_eq!(job.outcome.map(|outcome| outcome.exit_code), Some(ExitCode::Busy));
}

/// The ApplicationMaster and a pserver were on one node, and no container comes for the pserver.
#[test]
fn pserver_lost_with_the_am_leaves_its_shards_to_the_others() {
    let mut job = Job::bsp();
    let gone = job.pserver(0);
    job.processes.remove(&gone);
    let container = |process: &crate::harness::Process| process.container.clone();
    let kept: Vec<ContainerName> = job.processes.values().filter_map(container).collect();
    for process in job.processes.values_mut() {
        process.connection = None;
    }
    job.core = Core::new(job.config.clone());
    job.asks.clear();
    job.auto.cluster = false;
    job.recover(2, 2, kept);
    for member in job.processes.keys().copied().collect::<Vec<_>>() {
        job.registers(member);
    }
    assert_eq!(job.core.view().state, JobState::Recovering);
    job.pass(31_000);
    assert_eq!(job.core.view().state, JobState::Running);
    assert_eq!(job.process(job.pserver(1)).shards.len(), 4);
    wait(&mut job);
    assert!(job.outcome.is_none(), "{:?}", job.outcome);
}

/// Two pservers in different epochs: a rollback, whatever other containers register.
#[test]
fn trainers_that_register_after_a_failed_takeover_are_accepted() {
    let mut job = Job::bsp();
    job.auto.hold = false;
    job.kill(job.pserver(0));
    let living: Vec<Member> = job.processes.keys().copied().collect();
    let container = |process: &crate::harness::Process| process.container.clone();
    let kept: Vec<ContainerName> = job.processes.values().filter_map(container).collect();
    for process in job.processes.values_mut() {
        process.connection = None;
    }
    job.core = Core::new(job.config.clone());
    job.asks.clear();
    job.auto.hold = true;
    job.auto.cluster = false;
    job.recover(2, 2, kept);
    let (pservers, trainers): (Vec<Member>, Vec<Member>) =
        living.into_iter().partition(|member| member.slot.role == Role::Pserver);
    for member in pservers {
        job.registers(member);
    }
    job.pass(1_000);
    for member in &trainers {
        assert!(!job.stopped.contains(member));
        job.registers(*member);
    }
    assert_eq!(job.refused, []);
    assert_eq!(job.trainers(), trainers, "no container was replaced");
    assert_eq!(job.core.view().state, JobState::Running);
    job.pass(60_000);
    assert_eq!(job.trainers(), trainers);
}

/// A container that never registers holds its slot for a limited time.
#[test]
fn silent_kept_container_is_stopped_after_a_failed_takeover() {
    let mut job = Job::bsp();
    job.auto.hold = false;
    job.kill(job.pserver(0));
    let silent = job.trainer(1);
    let container = |process: &crate::harness::Process| process.container.clone();
    let kept: Vec<ContainerName> = job.processes.values().filter_map(container).collect();
    for process in job.processes.values_mut() {
        process.connection = None;
    }
    job.core = Core::new(job.config.clone());
    job.asks.clear();
    job.auto.hold = true;
    job.recover(2, 2, kept);
    let in_it = job.process(silent).container.clone().expect("it has one");
    for member in job.processes.keys().copied().collect::<Vec<_>>() {
        if member != silent {
            job.registers(member);
        }
    }
    job.pass(15_000);
    assert!(job.released.contains(&in_it), "{:?}", job.released);
    job.on(Event::Timer);
    assert!(job.at(Slot::trainer(1)).incarnation > Incarnation(1));
    assert_eq!(job.core.view().state, JobState::Running);
}

#[test]
fn standstill_of_the_am_is_no_wait_for_containers() {
    let mut job = Job::new(spec(Consistency::Bsp), 4, 0);
    job.auto.cluster = false;
    job.start();
    job.grant(Slot::pserver(0), Incarnation(1));
    job.on(Event::Timer);
    // It was stopped for longer than containers may take; nothing that they did was read meanwhile.
    let ms = job.config.limits.allocation_ms + 1_000;
    job.now += ms;
    job.on(Event::StoodStill { ms });
    assert!(job.outcome.is_none(), "{:?}", job.outcome);
    wait(&mut job);
    assert_eq!(job.outcome.map(|outcome| outcome.exit_code), Some(ExitCode::Busy));
}
