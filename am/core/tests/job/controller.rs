//! The controller sets the numbers of containers of a job with `run.elastic`, an operator pins them.

use heddle_am_core::Record;
use heddle_protocol::control::{Operation, ResizeOrder};
use heddle_protocol::job_spec::{Consistency, Elasticity, JobSpec};
use heddle_protocol::view::{ElasticView, SetBy};

use crate::harness::{Job, spec};

fn elastic() -> JobSpec {
    let mut elastic = spec(Consistency::Asp);
    (elastic.trainers.min, elastic.trainers.max) = (1, 3);
    [elastic.pservers.min, elastic.pservers.max] = [Some(1), Some(3)];
    elastic.pservers.shards = 6;
    elastic.run.elastic = Elasticity::Controller;
    elastic
}

fn started() -> Job {
    Job::started(elastic(), 40, 0)
}

fn answer(job: &mut Job, operation: Operation) -> Result<String, String> {
    let id = job.answers.len() as u64 + 1;
    job.operate(id, operation);
    job.answers.last_key_value().expect("an answer").1.clone()
}

fn resize(job: &mut Job, generation: u64, trainers: u32) -> Result<String, String> {
    answer(job, Operation::Resize(ResizeOrder { generation, trainers, pservers: 2 }))
}

fn scale(job: &mut Job, trainers: u32) -> Result<String, String> {
    answer(job, Operation::Scale { trainers: Some(trainers), pservers: None })
}

fn view(job: &Job) -> ElasticView {
    job.core.view().elastic.expect("an elastic job")
}

/// Trainers wanted, what has set the number, the generation.
fn wanted(job: &Job) -> (u32, SetBy, u64) {
    let ElasticView { trainers, set_by, generation, .. } = view(job);
    (trainers, set_by, generation)
}

#[test]
fn job_starts_with_its_minimum_and_grows_by_order() {
    let mut job = started();
    job.pass(2_000);
    assert_eq!(job.trainers().len(), 1);
    assert_eq!(wanted(&job), (1, SetBy::JobFile, 0));
    assert_eq!(resize(&mut job, 4, 3), Ok("3 trainers, 2 pservers".to_owned()));
    job.pass(2_000);
    assert_eq!(job.trainers().len(), 3);
    assert_eq!(wanted(&job), (3, SetBy::Controller, 4));
    let refused = resize(&mut job, 4, 4);
    assert!(refused.is_err_and(|why| why.contains("1 to 3 trainers")));
    assert_eq!(wanted(&job), (3, SetBy::Controller, 4));
    for _ in 0..70 {
        job.pass(1_000);
    }
    assert_eq!(wanted(&job), (3, SetBy::Controller, 4), "a silent controller changes nothing");
}

#[test]
fn job_without_a_controller_grows_to_its_maximum() {
    let mut job = started();
    for _ in 0..50 {
        job.pass(1_000);
    }
    assert_eq!(job.trainers().len(), 1);
    for _ in 0..15 {
        job.pass(1_000);
    }
    assert_eq!(job.trainers().len(), 3);
    assert_eq!(wanted(&job), (3, SetBy::JobFile, 0));
    assert_eq!(view(&job).pservers, 2, "pservers.count");
    assert!(resize(&mut job, 1, 2).is_ok(), "one that comes later counts");
}

#[test]
fn superseded_controllers_orders_are_refused_also_later() {
    let mut job = started();
    assert!(resize(&mut job, 5, 2).is_ok());
    assert!(resize(&mut job, 5, 3).is_ok());
    let stale = |job: &mut Job| {
        let refused = resize(job, 4, 1);
        assert_eq!(
            refused.as_ref().map_err(String::as_str),
            Err("controller 4 does not lead any more: controller 5 has given orders")
        );
        assert_eq!(wanted(job), (3, SetBy::Controller, 5));
    };
    stale(&mut job);
    job.all_durable();
    let mut next = Job::with(job.config.clone());
    next.records = job.records.clone();
    next.durable = job.durable;
    next.checkpoints = job.checkpoints.clone();
    next.recover(2, 2, Vec::new());
    stale(&mut next);
    assert!(resize(&mut next, 6, 1).is_ok());
    assert_eq!(wanted(&next), (1, SetBy::Controller, 6));
}

#[test]
fn operator_pins_the_size_and_gives_it_back() {
    let mut job = started();
    assert!(resize(&mut job, 1, 3).is_ok());
    assert!(scale(&mut job, 2).is_ok());
    assert_eq!(wanted(&job), (2, SetBy::Operator, 1));
    assert_eq!(
        resize(&mut job, 1, 3),
        Err("pinned by an operator, to 2 trainers and 2 pservers".to_owned())
    );
    assert!(answer(&mut job, Operation::ScaleAuto).is_ok());
    assert_eq!(wanted(&job), (2, SetBy::Controller, 1));
    assert!(resize(&mut job, 1, 3).is_ok());
}

#[test]
fn pinned_job_remembers_which_controller_leads() {
    let mut job = started();
    assert!(resize(&mut job, 4, 3).is_ok());
    assert!(scale(&mut job, 2).is_ok());
    // The leader of generation 4 is suspended with an order that it has planned.
    assert!(resize(&mut job, 5, 2).is_err_and(|why| why.starts_with("pinned")));
    assert_eq!(wanted(&job), (2, SetBy::Operator, 5));
    assert!(answer(&mut job, Operation::ScaleAuto).is_ok());
    let late = resize(&mut job, 4, 3);
    assert!(late.is_err_and(|why| why.starts_with("controller 4 does not lead any more")));
}

#[test]
fn order_is_answered_when_it_is_recorded() {
    let mut job = started();
    job.auto.journal = false;
    let order = ResizeOrder { generation: 5, trainers: 3, pservers: 2 };
    job.operate(1, Operation::Resize(order));
    assert!(job.answers.is_empty(), "a later attempt may lack it");
    job.all_durable();
    assert_eq!(job.answers.len(), 1);
}

#[test]
fn first_order_stands_for_a_job_that_has_the_size_already() {
    let mut job = started();
    let records = job.records.len();
    assert!(resize(&mut job, 1, 1).is_ok());
    let scaled = &job.records[records..];
    assert!(matches!(scaled, [Record::Scaled { generation: 1, .. }]), "{scaled:?}");
    for _ in 0..70 {
        job.pass(1_000);
    }
    assert_eq!(wanted(&job), (1, SetBy::Controller, 1), "a controller has spoken");
}

#[test]
fn job_without_the_key_refuses_a_controller() {
    let mut fixed = elastic();
    fixed.run.elastic = Elasticity::Off;
    let mut job = Job::started(fixed, 40, 0);
    for operation in [
        Operation::ScaleAuto,
        Operation::Resize(ResizeOrder { generation: 1, trainers: 2, pservers: 2 }),
    ] {
        let refused = answer(&mut job, operation);
        assert!(refused.is_err_and(|why| why.starts_with("run.elastic is \"off\"")));
    }
    assert_eq!(job.core.view().elastic, None);
}

#[test]
fn job_that_ends_refuses_the_controller() {
    let mut job = started();
    // Its containers have not ended yet.
    job.auto.exit = false;
    assert!(answer(&mut job, Operation::Stop { checkpoint: false }).is_ok());
    let refused = resize(&mut job, 1, 3);
    assert_eq!(refused, Err("the job is ending".to_owned()));
}
