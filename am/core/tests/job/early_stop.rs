//! Early stop is decided from all evaluations, through losses of the ApplicationMaster and outages of its journal.

use heddle_am_core::{Event, RecordId, Stored};
use heddle_protocol::control::{
    BeginPhase, Command, Operation, PserverCommand, Report, TrainerReport,
};
use heddle_protocol::figure::Figure;
use heddle_protocol::ids::PhaseNo;
use heddle_protocol::job_spec::{AlgorithmKind, Consistency, Every, Optimizer};
use heddle_protocol::metrics::{ClusterFigures, TaskMetrics};

use crate::harness::{Job, spec};
use crate::takeover::{held, registers_with, restart};

fn evaluated_job(early_stop: u32) -> Job {
    let mut patient = spec(Consistency::Bsp);
    patient.data.test = patient.data.train.clone();
    patient.data.passes = 6;
    patient.training.early_stop = early_stop;
    patient.checkpoint.every = Every::Passes(1);
    Job::started(patient, 4, 2)
}

/// The current evaluation ends with this loss.
pub fn evaluate(job: &mut Job, loss: f64) {
    let own = TaskMetrics { rows: 10, loss_sum: 10.0 * loss, correct: 5, ..TaskMetrics::default() };
    evaluate_as(job, &own);
}

/// The current evaluation ends with these metrics of each task.
fn evaluate_as(job: &mut Job, own: &TaskMetrics) {
    for member in job.trainers() {
        let process = job.process(member).clone();
        for grant in process.tasks.clone() {
            let mut up = process.finished(grant);
            if let Report::Trainer(TrainerReport::TaskFinished { metrics, .. }) = &mut up {
                **metrics = own.clone();
            }
            let held = &mut job.processes.get_mut(&member).expect("it is there").tasks;
            held.retain(|held| held.task != grant.task);
            job.report(member, up);
        }
    }
}

/// Phases that pservers were ordered to begin since.
pub fn begins(job: &Job, from: usize) -> Vec<PhaseNo> {
    let begun = |command: &Command| match command {
        Command::Pserver(PserverCommand::Begin(BeginPhase { phase, .. })) => Some(phase.no),
        _ => None,
    };
    let mut begun: Vec<PhaseNo> =
        job.sent[from..].iter().filter_map(|(_, command)| begun(command)).collect();
    begun.dedup();
    begun
}

/// HDFS is down while an evaluation ends; were the next phase begun, the ApplicationMaster could die with the score.
#[test]
fn no_phase_follows_an_evaluation_whose_score_is_not_recorded() {
    let mut job = evaluated_job(2);
    job.end_phase(3);
    job.auto.journal = false;
    let from = job.sent.len();
    evaluate(&mut job, 0.5);
    job.pass(60_000);
    assert_eq!(begins(&job, from), [], "the score decides when training ends");
    job.auto.journal = true;
    job.all_durable();
    job.pass(1_000);
    assert_eq!(begins(&job, from), [PhaseNo(2)]);
}

#[test]
fn early_stop_reports_its_reason_and_the_pass_of_the_model() {
    let mut job = evaluated_job(2);
    for loss in [0.5, 0.4, 0.45, 0.41] {
        job.end_phase(3);
        evaluate(&mut job, loss);
    }
    assert!(job.outcome.is_some(), "two evaluations without a lower loss");
    for words in [
        "after pass 4 of 6",
        "2 evaluations in a row (training.early-stop)",
        "0.4000 after pass 2",
        "of pass 4, with 0.4100",
    ] {
        assert!(job.warned(words), "{words}: {:?}", job.notices);
    }
}

/// A checkpoint of the state before the last pass becomes durable after the evaluation that ends training: it is not the
/// final one.
#[test]
fn checkpoint_committed_after_the_last_score_is_not_final() {
    let mut job = evaluated_job(1);
    job.end_phase(3);
    job.auto.store = false;
    job.operate(1, Operation::Checkpoint);
    evaluate(&mut job, 0.5);
    job.answer_store(Stored::Staged("file:///staging".to_owned()));
    job.end_phase(3);
    evaluate(&mut job, 0.6);
    assert!(job.warned("training stops early"), "{:?}", job.notices);
    job.auto.store = true;
    let (commit, _) = job.calls.last().expect("its commit waits").clone();
    job.store(commit);
    job.pass(1_000);
    let phases: Vec<PhaseNo> =
        job.checkpoints.iter().map(|checkpoint| checkpoint.manifest.phase).collect();
    assert_eq!(phases, [0, 1, 2, 4].map(PhaseNo));
    assert!(job.outcome.is_some());
}

#[test]
fn training_without_early_stop_runs_on_while_the_journal_hangs() {
    let mut job = evaluated_job(0);
    job.end_phase(3);
    job.auto.journal = false;
    let from = job.sent.len();
    evaluate(&mut job, 0.5);
    assert_eq!(begins(&job, from), [PhaseNo(2)]);
    job.on(Event::RecordDurable { record: RecordId(job.records.len() as u64) });
}

/// A job that continues from a checkpoint of an earlier submission. Its shards outlive an ApplicationMaster, its checkpoint
/// is damaged meanwhile.
#[test]
fn scores_of_an_earlier_submission_outlive_their_checkpoint() {
    let mut job = evaluated_job(2);
    for loss in [0.5, 0.4] {
        job.end_phase(3);
        evaluate(&mut job, loss);
    }
    let mut resumed = Job::with(job.config.clone());
    resumed.checkpoints = job.checkpoints.clone();
    resumed.start();
    let mut next = resumed.successor();
    next.checkpoints.clear();
    let kept = resumed.processes.values().filter_map(|process| process.container.clone());
    next.recover(2, 2, kept.collect());
    let scores = |job: &Job| job.core.view().evaluations;
    assert!(!scores(&resumed).is_empty());
    assert_eq!(scores(&next), scores(&resumed));
}

