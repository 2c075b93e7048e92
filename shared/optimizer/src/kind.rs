//! What there is to know of a rule but its arithmetic.

use serde::{Deserialize, Serialize};

/// What a step's gradient is, made from the sum `S` over the step's `rows` records and the value `w`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GradientKind {
    /// `S + rows · l2 · w`.
    Sum,
    /// `S / rows + l2 · w`.
    Mean,
}

impl GradientKind {
    /// The word of the job file.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Mean => "mean",
        }
    }
}

/// Bounds of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterBounds {
    /// Above 0.
    Positive,
    /// At least 0.
    NotNegative,
    /// At least 0 and below 1.
    Fraction,
}

impl ParameterBounds {
    /// Whether a value is finite and within the bounds.
    #[must_use]
    pub fn contain(self, value: f64) -> bool {
        value.is_finite()
            && match self {
                Self::Positive => value > 0.0,
                Self::NotNegative => value >= 0.0,
                Self::Fraction => (0.0..1.0).contains(&value),
            }
    }

    /// The bounds in words: `must be …`.
    #[must_use]
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Positive => "above 0",
            Self::NotNegative => "at least 0",
            Self::Fraction => "at least 0 and below 1",
        }
    }
}

/// A parameter of a rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameter {
    /// Its name in the job file.
    pub name: &'static str,
    /// Its default; `None`: it must be given.
    pub default: Option<f64>,
    /// Its bounds.
    pub bounds: ParameterBounds,
}

impl Parameter {
    pub(crate) const fn new(name: &'static str, default: f64, bounds: ParameterBounds) -> Self {
        Self { name, default: Some(default), bounds }
    }

    pub(crate) const fn required(name: &'static str, bounds: ParameterBounds) -> Self {
        Self { name, default: None, bounds }
    }
}

/// A rule, without values of its parameters.
#[derive(Clone, Copy, Debug)]
pub struct OptimizerKind {
    /// Its name in the job file and in shard files.
    pub name: &'static str,
    /// What it does, for the reference page.
    pub doc: &'static str,
    /// Its parameters, at most four.
    pub parameters: &'static [Parameter],
    /// Names of its state arrays, at most two, each as long as the values.
    pub state: &'static [&'static str],
    /// The gradient that it uses unless the job file has another. `None`: it adds pushes as they are, and takes no l2.
    pub gradient: Option<GradientKind>,
}

/// Most parameters of a rule.
pub(crate) const PARAMETERS_MAX: usize = 4;

impl PartialEq for OptimizerKind {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl OptimizerKind {
    /// Whether the rule has a rate that a schedule can change.
    #[must_use]
    pub fn has_rate(&self) -> bool {
        self.parameters.iter().any(|parameter| parameter.name == "rate")
    }

    /// The rule of this name.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        crate::KINDS.iter().copied().find(|kind| kind.name == name)
    }
}
