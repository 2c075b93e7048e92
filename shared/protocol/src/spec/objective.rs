//! What a job minimises, which labels it accepts, and which keys of `[model]` belong to its algorithm.

use super::algorithm::{AlgorithmKind, LabelRange, LossFunction};
use super::limits::{COLS_MAX, SpecError, rule};
use super::sections::ModelSpec;

impl ModelSpec {
    /// The loss that the job minimises.
    #[must_use]
    pub fn objective(&self) -> LossFunction {
        self.loss.unwrap_or(self.algorithm.losses()[0])
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::check;
    use crate::spec::job::sample;

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
