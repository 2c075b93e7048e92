//! Spambase, the data of the quick start: two classes. References: scikit-learn, converged, on columns standardised by the
//! training rows and with l2 = 1/3601.

use heddle_protocol::figure::Figure;
use heddle_protocol::job_spec::table::WEIGHTS;

use crate::harness::{Job, example, loss_of_required_keys};

#[test]
fn the_quick_start_reaches_its_quality_and_is_repeatable() {
    let spec = example("quickstart", &[]);
    let mut job = Job::new(spec.clone());
    let summary = job.run();
    let (log_loss, auc) = (summary.mean_loss().expect("rows"), summary.auc.expect("both classes"));
    println!("{:?}", summary.figures(spec.model.objective()));
    assert_eq!(summary.rows, 1000);
    assert_eq!(job.on_training_data().rows, 3601, "every record once");
    assert!(log_loss <= 0.2130, "log-loss {log_loss}");
    assert!(auc.value - auc.error >= 0.9725, "auc {auc:?}");
    let mut again = Job::new(spec);
    assert_eq!(again.run(), summary);
    assert_eq!(again.bits(WEIGHTS), job.bits(WEIGHTS));
}

/// Bar: 2 % of the converged test log-loss.
#[test]
fn required_keys_alone_reach_the_log_loss_of_a_converged_solver() {
    let loss = loss_of_required_keys("quickstart");
    assert!(loss <= 1.02 * 0.2118, "log-loss {loss}");
}

#[test]
fn margins_reach_the_objective_of_a_converged_solver() {
    for (loss, reference, figure) in [
        ("model.loss=hinge", 0.19262, Figure::Hinge),
        ("model.loss=squared-hinge", 0.26568, Figure::SquaredHinge),
    ] {
        let svm = ["model.algorithm=svm", loss, "model.optimizer.alpha=0.2"];
        let mut job = Job::new(example("quickstart", &svm));
        let figures = job.run().figures(job.spec.model.objective()).expect("records");
        let objective = job.objective();
        println!("{loss}: objective {objective:.5} of {reference}, {figures}");
        assert!(objective <= 1.03 * reference, "{loss}: objective {objective}");
        assert!(figures.get(Figure::Auc).is_some_and(|auc| auc >= 0.970), "{figures}");
        assert_eq!(figures.loss().map(|(first, _)| first), Some(figure));
    }
}
