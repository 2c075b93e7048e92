//! What a job minimises, which labels it accepts, and which keys of `[model]` belong to its algorithm.

use super::algorithm::{AlgorithmKind, LabelRange, LossFunction};
use super::limits::{COLS_MAX, INIT_ROUNDS_MAX, SpecError, rule};
use super::sections::ModelSpec;
use heddle_optimizer::{Optimizer, Schedule};

impl ModelSpec {
    /// The loss that the job minimises.
    #[must_use]
    pub fn objective(&self) -> LossFunction {
        self.loss.unwrap_or(self.algorithm.losses()[0])
    }

    /// Rows of the table of candidates: one of the first round of k-means||, twice the clusters of each other.
    #[must_use]
    pub fn candidates(&self) -> u64 {
        1 + 2 * u64::from(self.clusters) * u64::from(self.init_rounds)
    }

    /// The labels that the job accepts.
    #[must_use]
    pub fn labels(&self) -> LabelRange {
        self.objective().labels(self.classes)
    }
}

/// Whether the keys that only some algorithms have belong to the job's.
pub(super) fn check_keys(model: &ModelSpec) -> Result<(), SpecError> {
    let kind = model.algorithm;
    let of = |key: &'static str, given: bool, owners: &[AlgorithmKind]| {
        rule(!given || owners.contains(&kind), key, || {
            let names: Vec<&str> = owners.iter().map(|owner| owner.name()).collect();
            format!("is a key of algorithm {}, not of {}", names.join(" and "), kind.name())
        })
    };
    let machine = AlgorithmKind::FactorizationMachine;
    of("model.loss", model.loss.is_some(), &[AlgorithmKind::Svm, machine])?;
    of("model.rank", model.rank != 0, &[machine])?;
    rule(kind != machine || model.rank > 0, "model.rank", || {
        format!("is 0, must be from 1 to {COLS_MAX}: algorithm {} needs it", kind.name())
    })?;
    of("model.classes", model.classes != 0, &[AlgorithmKind::SoftmaxRegression])?;
    rule(model.loss.is_none_or(|loss| kind.losses().contains(&loss)), "model.loss", || {
        let names: Vec<String> =
            kind.losses().iter().map(|loss| format!("\"{}\"", loss.name())).collect();
        format!("of algorithm {} must be {}", kind.name(), names.join(" or "))
    })?;
    check_clusters(model)?;
    let classes = 2..=COLS_MAX;
    let several = kind == AlgorithmKind::SoftmaxRegression;
    rule(!several || classes.contains(&model.classes), "model.classes", || {
        format!(
            "is {}, must be from 2 to {COLS_MAX}: algorithm {} needs the number of classes",
            model.classes,
            kind.name()
        )
    })
}

