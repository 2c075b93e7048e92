//! Requests, launches, registrations, and their timeouts.

use heddle_am_core::{
    Action, ContainerName, DamagedCheckpoint, Event, Exit, MonotonicMs, Now, Probe, StartupState,
};
use heddle_protocol::control::{Command, Operation, Report, TrainerCommand, TrainerReport};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::ids::{Attempt, CutId, Generation, Incarnation, Member, Slot};
use heddle_protocol::job_spec::Consistency;
use heddle_protocol::view::{JobState, SlotState};

use crate::harness::{Job, spec};

fn job() -> Job {
    Job::new(spec(Consistency::Bsp), 4, 0)
}

#[test]
fn damaged_checkpoint_is_reported_at_the_start() {
    let mut job = job();
    let cut = CutId { generation: Generation(1), number: 5 };
    let damaged = DamagedCheckpoint {
        cut,
        dir: "/ckpt/damaged/g1-c5-0".to_owned(),
        error: "the file is missing".to_owned(),
    };
    job.on(Event::Startup(Box::new(StartupState {
        attempt: Attempt(1),
        generation: Generation(2),
        journal: Vec::new(),
        base: None,
        damaged: vec![damaged],
        checkpoints: Vec::new(),
        kept: Vec::new(),
        unfinished: Vec::new(),
    })));
    assert!(job.warned("/ckpt/damaged/g1-c5-0"));
}

#[test]
fn without_trainers_the_speed_is_zero_and_not_minus_zero() {
    let mut job = job();
    job.auto.cluster = false;
    job.start();
    let speed = job.core.view().rows_per_second;
    assert_eq!(serde_json::to_string(&speed).unwrap(), "0.0");
}

fn allocated(name: &str, slot: Slot, incarnation: u32) -> Event {
    Event::Allocated {
        container: ContainerName(name.to_owned()),
        slot,
        incarnation: Incarnation(incarnation),
        node: "node".to_owned(),
    }
}

#[test]
fn every_slot_is_requested_once_for_any_number_of_ticks() {
    let mut job = job();
    job.auto.cluster = false;
    job.start();
    job.pass_silently(60_000);
    assert_eq!(job.asks.len(), 4, "a second ask for one of them would have panicked");
}

#[test]
fn containers_beyond_the_request_are_released() {
    let mut job = Job::bsp();
    job.on(allocated("extra", Slot::pserver(0), 1));
    job.on(allocated("unknown", Slot::trainer(77), 1));
    assert_eq!(
        job.released,
        [ContainerName("extra".to_owned()), ContainerName("unknown".to_owned())]
    );
    assert_eq!(job.processes.len(), 4);
}

#[test]
fn container_granted_twice_is_launched_once() {
    let mut job = job();
    job.auto.cluster = false;
    job.start();
    job.on(allocated("c", Slot::pserver(0), 1));
    let known = job.processes.len();
    job.on(allocated("c", Slot::pserver(0), 1));
    assert_eq!(job.processes.len(), known);
    assert!(job.released.is_empty(), "it is in use");
}

#[test]
fn grant_for_a_withdrawn_request_is_released() {
    let mut with_max = spec(Consistency::Bsp);
    with_max.trainers.min = 1;
    let mut job = Job::new(with_max, 4, 0);
    job.auto.cluster = false;
    job.start();
    job.operate(1, Operation::Scale { trainers: Some(1), pservers: None });
    assert!(!job.asks.contains(&(Slot::trainer(1), Incarnation(1))), "the ask is withdrawn");
    job.on(allocated("late", Slot::trainer(1), 1));
    assert_eq!(job.released, [ContainerName("late".to_owned())]);
}

#[test]
fn container_end_reported_twice_is_one_failure() {
    let mut job = Job::bsp();
    let trainer = job.trainer(0);
    let container = job.process(trainer).container.clone().unwrap();
    job.exit(trainer, Exit::Code(1));
    let again = job.trainer(0);
    assert_eq!(again.incarnation, Incarnation(2));
    job.now += 3_600_000 / 2;
    job.on(Event::Exited { container, exit: Exit::Code(1), text: String::new() });
    assert_eq!(job.trainer(0), again, "nothing was replaced a second time");
    job.on(Event::Exited {
        container: ContainerName("never seen".to_owned()),
        exit: Exit::Code(1),
        text: String::new(),
    });
    assert!(job.outcome.is_none());
}

