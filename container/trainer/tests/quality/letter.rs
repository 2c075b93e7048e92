//! Letter Recognition, the data of `examples/letter`: 26 classes. Reference: scikit-learn, converged, on standardised columns
//! and with l2 = 1/16000: objective 0.85136, test log-loss 0.87511, test accuracy 0.773.

use heddle_protocol::figure::Figure;

use crate::harness::{Job, example};

#[test]
fn softmax_reaches_the_objective_of_a_converged_solver() {
    let mut job = Job::new(example("letter", &[]));
    let summary = job.run();
    let figures = summary.figures(job.spec.model.objective()).expect("records");
    let objective = job.objective();
    println!("objective {objective:.5}, {figures}");
    assert_eq!(summary.rows, 4_000);
    assert!(objective <= 0.8545, "objective {objective}");
    assert!(figures.get(Figure::LogLoss).is_some_and(|loss| loss <= 0.881), "{figures}");
    assert!(figures.get(Figure::Accuracy).is_some_and(|share| share >= 0.768), "{figures}");
}
