//! Faults that an operator orders: only for a job with `run.chaos`, by one session at a time.

use heddle_am_core::OperationId;
use heddle_protocol::control::{
    ChaosOrder, ChaosStep, Command, FaultTarget, Operation, OrderedFault, SESSION_LAPSES_MS,
};
use heddle_protocol::ids::Slot;
use heddle_protocol::job_spec::Consistency;
use uuid::Uuid;

use crate::harness::{Job, spec};

fn job() -> Job {
    let mut chaotic = spec(Consistency::Bsp);
    chaotic.run.chaos = true;
    Job::started(chaotic, 4, 0)
}

/// Sends an order and returns its answer.
fn order(job: &mut Job, id: u64, session: u128, step: ChaosStep) -> Result<String, String> {
    let session = Uuid::from_u128(session);
    job.operate(id, Operation::Chaos(ChaosOrder { session, step }));
    job.answers[&OperationId(id)].clone()
}

fn inject(target: FaultTarget, fault: OrderedFault) -> ChaosStep {
    ChaosStep::Inject { target, fault }
}

const TRAINER: FaultTarget =
    FaultTarget::Slot(Slot { role: heddle_protocol::ids::Role::Trainer, index: 0 });

#[test]
fn a_job_without_the_key_takes_no_fault() {
    let mut job = Job::bsp();
    assert_eq!(job.core.view().chaos, None);
    let refused = order(&mut job, 1, 7, inject(TRAINER, OrderedFault::Kill));
    assert_eq!(refused, Err("run.chaos of the job is false: it takes no faults".to_owned()));
    let trainer = job.trainer(0);
    assert!(!job.told(trainer, 0).iter().any(|it| matches!(it, Command::Fault(_))));
}

#[test]
fn an_ordered_fault_reaches_its_process_alone() {
    let mut job = job();
    order(&mut job, 1, 7, inject(TRAINER, OrderedFault::Hang { ms: 5 })).unwrap();
    for member in job.trainers().into_iter().chain(job.pservers()) {
        let told = job.told(member, 0);
        let faults: Vec<_> = told.iter().filter(|it| matches!(it, Command::Fault(_))).collect();
        assert_eq!(faults.len(), usize::from(member.slot == Slot::trainer(0)), "{member}");
    }
    assert!(job.warned("an operator ordered a fault: hang of 0.005 s of trainer-0"));
    assert_eq!(job.core.view().chaos.unwrap().faults, 1);
    assert!(job.faults.is_empty());
    order(&mut job, 2, 7, inject(FaultTarget::Am, OrderedFault::Kill)).unwrap();
    assert_eq!(job.faults, [OrderedFault::Kill]);
}

#[test]
fn the_last_attempt_of_the_applicationmaster_is_not_killed() {
    let mut chaotic = spec(Consistency::Bsp);
    chaotic.run.chaos = true;
    chaotic.yarn.max_attempts = 1;
    let mut job = Job::started(chaotic, 4, 0);
    let refused = order(&mut job, 1, 7, inject(FaultTarget::Am, OrderedFault::Kill)).unwrap_err();
    assert!(refused.contains("attempt 1 is the last of 1 (yarn.max-attempts)"), "{refused}");
    assert!(job.faults.is_empty());
    order(&mut job, 2, 7, inject(FaultTarget::Am, OrderedFault::Pause { ms: 5 })).unwrap();
}

#[test]
fn faults_that_a_process_cannot_have_are_refused() {
    let mut job = job();
    let slot = FaultTarget::Slot;
    for (id, (target, fault, reason)) in (1..).zip([
        (FaultTarget::Am, OrderedFault::Drop, "takes kill and pause"),
        (FaultTarget::Checkpoint, OrderedFault::Kill, "takes corrupt"),
        (TRAINER, OrderedFault::Corrupt { draw: 0 }, "only a checkpoint"),
        (TRAINER, OrderedFault::SlowDisk { factor: 2, ms: 1 }, "only a pserver"),
        (
            slot(Slot::pserver(0)),
            OrderedFault::Slow { factor: 2, ms: 1 },
            "only a trainer computes",
        ),
        (slot(Slot::trainer(99)), OrderedFault::Kill, "no registered process"),
        (TRAINER, OrderedFault::Slow { factor: 1, ms: 1 }, "out of its bounds"),
    ]) {
        let refused = order(&mut job, id, 7, inject(target, fault)).unwrap_err();
        assert!(refused.contains(reason), "{refused}");
    }
    assert_eq!(job.core.view().chaos.unwrap().session, None, "nothing was ordered");
}

#[test]
fn one_session_at_a_time_gives_orders() {
    let mut job = job();
    order(&mut job, 1, 7, ChaosStep::Hold).unwrap();
    assert_eq!(job.core.view().chaos.unwrap().session, Some(Uuid::from_u128(7)));
    let refused = order(&mut job, 2, 8, inject(TRAINER, OrderedFault::Drop)).unwrap_err();
    assert!(refused.contains("one at a time"), "{refused}");
    order(&mut job, 3, 7, ChaosStep::End).unwrap();
    order(&mut job, 4, 8, ChaosStep::Hold).unwrap();
    // Its command line was killed.
    job.pass(SESSION_LAPSES_MS);
    order(&mut job, 5, 9, ChaosStep::Hold).unwrap();
}