#[test]
fn container_that_ends_before_it_registers_is_replaced_once() {
    let mut job = job();
    job.auto.register = false;
    job.start();
    let first = job.pserver(0);
    job.exit(first, Exit::Code(1));
    assert_eq!(job.pserver(0).incarnation, Incarnation(2));
}

#[test]
fn container_that_registers_after_its_timeout_is_rejected() {
    let mut job = job();
    job.auto.register = false;
    job.auto.exit = false;
    job.start();
    let late = job.trainer(1);
    job.pass_silently(300_000);
    assert!(job.stopped.contains(&late));
    let replacement = job.trainer(1);
    assert!(replacement.incarnation > late.incarnation);
    job.registers(late);
    assert!(job.refused.contains(&late));
    job.registers(replacement);
    assert!(!job.refused.contains(&replacement), "one live holder per slot");
}

#[test]
fn stale_incarnation_is_always_rejected() {
    let mut job = Job::bsp();
    let zombie = job.trainer(0);
    let process = job.process(zombie).clone();
    job.kill(zombie);
    job.processes.insert(zombie, process);
    job.registers(zombie);
    assert_eq!(job.refused, [zombie]);
}

#[test]
fn process_that_was_not_launched_is_rejected() {
    let mut job = Job::bsp();
    for member in [
        Member { slot: Slot::trainer(0), incarnation: Incarnation(99) },
        Member { slot: Slot::trainer(9), incarnation: Incarnation(1) },
    ] {
        job.registers(member);
        assert!(job.refused.contains(&member));
    }
}

#[test]
fn crash_loop_backs_off_and_ends_the_job_with_the_last_error() {
    let mut job = job();
    job.auto.register = false;
    job.start();
    let mut deaths = 0;
    while job.outcome.is_none() {
        deaths += 1;
        assert!(deaths < 10);
        let before = job.now;
        job.exit(job.pserver(0), Exit::Code(77));
        job.pass_silently(5_000);
        assert!(job.now > before);
    }
    let outcome = job.outcome.clone().unwrap();
    assert_eq!(
        (outcome.state, outcome.exit_code, deaths),
        (JobState::Failed, ExitCode::JobFailed, 4)
    );
    assert!(
        outcome.message.contains("pserver-0") && outcome.message.contains("77"),
        "{}",
        outcome.message
    );
}

#[test]
fn failures_spread_over_days_do_not_end_the_job() {
    let mut job = Job::bsp();
    for _ in 0..20 {
        job.exit(job.trainer(0), Exit::Code(1));
        job.pass(60_000);
        // The rest of the day in one jump: the driver did not run.
        job.now += 86_400_000;
        job.on(Event::Timer);
    }
    assert!(job.outcome.is_none());
    assert_eq!(job.trainers().len(), 2);
}

#[test]
fn preemption_does_not_count_as_a_failure() {
    let mut job = Job::bsp();
    for _ in 0..50 {
        job.exit(job.trainer(0), Exit::Preempted);
    }
    assert!(job.outcome.is_none());
    assert_eq!(job.trainer(0).incarnation, Incarnation(51));
}

#[test]
fn too_few_containers_end_the_job_with_their_number() {
    let mut job = job();
    job.auto.cluster = false;
    job.start();
    job.grant(Slot::pserver(0), Incarnation(1));
    job.on(Event::Timer);
    job.pass(1_800_000);
    let outcome = job.outcome.clone().unwrap();
    assert_eq!(outcome.exit_code, ExitCode::Busy);
    assert!(outcome.message.contains("1 of 2 pservers"), "{}", outcome.message);
    assert!(job.asks.is_empty(), "what is outstanding is withdrawn");
    assert!(job.processes.is_empty(), "what came is given back");
}