/// An ApplicationMaster dies between the last checkpoint and the outcome. Its containers still have the phase of the last
/// evaluation, which the next attempt does again; meanwhile a pserver dies.
#[test]
fn scores_of_the_base_outlive_a_takeover_before_it() {
    let mut job = evaluated_job(1);
    job.auto.export = false;
    for loss in [0.5, 0.6] {
        job.end_phase(3);
        evaluate(&mut job, loss);
    }
    job.pass(1_000);
    let last = job.checkpoints.last().expect("the final one").manifest.clone();
    assert_eq!((last.phase, last.evaluations.len()), (PhaseNo(4), 2));
    let epoch = job.core.view().epoch;
    let (p0, p1, trainers) = (job.pserver(0), job.pserver(1), job.trainers());
    restart(&mut job, 2);
    for (member, shards) in [(p0, [0, 2]), (p1, [1, 3])] {
        let held = held(epoch, 3, &shards, |_| (0, false, Vec::new()));
        registers_with(&mut job, member, Some(held), None);
    }
    for member in trainers {
        job.registers(member);
    }
    assert_eq!(job.core.view().phase, PhaseNo(3));
    job.auto.export = true;
    job.kill(p0);
    job.pass(60_000);
    assert_eq!(job.core.view().evaluations.len(), 2);
    assert!(job.outcome.is_some(), "training is over: {:?}", job.core.view().phase_text);
}

/// A manifest that lacks the score of the first pass: the others stay with their passes.
#[test]
fn score_that_a_manifest_lacks_shifts_no_other_score() {
    let mut job = evaluated_job(0);
    for loss in [0.5, 0.4, 0.3] {
        job.end_phase(3);
        evaluate(&mut job, loss);
    }
    job.end_phase(3);
    let mut checkpoint = job.checkpoints.last().expect("one a pass").clone();
    let mut manifest = (*checkpoint.manifest).clone();
    assert_eq!(manifest.evaluations.len(), 3);
    manifest.evaluations.remove(0);
    checkpoint.manifest = manifest.into();
    let mut next = Job::with(job.config.clone());
    next.checkpoints = vec![checkpoint];
    next.start();
    let evaluations = next.core.view().evaluations;
    let passes: Vec<(u32, Option<f64>)> = evaluations
        .iter()
        .map(|scores| (scores.pass, scores.figures.get(Figure::LogLoss)))
        .collect();
    assert_eq!(passes, [(1, Some(0.4)), (2, Some(0.3))]);
    // A rollback to it keeps what came before its phase.
    next.kill(next.pserver(0));
    assert_eq!(next.core.view().evaluations.len(), 2);
}

#[test]
fn records_of_one_class_have_no_area() {
    let mut job = evaluated_job(0);
    let one = [(0.5, true), (1.5, true)];
    for (scores, area) in [(&one[..], None), (&[one[0], (-0.5, false)], Some(1.0))] {
        job.end_phase(3);
        let mut own = TaskMetrics { rows: 2, loss_sum: 1.0, correct: 2, ..TaskMetrics::default() };
        scores.iter().for_each(|(score, label)| own.scores.count(*score, *label));
        evaluate_as(&mut job, &own);
        let figures = job.core.view().evaluations.pop().expect("one").figures;
        assert_eq!(figures.get(Figure::Auc), area, "{figures}");
    }
}

#[test]
fn clustering_ends_when_its_centres_rest() {
    let mut clusters = spec(Consistency::Bsp);
    clusters.data.test = clusters.data.train.clone();
    clusters.data.passes = 6;
    clusters.model.algorithm = AlgorithmKind::Kmeans;
    clusters.model.optimizer = Optimizer::default();
    (clusters.model.clusters, clusters.model.init_rounds) = (2, 1);
    clusters.model.tolerance = 0.01;
    let mut job = Job::started(clusters, 4, 2);
    // Means, variances, two rounds of candidates, their counts.
    (0..5).for_each(|_| job.end_phase(3));
    for moved in [0.5, 0.01, 0.009] {
        assert!(job.outcome.is_none(), "{moved}");
        job.end_phase(3);
        let clusters = Some(ClusterFigures { moved, empty: 0 });
        let own = TaskMetrics { rows: 10, loss_sum: 5.0, clusters, ..TaskMetrics::default() };
        evaluate_as(&mut job, &own);
    }
    assert!(job.outcome.is_some(), "{:?}", job.notices);
    let words = "after pass 3 of 6: the squared movement of the centres, 9.000e-3 of the variance";
    assert!(job.warned(words), "{:?}", job.notices);
}

/// The last steps of a pass are applied before the ends of its tasks are reported, and a trainer may die in between.
#[test]
fn pass_of_clusters_waits_for_its_figures_for_a_bounded_time() {
    let mut clusters = spec(Consistency::Bsp);
    clusters.data.passes = 6;
    clusters.model.algorithm = AlgorithmKind::Kmeans;
    clusters.model.optimizer = Optimizer::default();
    (clusters.model.clusters, clusters.model.init_rounds) = (2, 1);
    let mut job = Job::started(clusters, 4, 2);
    (0..5).for_each(|_| job.end_phase(3));
    let from = job.sent.len();
    job.end_phase(3);
    assert_eq!(begins(&job, from), [], "the figures are not there");
    job.pass(2_000);
    assert_eq!(begins(&job, from), [PhaseNo(6)]);
}
