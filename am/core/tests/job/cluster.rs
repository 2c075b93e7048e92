//! Events of a cluster: silence, preemption, decommissioning, memory, data locality, scaling.

use std::sync::Arc;

use heddle_am_core::{
    ContainerName, Core, Event, Exit, InputHost, Locality, Probe, Record, StoreCall,
};
use heddle_protocol::control::{
    Command, Operation, Report, ShardCommand, TrainerCommand, TrainerReport,
};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::ids::{Incarnation, Member, Role, Slot};
use heddle_protocol::job_spec::{Bytes, Consistency, DurationMs, Every};
use heddle_protocol::view::{DataLocality, JobState};

use crate::harness::{Job, spec};

/// On a cluster whose ResourceManager must respond every ten seconds.
fn leased(consistency: Consistency) -> Job {
    let mut config = Job::new(spec(consistency), 40, 0).config;
    config.cluster_lease_ms = Some(10_000);
    let mut job = Job::with(config);
    job.start();
    job.on(Event::ClusterHeard);
    job
}

fn stores(job: &Job, from: usize) -> Vec<&'static str> {
    let name = |call: &StoreCall| match call {
        StoreCall::Stage { .. } => "stage",
        StoreCall::Commit { .. } => "commit",
        StoreCall::Discard { .. } => "discard",
        StoreCall::Retain { .. } => "retain",
        StoreCall::OlderBase { .. } => "older",
        StoreCall::ReplaceCopies { .. } => "replace",
        StoreCall::PublishModel { .. } => "publish",
    };
    job.calls[from..].iter().map(|(_, call)| name(call)).collect()
}

fn preempt(job: &mut Job, member: Member, deadline_ms: Option<u64>) {
    let container = job.process(member).container.clone().expect("it has one");
    job.on(Event::Preempting { container, deadline_ms });
}

fn drained(job: &mut Job, member: Member) {
    let process = job.process(member);
    let up = Report::Trainer(TrainerReport::Drained {
        epoch: process.epoch,
        phase: process.phase.expect("it works").no,
        tasks: process.positions(),
    });
    job.report(member, up);
}

/// All pservers take the snapshot of the newest cut and save it.
fn save(job: &mut Job) {
    let cut = job.cut();
    job.snap_all(cut, 50);
    job.save_all(cut);
}

#[test]
fn deadlines_during_silence_of_the_resource_manager_act_later() {
    let mut job = leased(Consistency::Asp);
    job.operate(1, Operation::Checkpoint);
    let from = job.calls.len();
    job.now += 10_001;
    save(&mut job);
    assert!(stores(&job, from).is_empty(), "nothing is committed");
    assert!(job.warned("is saved but not yet committed"), "and users see why");
    assert_eq!(job.core.view().state, JobState::Running);
    job.on(Event::ClusterHeard);
    assert_eq!(stores(&job, from), ["commit", "retain"]);
    assert_eq!(job.checkpoints.len(), 2);
}

#[test]
fn nothing_is_deleted_while_the_resource_manager_is_silent() {
    let mut job = leased(Consistency::Asp);
    job.operate(1, Operation::Checkpoint);
    job.now += 10_001;
    let from = job.calls.len();
    let pserver = job.pserver(0);
    job.kill(pserver);
    assert!(!stores(&job, from).contains(&"discard"), "{:?}", stores(&job, from));
    job.on(Event::ClusterHeard);
    assert!(stores(&job, from).contains(&"discard"));
}

#[test]
fn pserver_loss_is_recovered_without_the_resource_manager() {
    let mut job = leased(Consistency::Asp);
    job.operate(1, Operation::Checkpoint);
    job.now += 10_001;
    save(&mut job);
    let pserver = job.pserver(0);
    job.kill(pserver);
    let view = job.core.view();
    assert_eq!(view.state, JobState::Running, "{}", view.message);
    assert_eq!(job.checkpoints.len(), 1, "and it returned to the one before");
}

#[test]
fn suspended_am_awaits_the_resource_manager_before_it_commands() {
    let mut job = leased(Consistency::Asp);
    job.auto.save = false;
    job.operate(1, Operation::Checkpoint);
    let cut = job.cut();
    job.snap_all(cut, 50);
    let from = job.calls.len();
    // The process is suspended for a quarter of an hour; every deadline is late by that.
    job.now += 900_000;
    job.save_all(cut);
    assert!(stores(&job, from).is_empty());
    job.on(Event::Fenced { reason: "attempt 2 leads".to_owned() });
    assert!(stores(&job, from).is_empty());
    assert_eq!(job.outcome.map(|outcome| outcome.exit_code), Some(ExitCode::Fenced));
}