#[test]
fn training_starts_with_the_minimum_of_trainers_and_others_join() {
    let mut few = spec(Consistency::Bsp);
    few.trainers.min = 1;
    let mut job = Job::new(few, 4, 0);
    job.auto.cluster = false;
    job.start();
    for slot in [Slot::pserver(0), Slot::pserver(1), Slot::trainer(0)] {
        assert!(
            !job.asks.contains(&(Slot::trainer(1), Incarnation(1))),
            "who is not needed is asked for when the others have containers"
        );
        job.grant(slot, Incarnation(1));
        job.on(Event::Timer);
    }
    assert_eq!(job.core.view().state, JobState::Running);
    assert_eq!(job.process(job.trainer(0)).lanes.len(), 2, "it runs all lanes");
    assert!(job.asks.contains(&(Slot::trainer(1), Incarnation(1))));
    job.grant(Slot::trainer(1), Incarnation(1));
    job.on(Event::Timer);
    assert_eq!(job.process(job.trainer(0)).lanes.len(), 1);
    assert_eq!(job.process(job.trainer(1)).lanes.len(), 1);
}

#[test]
fn refused_port_is_a_loss_at_once() {
    let mut job = Job::bsp();
    let pserver = job.pserver(0);
    job.auto.exit = false;
    job.disconnect(pserver);
    assert_eq!(job.probes, [pserver], "its port is tried at once");
    job.probed(pserver, Probe::Refused);
    assert_eq!(job.pserver(0).incarnation, Incarnation(2));
    assert!(job.stopped.contains(&pserver), "the cluster may not have noticed");
}

#[test]
fn broken_connection_alone_loses_no_container() {
    let mut job = Job::bsp();
    let everybody: Vec<Member> = job.processes.keys().copied().collect();
    for member in &everybody {
        job.disconnect(*member);
    }
    for member in job.probes.clone() {
        job.probed(member, Probe::Answered);
    }
    job.pass_silently(8_000);
    for member in &everybody {
        job.registers(*member);
    }
    assert_eq!(job.processes.keys().copied().collect::<Vec<_>>(), everybody);
    assert_eq!(job.core.view().recoveries, []);
    job.end_phase(3);
    assert!(job.outcome.is_some(), "and the job goes on to its end");
}

#[test]
fn silent_container_is_suspected_then_lost() {
    let mut job = Job::bsp();
    let silent = job.trainer(0);
    let connection = job.processes.get_mut(&silent).unwrap().connection.take();
    assert!(connection.is_some());
    job.pass(5_000);
    let slot = job.core.view().slots.into_iter().find(|view| view.slot == silent.slot).unwrap();
    assert_eq!(slot.state, SlotState::Suspect);
    job.pass(4_000);
    assert_eq!(job.trainer(0).incarnation, Incarnation(1), "not before liveness.dead");
    job.pass(3_000);
    assert_eq!(job.trainer(0).incarnation, Incarnation(2));
}

#[test]
fn s36_driver_that_stood_still_for_5_s_suspects_no_container() {
    let mut job = Job::bsp();
    let everybody: Vec<Member> = job.processes.keys().copied().collect();
    job.pass(1_000);
    job.now += 5_000;
    job.on(Event::StoodStill { ms: 5_000 });
    job.on(Event::Timer);
    assert_eq!(job.processes.keys().copied().collect::<Vec<_>>(), everybody);
    let suspects =
        job.core.view().slots.iter().filter(|slot| slot.state == SlotState::Suspect).count();
    assert_eq!(suspects, 0);
}

#[test]
fn driver_that_was_suspended_declares_no_container_lost() {
    let mut job = Job::bsp();
    let everybody: Vec<Member> = job.processes.keys().copied().collect();
    job.now += 15 * 60_000;
    job.on(Event::Timer);
    assert_eq!(job.processes.keys().copied().collect::<Vec<_>>(), everybody);
    assert_eq!(job.core.view().recoveries, []);
}

#[test]
fn report_of_another_process_starts_a_probe_and_no_loss() {
    let mut job = Job::bsp();
    let (pserver, trainer) = (job.pserver(0), job.trainer(0));
    job.report(trainer, Report::Unreachable { member: pserver });
    assert_eq!(job.probes, [pserver]);
    job.probed(pserver, Probe::Answered);
    assert_eq!(job.pserver(0), pserver);
}

