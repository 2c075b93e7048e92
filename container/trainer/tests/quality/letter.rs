//! Letter Recognition, the data of `examples/letter`: 26 classes. Reference: scikit-learn, converged, on standardised columns
//! and with l2 = 1/16000: objective 0.85136, test log-loss 0.87511, test accuracy 0.773. K-means with 26 clusters on
//! standardised columns: inertia 96,634.4, the best of 20 runs.

use heddle_protocol::figure::Figure;

use crate::harness::{Job, example, example_file, loss_of_required_keys};

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

/// Bar: 4 % of the converged test log-loss.
#[test]
fn required_keys_alone_reach_the_log_loss_of_a_converged_solver() {
    let loss = loss_of_required_keys("letter");
    assert!(loss <= 1.04 * 0.87511, "log-loss {loss}");
}

#[test]
fn kmeans_is_near_the_best_of_twenty_runs() {
    for seed in [1, 2, 3] {
        let sets = [&format!("training.seed={seed}")[..], "model.tolerance=0"];
        let mut job = Job::new(example_file("letter", "kmeans.toml", &sets));
        assert!(job.spec.data.passes <= 20);
        job.run();
        let summary = job.on_training_data();
        let inertia = summary.figures(job.spec.model.objective()).expect("records");
        let inertia = inertia.get(Figure::Inertia).expect("a sum of distances");
        println!("seed {seed}: inertia {inertia:.1}, {:.4} of the best", inertia / 96_634.4);
        assert_eq!(summary.rows, 16_000);
        assert!(inertia <= 1.03 * 96_634.4, "seed {seed}: {inertia}");
    }
}