fn vanish(job: &mut Job, member: Member) {
    let container = job.process(member).container.clone().expect("it has one");
    job.on(Event::NodeUnreachable {
        container,
        cause: "its NodeManager does not answer either".to_owned(),
    });
}

#[test]
fn trainer_without_connection_on_a_silent_node_is_replaced() {
    let mut job = Job::asp(40);
    let trainer = job.trainer(0);
    vanish(&mut job, trainer);
    assert_eq!(job.trainer(0), trainer, "it speaks itself");
    job.disconnect(trainer);
    job.register(trainer);
    vanish(&mut job, trainer);
    assert_eq!(job.trainer(0), trainer, "it has come back");
    job.disconnect(trainer);
    vanish(&mut job, trainer);
    assert!(job.trainer(0).incarnation > trainer.incarnation);
    assert!(job.stopped.contains(&trainer), "its place is given back when its node is");
    let recovery = &job.core.view().recoveries[0];
    assert!(recovery.cause.contains("is gone: its NodeManager"), "{recovery:?}");
}

#[test]
fn pserver_is_not_lost_because_its_node_is_silent() {
    let mut job = Job::asp(40);
    let pserver = job.pserver(0);
    job.disconnect(pserver);
    vanish(&mut job, pserver);
    job.probed(pserver, Probe::Answered);
    assert_eq!(job.pserver(0), pserver);
    vanish(&mut job, pserver);
    job.probed(pserver, Probe::Refused);
    assert!(job.pserver(0).incarnation > pserver.incarnation);
}

#[test]
fn preempted_trainer_is_drained_and_its_slot_requested_again() {
    let mut job = Job::asp(40);
    let trainer = job.trainer(0);
    let held = job.process(trainer).tasks.clone();
    preempt(&mut job, trainer, Some(15_000));
    preempt(&mut job, trainer, Some(14_000));
    let drains = job.told(trainer, 0).into_iter();
    assert_eq!(
        drains.filter(|told| matches!(told, Command::Trainer(TrainerCommand::Drain))).count(),
        1
    );
    drained(&mut job, trainer);
    let next = job.trainer(0);
    assert!(next.incarnation > trainer.incarnation);
    assert!(job.outcome.is_none());
    job.finish_all();
    assert_eq!(job.outcome.as_ref().map(|outcome| outcome.state), Some(JobState::Finished));
    assert!(!held.is_empty());
}

#[test]
fn any_number_of_preemptions_ends_no_job() {
    let mut job = Job::asp(40);
    for _ in 0..50 {
        let trainer = job.trainer(1);
        preempt(&mut job, trainer, None);
        job.exit(trainer, Exit::Preempted);
        job.pass(1_000);
    }
    assert!(job.outcome.is_none());
    assert_eq!(job.trainer(1).incarnation, Incarnation(51), "and each is replaced at once");
}

#[test]
fn preempted_pserver_is_saved_if_there_is_time_and_stays() {
    let mut job = Job::asp(40);
    let pserver = job.pserver(0);
    let from = job.calls.len();
    preempt(&mut job, pserver, Some(15_000));
    assert_eq!(stores(&job, from), ["stage"]);
    save(&mut job);
    assert_eq!(job.pserver(0), pserver, "it need not come to that");
    let from = job.calls.len();
    preempt(&mut job, pserver, Some(10_000));
    assert!(stores(&job, from).is_empty(), "one notice, one cut");
}

#[test]
fn pserver_preempted_at_once_is_not_saved() {
    let mut job = Job::asp(40);
    let from = job.calls.len();
    let pserver = job.pserver(1);
    preempt(&mut job, pserver, Some(0));
    assert!(stores(&job, from).is_empty());
    assert!(job.warned("no time"));
}

/// All containers but pserver-0 and trainer-0 are on another node than those.
fn on_two_nodes(consistency: Consistency) -> Job {
    let mut job = Job::new(spec(consistency), 40, 0);
    job.node = |slot| format!("node-{}", slot.index);
    job.start();
    job
}