#[test]
fn scaling_down_drains_and_scaling_up_requests_again() {
    let mut many = spec(Consistency::Asp);
    many.trainers.min = 1;
    let mut job = Job::started(many, 20, 0);
    let (t0, t1) = (job.trainer(0), job.trainer(1));
    let held = job.process(t1).tasks.clone();
    assert!(!held.is_empty());
    job.operate(1, Operation::Scale { trainers: Some(1), pservers: None });
    assert!(
        matches!(job.sent.last(), Some((to, Command::Trainer(TrainerCommand::Drain))) if *to == t1)
    );
    let (epoch, phase) = (job.process(t1).epoch, job.process(t1).phase.unwrap().no);
    let tasks = held.iter().map(|grant| crate::harness::position(*grant, 5)).collect();
    job.report(t1, TrainerReport::Drained { epoch, phase, tasks });
    assert!(!job.processes.contains_key(&t1), "it is ordered to stop");
    assert_eq!(job.core.view().recoveries, [], "that was no loss");
    while job.process(t0).tasks.iter().all(|grant| grant.task != held[0].task) {
        let task = job.process(t0).tasks[0].task;
        job.finish(t0, task);
    }
    let handed = job.process(t0).tasks.iter().find(|grant| grant.task == held[0].task).unwrap();
    assert_eq!(handed.start.0, 5, "it goes on where the other stopped");
    job.operate(2, Operation::Scale { trainers: Some(2), pservers: None });
    assert_eq!(job.trainer(1).incarnation, Incarnation(2));
    job.operate(3, Operation::Scale { trainers: Some(3), pservers: None });
    assert!(job.answers[&heddle_am_core::OperationId(3)].is_err(), "max is 2");
}

#[test]
fn same_events_give_the_same_actions() {
    let run = || {
        let mut job = Job::bsp();
        job.kill(job.pserver(1));
        job.pass(10_000);
        job.end_phase(4);
        format!("{:?} {:?} {:?}", job.sent, job.records, job.notices)
    };
    assert_eq!(run(), run());
}

#[test]
fn nothing_follows_the_end() {
    let mut job = Job::bsp();
    job.end_phase(3);
    assert!(job.outcome.is_some());
    let now = Now { mono: MonotonicMs(job.now + 1_000_000), wall_ms: 0 };
    let after: Vec<Action> = job.core.on(Event::Timer, now);
    assert!(after.is_empty());
    assert_eq!(job.core.next_deadline(), None);
}

#[test]
fn cause_of_an_end_is_accepted_after_the_end() {
    let mut job = Job::bsp();
    let trainer = job.trainer(0);
    let connection = job.process(trainer).connection.unwrap();
    job.exit(trainer, Exit::Code(7));
    assert!(job.outcome.is_none(), "one exit is replaced");
    let fatal =
        Report::Fatal { failure: Failure::new(ErrorClass::Input, "x.libsvm:2:1: no label") };
    job.on(Event::Report { connection, report: Box::new(fatal) });
    let outcome = job.outcome.clone().unwrap();
    assert_eq!(outcome.exit_code, ExitCode::Input);
    assert!(outcome.message.contains("x.libsvm:2:1"), "{}", outcome.message);
}

#[test]
fn last_report_of_a_stale_process_is_ignored() {
    let mut job = Job::bsp();
    job.auto.exit = false;
    let pserver = job.pserver(0);
    let connection = job.process(pserver).connection.unwrap();
    job.report(pserver, Report::Unreachable { member: pserver });
    job.probed(pserver, Probe::Refused);
    let fatal = Report::Fatal { failure: Failure::new(ErrorClass::Internal, "superseded") };
    job.on(Event::Report { connection, report: Box::new(fatal) });
    assert!(job.outcome.is_none());
}

#[test]
fn crash_that_the_refused_port_shows_first_counts() {
    let mut job = Job::bsp();
    job.auto.exit = false;
    for crash in 0.. {
        assert!(crash < 5, "a pserver that cannot run ends the job");
        let pserver = job.pserver(0);
        let container = job.process(pserver).container.clone().unwrap();
        job.disconnect(pserver);
        job.probed(pserver, Probe::Refused);
        job.processes.remove(&pserver);
        job.on(Event::Exited { container, exit: Exit::Code(101), text: String::new() });
        if job.core.view().state == JobState::Failed {
            return;
        }
        job.pass(3_000);
    }
}
