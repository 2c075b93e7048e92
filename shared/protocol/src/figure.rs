//! Figures of an evaluation, by name: what is printed, kept in manifests and watched by early stopping.
//!
//! Which figures a job has follows from its loss ([`LossFunction::figures`](crate::job_spec::LossFunction::figures)). In JSON each is a field of its own
//! beside the others of the evaluation, such as `"log_loss": 0.21`.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! figures {
    ($($(#[doc = $help:literal])+ $figure:ident $key:literal $name:literal;)+) => {
        /// A figure. The order of the variants is the order in which figures are printed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Figure {
            $($(#[doc = $help])+ $figure,)+
        }

        impl Figure {
            /// All of them.
            pub fn all() -> impl Iterator<Item = Self> {
                [$(Self::$figure),+].into_iter()
            }

            /// Its name in JSON: `log_loss`.
            #[must_use]
            pub fn key(self) -> &'static str {
                match self { $(Self::$figure => $key,)+ }
            }

            /// Its name in text: `log-loss`.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$figure => $name,)+ }
            }

            /// The name of its metric: `heddle_test_log_loss`.
            #[must_use]
            pub fn metric(self) -> &'static str {
                match self { $(Self::$figure => concat!("heddle_test_", $key),)+ }
            }

            /// What it is.
            #[must_use]
            pub fn help(self) -> &'static str {
                match self { $(Self::$figure => concat!($($help),+).trim_ascii(),)+ }
            }
        }
    };
}

figures! {
    /// Mean log-loss of the last evaluation.
    LogLoss "log_loss" "log-loss";
    /// Mean hinge loss of the last evaluation.
    Hinge "hinge" "hinge";
    /// Mean squared hinge loss of the last evaluation.
    SquaredHinge "squared_hinge" "squared-hinge";
    /// Root of the mean squared residual of the last evaluation.
    Rmse "rmse" "rmse";
    /// Mean absolute residual of the last evaluation.
    Mae "mae" "mae";
    /// Share of the labels' variance that the last evaluation's scores explain.
    R2 "r2" "r2";
    /// AUC of the last evaluation.
    Auc "auc" "auc";
    /// Bound of the error that binning of scores causes in the AUC. Not printed.
    AucError "auc_error" "auc-error";
    /// Share of the last evaluation's records whose class the model names.
    Accuracy "accuracy" "accuracy";
    /// Sum of squared distances from the nearest centre in the last evaluation.
    Inertia "inertia" "inertia";
    /// Squared movement of the centres before the last evaluation, as a share of the variance.
    Moved "moved" "moved";
    /// Clusters without a record in the pass before the last evaluation.
    Empty "empty" "empty";
}

impl Figure {
    /// Whether it is shown to users.
    #[must_use]
    pub fn is_printed(self) -> bool {
        self != Self::AucError
    }
}

/// A figure for users: with this number of digits after the point, and with an exponent from a billion on, which a model that
/// diverges reaches.
#[must_use]
pub fn decimal(value: f64, digits: usize) -> String {
    match value.abs() < 1e9 {
        true => format!("{value:.digits$}"),
        false => format!("{value:.digits$e}"),
    }
}

/// The figures of one evaluation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EvaluationFigures(BTreeMap<Figure, f64>);

impl EvaluationFigures {
    /// Adds a figure. JSON has no NaN and no infinity, and a manifest that cannot be read back is worse than a blunt
    /// number: such a value becomes the largest one.
    pub fn insert(&mut self, figure: Figure, value: f64) {
        let value = match value {
            value if value.is_finite() => value,
            f64::NEG_INFINITY => f64::MIN,
            _ => f64::MAX,
        };
        self.0.insert(figure, value);
    }

    /// Removes a figure.
    pub fn remove(&mut self, figure: Figure) {
        self.0.remove(&figure);
    }

    /// One figure, if the evaluation has it.
    #[must_use]
    pub fn get(&self, figure: Figure) -> Option<f64> {
        self.0.get(&figure).copied()
    }

    /// The first figure: the mean loss, or a function that rises with it. Lower is better.
    #[must_use]
    pub fn loss(&self) -> Option<(Figure, f64)> {
        self.0.iter().next().map(|(figure, value)| (*figure, *value))
    }