#[test]
fn decommissioned_node_loses_trainers_now_pservers_after_a_cut() {
    let mut job = on_two_nodes(Consistency::Asp);
    let (pserver, trainer) = (job.pserver(0), job.trainer(0));
    let (other, elsewhere) = (job.pserver(1), job.trainer(1));
    job.avoided.clear();
    job.on(Event::NodeLeaving { node: "node-0".to_owned() });
    assert!(
        job.told(trainer, 0)
            .iter()
            .any(|told| matches!(told, Command::Trainer(TrainerCommand::Drain)))
    );
    drained(&mut job, trainer);
    assert!(job.trainer(0).incarnation > trainer.incarnation);
    assert_eq!(job.avoided, [["node-0"]], "its slot is not filled there again");
    assert_eq!(job.pserver(0), pserver, "not before its shards are saved");
    save(&mut job);
    assert!(job.pserver(0).incarnation > pserver.incarnation);
    assert!(job.stopped.contains(&pserver));
    assert_eq!((job.pserver(1), job.trainer(1)), (other, elsewhere));
    let view = job.core.view();
    assert_eq!(view.state, JobState::Running);
    let base = view.recoveries.last().and_then(|recovery| recovery.base);
    assert_eq!(base, view.checkpoints.last().map(|last| last.cut), "nothing is computed again");
    job.node = |_| "node-1".to_owned();
    job.finish_all();
    assert_eq!(job.outcome.as_ref().map(|outcome| outcome.state), Some(JobState::Finished));
}

#[test]
fn container_that_starts_on_a_decommissioned_node_moves() {
    let mut job = Job::new(spec(Consistency::Bsp), 4, 0);
    job.node = |slot| format!("node-{}", slot.index);
    job.auto.register = false;
    job.start();
    let first = job.pserver(1);
    job.on(Event::NodeLeaving { node: "node-1".to_owned() });
    assert!(job.stopped.contains(&first));
    assert!(job.pserver(1).incarnation > first.incarnation);
}

#[test]
fn slot_out_of_memory_gets_more_once_then_the_key_is_named() {
    let mut job = Job::bsp();
    let out = || Exit::OutOfMemory { error: "70 MB of 64 MB used".to_owned() };
    let pserver = job.pserver(0);
    job.memory.clear();
    job.exit(pserver, out());
    assert_eq!(job.memory, [(Slot::pserver(0), Bytes::mib(96))]);
    assert!(job.warned("70 MB of 64 MB used"));
    let trainer = job.trainer(0);
    job.kill(trainer);
    assert_eq!(job.memory.len(), 1, "others ask for what the spec says");
    let pserver = job.pserver(0);
    job.exit(pserver, out());
    let lost = |notice: &heddle_protocol::view::JobEvent| {
        matches!(notice, heddle_protocol::view::JobEvent::Lost { slot, cause, .. }
            if *slot == pserver.slot && cause.contains("used more memory"))
    };
    assert_eq!(job.notices.iter().filter(|notice| lost(notice)).count(), 2);
    let outcome = job.outcome.expect("a second time is once too often");
    assert!(
        outcome.message.contains("pservers.memory") && outcome.message.contains("70 MB of 64 MB"),
        "{}",
        outcome.message
    );
}

#[test]
fn crash_loop_ends_with_the_final_output_of_the_program() {
    let mut job = Job::new(spec(Consistency::Bsp), 4, 0);
    job.auto.register = false;
    job.start();
    for _ in 0..4 {
        let trainer = job.trainer(0);
        let container = job.process(trainer).container.clone().expect("it has one");
        job.on(Event::Exited {
            container,
            exit: Exit::Code(127),
            text: "loading\ncannot open libfoo.so\n".to_owned(),
        });
        job.pass_silently(5_000);
    }
    let outcome = job.outcome.expect("it cannot start");
    assert!(
        outcome.message.contains("code 127")
            && outcome.message.contains("loading\ncannot open libfoo.so"),
        "{}",
        outcome.message
    );
}

fn hosts(names: &[(&str, &str)]) -> Vec<InputHost> {
    let host =
        |(name, rack): &(&str, &str)| InputHost { name: (*name).into(), rack: (*rack).into() };
    names.iter().map(host).collect()
}

