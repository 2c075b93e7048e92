//! The built-in algorithms: their losses, labels and figures.
//!
//! The linear family is one algorithm with different losses. Which keys an algorithm has is stated in `objective.rs`.

use serde::{Deserialize, Serialize};

use crate::figure::Figure;

/// What computes the gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AlgorithmKind {
    /// Binary classification with a bias; labels −1/+1 or 0/1.
    LogisticRegression,
    /// A number for each record, by least squares.
    LinearRegression,
    /// Binary classification by a margin; labels −1/+1 or 0/1.
    Svm,
    /// Several classes; labels 0 to `model.classes` − 1.
    SoftmaxRegression,
    /// Products of features by a row of `model.rank` factors for each; two classes or a number.
    FactorizationMachine,
    /// Clusters of records by distance; labels are not used.
    Kmeans,
    /// The program of `trainers.command`, on the tables of `[[model.table]]`.
    Custom,
}

/// The words of `model.algorithm`.
pub(super) const ALGORITHMS: &[(&str, AlgorithmKind)] = &[
    ("logistic-regression", AlgorithmKind::LogisticRegression),
    ("linear-regression", AlgorithmKind::LinearRegression),
    ("svm", AlgorithmKind::Svm),
    ("softmax-regression", AlgorithmKind::SoftmaxRegression),
    ("factorization-machine", AlgorithmKind::FactorizationMachine),
    ("kmeans", AlgorithmKind::Kmeans),
    ("custom", AlgorithmKind::Custom),
];

impl AlgorithmKind {
    /// The word of the job file.
    #[must_use]
    pub fn name(self) -> &'static str {
        let found = ALGORITHMS.iter().find(|(_, kind)| *kind == self);
        found.map_or("", |(name, _)| name)
    }

    /// The algorithm of this name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        ALGORITHMS.iter().find(|(word, _)| *word == name).map(|(_, kind)| *kind)
    }

    /// The losses that it can minimise, the default first. A custom program's figures are those of two classes.
    #[must_use]
    pub fn losses(self) -> &'static [LossFunction] {
        match self {
            Self::LogisticRegression | Self::Custom => &[LossFunction::Logistic],
            Self::LinearRegression => &[LossFunction::Squared],
            Self::Svm => &[LossFunction::Hinge, LossFunction::SquaredHinge],
            Self::SoftmaxRegression => &[LossFunction::Softmax],
            Self::FactorizationMachine => &[LossFunction::Logistic, LossFunction::Squared],
            Self::Kmeans => &[LossFunction::Distance],
        }
    }

    /// Whether a score is a bias and one weight for each feature, so that the model has a text form.
    #[must_use]
    pub fn is_linear(self) -> bool {
        match self {
            Self::LogisticRegression | Self::LinearRegression | Self::Svm => true,
            Self::SoftmaxRegression | Self::FactorizationMachine | Self::Kmeans | Self::Custom => {
                false
            }
        }
    }
}

/// What a record costs, by its score z and its label y.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LossFunction {
    /// ln(1 + e^z) − y·z, y being 0 or 1.
    Logistic,
    /// ½·(z − y)².
    Squared,
    /// max(0, 1 − y·z), y being −1 or +1.
    Hinge,
    /// max(0, 1 − y·z)², y being −1 or +1.
    SquaredHinge,
    /// −ln of the class's share of e^z over all classes.
    Softmax,
    /// The squared distance to the nearest centre.
    Distance,
}

/// The names of losses; those that an algorithm chooses among are the words of `model.loss`.
const LOSSES: &[(&str, LossFunction)] = &[
    ("logistic", LossFunction::Logistic),
    ("squared", LossFunction::Squared),
    ("hinge", LossFunction::Hinge),
    ("squared-hinge", LossFunction::SquaredHinge),
    ("softmax", LossFunction::Softmax),
    ("distance", LossFunction::Distance),
];

/// The labels that a job accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelRange {
    /// 0 and 1, or −1 and +1.
    TwoClasses,
    /// Whole numbers below this one.
    Classes(u32),
    /// Any finite number.
    Number,
}

impl LossFunction {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        LOSSES.iter().find(|(_, loss)| *loss == self).map_or("", |(name, _)| name)
    }

    /// The loss of this name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        LOSSES.iter().find(|(word, _)| *word == name).map(|(_, loss)| *loss)
    }

    /// The figures of an evaluation. The first is what early stopping watches.
    #[must_use]
    pub fn figures(self) -> &'static [Figure] {
        match self {
            Self::Logistic => &[Figure::LogLoss, Figure::Auc, Figure::AucError, Figure::Accuracy],
            Self::Hinge => &[Figure::Hinge, Figure::Auc, Figure::AucError, Figure::Accuracy],
            Self::SquaredHinge => {
                &[Figure::SquaredHinge, Figure::Auc, Figure::AucError, Figure::Accuracy]
            }
            Self::Squared => &[Figure::Rmse, Figure::Mae, Figure::R2],
            Self::Softmax => &[Figure::LogLoss, Figure::Accuracy],
            Self::Distance => &[Figure::Inertia, Figure::Moved, Figure::Empty],
        }
    }

    /// The labels that it accepts, of a model with `classes` classes.
    #[must_use]
    pub fn labels(self, classes: u32) -> LabelRange {
        match self {
            Self::Logistic | Self::Hinge | Self::SquaredHinge => LabelRange::TwoClasses,
            Self::Squared | Self::Distance => LabelRange::Number,
            Self::Softmax => LabelRange::Classes(classes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_algorithm_and_loss_has_a_name_of_its_own() {
        for (name, kind) in ALGORITHMS {
            assert_eq!(AlgorithmKind::of_name(name), Some(*kind));
            assert_eq!(kind.name(), *name);
            let first = kind.losses()[0].figures()[0];
            assert!(kind.losses().iter().all(|loss| !loss.figures().is_empty()), "{first:?}");
        }
        for (name, loss) in LOSSES {
            assert_eq!((LossFunction::of_name(name), loss.name()), (Some(*loss), *name));
        }
    }
}