    /// The figures to print, in their order.
    pub fn printed(&self) -> impl Iterator<Item = (Figure, f64)> + '_ {
        let printed = |(figure, _): &(&Figure, &f64)| figure.is_printed();
        self.0.iter().filter(printed).map(|(figure, value)| (*figure, *value))
    }
}

impl FromIterator<(Figure, f64)> for EvaluationFigures {
    fn from_iter<I: IntoIterator<Item = (Figure, f64)>>(all: I) -> Self {
        let mut figures = Self::default();
        for (figure, value) in all {
            figures.insert(figure, value);
        }
        figures
    }
}

/// `log-loss 0.2118  auc 0.9729  accuracy 0.9250`.
impl fmt::Display for EvaluationFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (figure, value)) in self.printed().enumerate() {
            let gap = if n == 0 { "" } else { "  " };
            match figure {
                Figure::Empty => write!(f, "{gap}{} {value}", figure.name())?,
                // It is compared with `model.tolerance`.
                Figure::Moved => write!(f, "{gap}{} {}", figure.name(), decimal(value, 6))?,
                _ => write!(f, "{gap}{} {}", figure.name(), decimal(value, 4))?,
            }
        }
        Ok(())
    }
}

impl Serialize for EvaluationFigures {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(figure, value)| (figure.key(), value)))
    }
}

/// Other fields are left out: another version of the program may have more.
impl<'de> Deserialize<'de> for EvaluationFigures {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FiguresVisitor;

        impl<'de> Visitor<'de> for FiguresVisitor {
            type Value = EvaluationFigures;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("figures by name")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> Result<EvaluationFigures, A::Error> {
                let mut figures = EvaluationFigures::default();
                while let Some(key) = map.next_key::<String>()? {
                    match Figure::all().find(|figure| figure.key() == key) {
                        Some(figure) => figures.insert(figure, map.next_value()?),
                        None => {
                            map.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                Ok(figures)
            }
        }

        deserializer.deserialize_map(FiguresVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_printed_in_their_order() {
        let figures: EvaluationFigures = [
            (Figure::Accuracy, 0.925),
            (Figure::AucError, 0.1),
            (Figure::Auc, 0.97291),
            (Figure::LogLoss, 0.21184),
        ]
        .into_iter()
        .collect();
        assert_eq!(figures.to_string(), "log-loss 0.2118  auc 0.9729  accuracy 0.9250");
        assert_eq!(figures.loss(), Some((Figure::LogLoss, 0.21184)));
    }

    #[test]
    fn large_figures_are_printed_with_an_exponent() {
        for (value, text) in [
            (0.0, "0.0000"),
            (-0.21184, "-0.2118"),
            (999_999_999.0, "999999999.0000"),
            (1e9, "1.0000e9"),
            (-123_456_789_012.0, "-1.2346e11"),
            (f64::MAX, "1.7977e308"),
            (f64::INFINITY, "inf"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(decimal(value, 4), text);
        }
        let diverged: EvaluationFigures =
            [(Figure::Rmse, f64::MAX), (Figure::Moved, f64::NAN)].into_iter().collect();
        assert_eq!(diverged.to_string(), "rmse 1.7977e308  moved 1.797693e308");
    }

    #[test]
    fn json_of_an_earlier_version_and_unknown_fields_are_read() {
        let json = r#"{"log_loss":0.5,"auc":0.75,"later":{"a":[1]},"accuracy":1}"#;
        let figures: EvaluationFigures = serde_json::from_str(json).expect("figures");
        assert_eq!(figures.get(Figure::Accuracy), Some(1.0));
        let again = serde_json::to_string(&figures).expect("JSON");
        assert_eq!(again, r#"{"log_loss":0.5,"auc":0.75,"accuracy":1.0}"#);
    }

    #[test]
    fn values_that_json_lacks_become_the_largest() {
        let mut figures = EvaluationFigures::default();
        figures.insert(Figure::Rmse, f64::NAN);
        figures.insert(Figure::R2, f64::NEG_INFINITY);
        let json = serde_json::to_string(&figures).expect("JSON");
        assert_eq!(serde_json::from_str::<EvaluationFigures>(&json).expect("read"), figures);
    }
}