/// The keys of k-means, and those that it does not have.
fn check_clusters(model: &ModelSpec) -> Result<(), SpecError> {
    let clustering = model.algorithm == AlgorithmKind::Kmeans;
    for (key, given) in [
        ("model.clusters", model.clusters != 0),
        ("model.init-rounds", model.init_rounds != 0),
        ("model.tolerance", model.tolerance != 0.0),
    ] {
        rule(clustering || !given, key, || {
            format!("is a key of algorithm kmeans, not of {}", model.algorithm.name())
        })?;
    }
    if !clustering {
        return Ok(());
    }
    for (key, given) in [
        ("model.l2", model.l2 != 0.0),
        ("model.init", model.init.is_some()),
        ("model.optimizer", model.optimizer != Optimizer::default()),
        ("model.schedule", model.schedule != Schedule::CONSTANT),
    ] {
        rule(!given, key, || "is not a key of algorithm kmeans".to_owned())?;
    }
    rule((1..=COLS_MAX).contains(&model.clusters), "model.clusters", || {
        format!("is {}, must be from 1 to {COLS_MAX}: algorithm kmeans needs it", model.clusters)
    })?;
    rule((1..=INIT_ROUNDS_MAX).contains(&model.init_rounds), "model.init-rounds", || {
        format!("is {}, must be from 1 to {INIT_ROUNDS_MAX}", model.init_rounds)
    })?;
    rule(model.tolerance.is_finite() && model.tolerance >= 0.0, "model.tolerance", || {
        format!("is {}, must be at least 0", model.tolerance)
    })?;
    // A centre is a row, beside its number of records.
    rule(!model.any_features(), "model.features", || {
        "is \"any\"; algorithm kmeans needs the number of features".to_owned()
    })?;
    rule((1..u64::from(COLS_MAX)).contains(&model.features), "model.features", || {
        format!("is {}, must be from 1 to {} with algorithm kmeans", model.features, COLS_MAX - 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job_spec::check;
    use crate::job_spec::job::sample;
    use crate::job_spec::limits::ANY_FEATURES;

    fn refused(change: impl FnOnce(&mut ModelSpec)) -> String {
        let mut spec = sample();
        change(&mut spec.model);
        check(&spec).expect_err("the change breaks a rule").to_string()
    }

    #[test]
    fn keys_of_another_algorithm_are_refused_with_its_name() {
        assert_eq!(
            refused(|model| model.loss = Some(LossFunction::Hinge)),
            "model.loss: is a key of algorithm svm and factorization-machine, not of logistic-regression"
        );
        assert_eq!(
            refused(|model| {
                model.algorithm = AlgorithmKind::Svm;
                model.classes = 3;
            }),
            "model.classes: is a key of algorithm softmax-regression, not of svm"
        );
        assert_eq!(
            refused(|model| {
                model.algorithm = AlgorithmKind::Svm;
                model.loss = Some(LossFunction::Squared);
            }),
            "model.loss: of algorithm svm must be \"hinge\" or \"squared-hinge\""
        );
    }

    #[test]
    fn factorization_machine_needs_a_rank() {
        let text = refused(|model| model.algorithm = AlgorithmKind::FactorizationMachine);
        assert!(text.starts_with("model.rank: is 0, must be from 1 to "), "{text}");
        assert_eq!(
            refused(|model| model.rank = 4),
            "model.rank: is a key of algorithm factorization-machine, not of logistic-regression"
        );
    }

    fn clustering(model: &mut ModelSpec) {
        model.algorithm = AlgorithmKind::Kmeans;
        model.optimizer = Optimizer::default();
        (model.clusters, model.init_rounds, model.tolerance) = (3, 5, 1e-4);
    }

    #[test]
    fn kmeans_has_its_own_keys_and_no_optimizer() {
        assert_eq!(
            refused(|model| model.clusters = 3),
            "model.clusters: is a key of algorithm kmeans, not of logistic-regression"
        );
        let with = |change: fn(&mut ModelSpec)| {
            refused(|model| {
                clustering(model);
                change(model);
            })
        };
        assert_eq!(
            with(|model| model.clusters = 0),
            "model.clusters: is 0, must be from 1 to 65536: algorithm kmeans needs it"
        );
        assert_eq!(
            with(|model| model.features = 65_536),
            "model.features: is 65536, must be from 1 to 65535 with algorithm kmeans"
        );
        assert_eq!(
            with(|model| model.features = ANY_FEATURES),
            "model.features: is \"any\"; algorithm kmeans needs the number of features"
        );
        assert_eq!(
            with(|model| model.init = Some("/other".parse().expect("a location"))),
            "model.init: is not a key of algorithm kmeans"
        );
        assert_eq!(with(|model| model.l2 = 0.1), "model.l2: is not a key of algorithm kmeans");
        assert_eq!(
            with(|model| model.optimizer = Optimizer::sgd(0.1)),
            "model.optimizer: is not a key of algorithm kmeans"
        );
        assert_eq!(
            with(|model| model.classes = 3),
            "model.classes: is a key of algorithm softmax-regression, not of kmeans"
        );
        let mut spec = sample();
        clustering(&mut spec.model);
        check(&spec).expect("a sound job");
    }

    #[test]
    fn softmax_needs_at_least_two_classes() {
        for classes in [0, 1] {
            let text = refused(|model| {
                model.algorithm = AlgorithmKind::SoftmaxRegression;
                model.classes = classes;
            });
            let start = format!("model.classes: is {classes}, must be from 2 to {COLS_MAX}");
            assert!(text.starts_with(&start), "{text}");
        }
    }
}