#[test]
fn tasks_in_the_rack_of_a_trainer_come_before_others() {
    let mut config = Job::new(spec(Consistency::Asp), 40, 0).config;
    config.locality = Arc::new(Locality {
        // The trainers' hosts hold one task each, and other hosts of their racks all others in turn.
        hosts: hosts(&[("node-0", "/a"), ("node-1", "/b"), ("other-a", "/a"), ("other-b", "/b")]),
        train: (0..40).map(|task| vec![if task < 2 { task } else { 2 + task % 2 }]).collect(),
        test: Vec::new(),
    });
    let mut job = Job::with(config);
    job.node = |slot| format!("node-{}", slot.index);
    job.start();
    let mut dispatched = 0;
    for index in [0, 1] {
        let tasks = &job.process(job.trainer(index)).tasks;
        dispatched += tasks.len() as u64;
        assert_eq!(
            tasks.first().map(|grant| grant.task.0),
            Some(index),
            "its own host comes first"
        );
        assert!(
            tasks.len() > 1 && tasks.iter().all(|grant| grant.task.0 % 2 == index),
            "{tasks:?}"
        );
    }
    let counted = DataLocality { node_local: 2, rack_local: dispatched - 2, other: 0 };
    assert_eq!(job.core.view().data_locality, Some(counted));
    job.finish_all();
    assert_eq!(job.outcome.map(|outcome| outcome.state), Some(JobState::Finished));
}

#[test]
fn tasks_and_requests_prefer_hosts_that_store_the_input() {
    let mut config = Job::new(spec(Consistency::Asp), 8, 0).config;
    config.locality = Arc::new(Locality {
        hosts: hosts(&[("node-0", "/r"), ("node-1", "/r")]),
        // node-0 stores odd tasks, node-1 even ones.
        train: (0..8).map(|task| vec![(task + 1) % 2]).collect(),
        test: Vec::new(),
    });
    let mut job = Job::with(config);
    job.node = |slot| format!("node-{}", slot.index);
    job.start();
    let mut dispatched = 0;
    for (index, odd) in [(0, 1), (1, 0)] {
        let tasks = &job.process(job.trainer(index)).tasks;
        dispatched += tasks.len() as u64;
        assert!(!tasks.is_empty());
        assert!(tasks.iter().all(|grant| grant.task.0 % 2 == odd), "{index}: {tasks:?}");
    }
    let all_local = DataLocality { node_local: dispatched, ..DataLocality::default() };
    assert_eq!(job.core.view().data_locality, Some(all_local));
    let preferred = hosts(&[("node-0", "/r"), ("node-1", "/r")]);
    assert_eq!(job.preferred[&Slot::trainer(0)], preferred);
    let reversed: Vec<_> = preferred.into_iter().rev().collect();
    assert_eq!(job.preferred[&Slot::trainer(1)], reversed);
    assert!(job.preferred[&Slot::pserver(0)].is_empty());
    job.finish_all();
    assert_eq!(job.outcome.map(|outcome| outcome.state), Some(JobState::Finished));
}

#[test]
fn job_with_too_few_containers_fails_with_the_clusters_reason() {
    let mut job = Job::new(spec(Consistency::Bsp), 4, 0);
    job.auto.cluster = false;
    job.start();
    job.grant(Slot::pserver(0), Incarnation(1));
    job.on(Event::ClusterSays {
        text: "queue default is full: application_1_0007 holds 64 GB".to_owned(),
    });
    let held = job.pserver(0);
    let limit = job.config.limits.allocation_ms;
    job.pass(limit + 60_000);
    let outcome = job.outcome.clone().expect("it does not wait for ever");
    assert_eq!(outcome.exit_code, ExitCode::Busy);
    for words in [
        "1 of 2 pservers",
        "0 of at least 2 trainers",
        "application_1_0007",
        "yarn.allocation-timeout",
    ] {
        assert!(outcome.message.contains(words), "{}", outcome.message);
    }
    assert!(job.stopped.contains(&held));
    assert!(job.asks.is_empty(), "no ask is left");
}

