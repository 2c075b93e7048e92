//! Trainers that cannot reach a pserver, while both send heartbeats.

use heddle_protocol::ids::{Member, Slot};
use heddle_protocol::job_spec::Consistency;
use heddle_protocol::view::{JobEvent as Notice, JobState};

use crate::harness::{Job, spec};

fn job(trainers: u32) -> Job {
    let mut many = spec(Consistency::Bsp);
    (many.trainers.min, many.trainers.max) = (trainers, trainers);
    many.training.lanes = trainers;
    Job::started(many, 4, 0)
}

/// Time passes; all send heartbeats each second, and these trainers name a pserver that they cannot reach.
fn hold(job: &mut Job, seconds: u64, trainers: &[u32], pserver: Slot) {
    let targets: Vec<(Member, Member)> =
        trainers.iter().map(|index| (job.trainer(*index), job.at(pserver))).collect();
    for _ in 0..seconds {
        job.now += 1_000;
        for member in job.processes.keys().copied().collect::<Vec<_>>() {
            let target = targets.iter().find(|(trainer, _)| *trainer == member);
            job.beat(member, |beat| {
                beat.unreachable = target.map(|(_, pserver)| *pserver).into_iter().collect();
            });
        }
        job.on(heddle_am_core::Event::Timer);
    }
}

fn warnings(job: &Job) -> Vec<String> {
    let text = |notice: &Notice| match notice {
        Notice::Warning { text, .. } => Some(text.clone()),
        _ => None,
    };
    job.notices.iter().filter_map(text).collect()
}

#[test]
fn outage_is_reported_once_with_both_ends_after_seconds() {
    let mut job = job(3);
    hold(&mut job, 3, &[1], Slot::pserver(0));
    assert!(warnings(&job).is_empty(), "connections break and come back");
    assert_eq!(job.core.view().message, "");
    hold(&mut job, 5, &[1], Slot::pserver(0));
    assert_eq!(warnings(&job).len(), 1);
    for words in ["trainer-1 on localhost", "pserver-0 on localhost", "data port", "firewall"] {
        assert!(warnings(&job)[0].contains(words), "{:?}", warnings(&job));
        assert!(words == "firewall" || job.core.view().message.contains(words));
    }
    hold(&mut job, 10, &[], Slot::pserver(0));
    assert_eq!(job.core.view().message, "", "it is over");
    assert_eq!(job.core.view().state, JobState::Running);
    hold(&mut job, 5, &[1], Slot::pserver(0));
    assert_eq!(warnings(&job).len(), 2, "the next one is news");
}

#[test]
fn trainers_that_started_at_different_times_blame_the_pserver() {
    let mut job = job(2);
    let (pserver, trainers) = (job.pserver(0), job.trainers());
    hold(&mut job, 6, &[0], Slot::pserver(0));
    hold(&mut job, 6, &[0, 1], Slot::pserver(0));
    assert!(job.pserver(0).incarnation > pserver.incarnation);
    assert_eq!(job.trainers(), trainers, "they are not at fault");
}

#[test]
fn pserver_that_most_trainers_cannot_reach_is_replaced() {
    let mut job = job(3);
    let (pserver, trainers) = (job.pserver(0), job.trainers());
    hold(&mut job, 9, &[0, 2], Slot::pserver(0));
    assert_eq!(job.pserver(0), pserver);
    hold(&mut job, 3, &[0, 2], Slot::pserver(0));
    assert!(job.pserver(0).incarnation > pserver.incarnation);
    assert_eq!(job.trainers(), trainers, "they are not at fault");
    let view = job.core.view();
    assert_eq!(view.state, JobState::Running);
    assert!(view.recoveries[0].cause.contains("cannot reach the data port"), "{view:?}");
    hold(&mut job, 120, &[], Slot::pserver(0));
    assert_eq!(job.core.view().recoveries.len(), 1);
}

#[test]
fn trainer_that_alone_lacks_a_pserver_moves_to_another_node() {
    let mut job = job(3);
    let (epoch, trainer) = (job.core.view().epoch, job.trainer(1));
    assert_eq!(job.avoided, Vec::<Vec<String>>::new());
    hold(&mut job, 12, &[1], Slot::pserver(0));
    assert!(job.trainer(1).incarnation > trainer.incarnation);
    assert_eq!(job.core.view().epoch, epoch);
    assert_eq!(job.avoided, [["node"]], "its path is broken there");
}

#[test]
fn lone_trainer_is_replaced_first_and_then_its_pserver() {
    let mut job = job(1);
    let (trainer, pserver) = (job.trainer(0), job.pserver(1));
    hold(&mut job, 12, &[0], Slot::pserver(1));
    assert!(job.trainer(0).incarnation > trainer.incarnation);
    assert_eq!(job.pserver(1), pserver);
    let second = job.trainer(0);
    hold(&mut job, 8, &[0], Slot::pserver(1));
    assert_eq!(job.pserver(1), pserver, "it has its time as well");
    hold(&mut job, 6, &[0], Slot::pserver(1));
    assert!(job.pserver(1).incarnation > pserver.incarnation);
    assert_eq!(job.trainer(0), second);
}

#[test]
fn one_decision_at_a_time() {
    let mut job = job(4);
    let everybody: Vec<Member> = job.processes.keys().copied().collect();
    // The switch of two nodes fails: each pserver is missed by two trainers of four.
    let targets = [(0, 0), (1, 0), (2, 1), (3, 1)];
    let members: Vec<(Member, Member)> = targets
        .iter()
        .map(|(trainer, pserver)| (job.trainer(*trainer), job.pserver(*pserver)))
        .collect();
    for _ in 0..20 {
        job.now += 1_000;
        for member in job.processes.keys().copied().collect::<Vec<_>>() {
            let target = members.iter().find(|(trainer, _)| *trainer == member);
            job.beat(member, |beat| {
                beat.unreachable = target.map(|(_, pserver)| *pserver).into_iter().collect();
            });
        }
        job.on(heddle_am_core::Event::Timer);
    }
    let now: Vec<Member> = job.processes.keys().copied().collect();
    let replaced = everybody.iter().filter(|member| !now.contains(member));
    assert_eq!(replaced.count(), 1, "the first one may cure the rest");
}

#[test]
fn lasting_network_partition_ends_the_job() {
    let mut job = job(2);
    for _ in 0..150 {
        if job.core.view().state == JobState::Failed {
            break;
        }
        hold(&mut job, 10, &[0, 1], Slot::pserver(0));
    }
    let outcome = job.outcome.clone().expect("the job gets nowhere");
    assert!(
        outcome.message.contains("cannot reach the data port of pserver-0"),
        "{}",
        outcome.message
    );
}