#[test]
fn operators_number_of_trainers_lasts_as_long_as_the_run() {
    let mut few = spec(Consistency::Asp);
    few.trainers.min = 1;
    let mut job = Job::started(few, 40, 0);
    job.operate(1, Operation::Scale { trainers: Some(1), pservers: None });
    let gone = job.trainer(1);
    drained(&mut job, gone);
    assert!(job.records.iter().any(|record| matches!(record, Record::Scaled { trainers: 1, .. })));
    for (attempt, trainers) in [(2, 1), (1, 2)] {
        let mut next = Job::with(job.config.clone());
        next.records = job.records.clone();
        next.durable = job.durable;
        next.checkpoints = job.checkpoints.clone();
        next.recover(attempt, 2, Vec::new());
        let wanted = next.processes.keys().filter(|member| member.slot.role == Role::Trainer);
        assert_eq!(wanted.count(), trainers, "attempt {attempt}");
    }
}

#[test]
fn trainers_that_register_together_join_in_few_lists() {
    let mut many = spec(Consistency::Asp);
    (many.trainers.min, many.trainers.max) = (2, 200);
    many.checkpoint.every = Every::Time(DurationMs::secs(600));
    let mut job = Job::started(many, 1_000, 0);
    job.pass(5_000);
    let pserver = job.pserver(0);
    let lists = job.told(pserver, 0).into_iter();
    let lists =
        lists.filter(|told| matches!(told, Command::Shards(ShardCommand::Members { .. }))).count();
    assert!(lists <= 12, "{lists} lists for 200 trainers");
    assert_eq!(job.process(pserver).members.len(), 200, "all are in");
    let one = job.trainer(7);
    job.kill(one);
    let back = job.trainer(7);
    assert!(job.process(pserver).members.contains(&back), "one that is replaced joins at once");
}

/// The ApplicationMaster is lost and all containers stay alive.
fn restart(job: &mut Job) {
    let container = |process: &crate::harness::Process| process.container.clone();
    let kept: Vec<ContainerName> = job.processes.values().filter_map(container).collect();
    for process in job.processes.values_mut() {
        process.connection = None;
    }
    job.core = Core::new(job.config.clone());
    job.now += 5_000;
    job.asks.clear();
    job.recover(2, 2, kept);
}

#[test]
fn takeover_never_sends_pservers_an_empty_list_of_trainers() {
    for mut job in [Job::asp(40), Job::bsp()] {
        let everybody: Vec<Member> = job.processes.keys().copied().collect();
        restart(&mut job);
        let from = job.sent.len();
        for member in everybody {
            job.registers(member);
        }
        assert_eq!(job.core.view().state, JobState::Running);
        let mut lists = 0;
        for (_, command) in &job.sent[from..] {
            if let Command::Shards(ShardCommand::Members { trainers }) = command {
                assert_eq!(trainers.len(), 2);
                lists += 1;
            }
        }
        assert!(lists >= 2);
    }
}

#[test]
fn trainer_drained_by_an_earlier_attempt_is_replaced() {
    for mut job in [Job::asp(40), Job::bsp()] {
        let everybody: Vec<Member> = job.processes.keys().copied().collect();
        restart(&mut job);
        for member in everybody {
            job.registers(member);
        }
        let trainer = job.trainer(0);
        drained(&mut job, trainer);
        assert!(job.stopped.contains(&trainer));
        assert!(job.trainer(0).incarnation > trainer.incarnation);
        assert_eq!(job.core.view().state, JobState::Running);
    }
}

#[test]
fn kept_containers_of_a_run_without_state_are_released() {
    let kept = vec![ContainerName("old".to_owned())];
    let mut job = Job::new(spec(Consistency::Bsp), 4, 0);
    job.recover(2, 2, kept.clone());
    assert_eq!(job.released, kept);
    assert_eq!(job.core.view().state, JobState::Running, "and the job runs with its own");

    job.end_phase(9);
    let mut next = job.successor();
    next.recover(3, 3, kept.clone());
    assert_eq!(next.outcome, job.outcome);
    assert_eq!(next.released, kept);
}

#[test]
fn rejected_kept_container_is_released_and_not_awaited() {
    let mut few = spec(Consistency::Asp);
    few.trainers.min = 1;
    let mut job = Job::started(few, 40, 0);
    job.operate(1, Operation::Scale { trainers: Some(1), pservers: None });
    job.auto.exit = false;
    let gone = job.trainer(1);
    // The drain never ended, and the attempt that ordered it is gone.
    let everybody: Vec<Member> = job.processes.keys().copied().collect();
    restart(&mut job);
    for member in everybody {
        job.registers(member);
    }
    assert!(job.refused.contains(&gone));
    assert!(job.stopped.contains(&gone));
    assert_eq!(job.core.view().state, JobState::Running);
}
