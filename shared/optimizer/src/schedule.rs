//! How the rate of a rule changes with the number of applied steps.

use serde::{Deserialize, Serialize};

/// The shape of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScheduleKind {
    /// The rate stays.
    Constant,
    /// The rate is divided by `1 + factor · t / steps`.
    Inverse,
    /// The rate is multiplied by `factor` every `steps` steps, smoothly.
    Exponential,
    /// The rate falls to `factor` of itself along half a cosine of `steps` steps, and stays there.
    Cosine,
}

impl ScheduleKind {
    /// What becomes of the rate, for the reference page.
    #[must_use]
    pub fn doc(self) -> &'static str {
        match self {
            Self::Constant => "left as it is",
            Self::Inverse => "divided by 1 + factor · t / steps",
            Self::Exponential => "multiplied by factor to the power of t / steps",
            Self::Cosine => {
                "multiplied by factor + (1 − factor) · (1 + cos(π · t / steps)) / 2 until t = steps, then by factor"
            }
        }
    }
}

/// The kinds by their names in the job file, each with the default of `factor`.
pub const SCHEDULE_KINDS: &[(&str, ScheduleKind, f64)] = &[
    ("constant", ScheduleKind::Constant, 1.0),
    ("inverse", ScheduleKind::Inverse, 1.0),
    ("exponential", ScheduleKind::Exponential, 0.5),
    ("cosine", ScheduleKind::Cosine, 0.0),
];

/// A factor of the rate for every step. `t` is the number of steps applied after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Schedule {
    /// The shape.
    pub kind: ScheduleKind,
    /// Steps of the shape; above 0 unless the kind is constant.
    pub steps: u64,
    /// See the kinds.
    pub factor: f64,
    /// Steps in which the rate rises linearly to its full value.
    pub warmup: u64,
}

impl Default for Schedule {
    fn default() -> Self {
        Self::CONSTANT
    }
}

impl Schedule {
    /// The rate stays.
    pub const CONSTANT: Self =
        Self { kind: ScheduleKind::Constant, steps: 0, factor: 1.0, warmup: 0 };

    /// Whether all fields are within their bounds.
    ///
    /// # Errors
    /// The first that is not.
    pub fn check(&self) -> Result<(), String> {
        let Self { kind, steps, factor, .. } = *self;
        if kind != ScheduleKind::Constant && steps == 0 {
            return Err("steps must be at least 1 (got 0)".to_owned());
        }
        let (valid, bounds) = match kind {
            ScheduleKind::Constant => (factor == 1.0, "left out"),
            ScheduleKind::Inverse => (factor > 0.0, "above 0"),
            ScheduleKind::Exponential => (factor > 0.0 && factor <= 1.0, "above 0 and at most 1"),
            ScheduleKind::Cosine => ((0.0..=1.0).contains(&factor), "from 0 to 1"),
        };
        if valid && factor.is_finite() {
            return Ok(());
        }
        Err(format!("factor must be {bounds} (got {factor})"))
    }

    /// The factor of step `step`, from 1. The step itself counts: the first step of an exponential schedule without warm-up
    /// has the full rate.
    #[must_use]
    pub fn factor(&self, step: u64) -> f32 {
        if step <= self.warmup {
            return (step as f64 / self.warmup as f64) as f32;
        }
        let done = (step - self.warmup).saturating_sub(1) as f64;
        let share = if self.steps == 0 { 0.0 } else { done / self.steps as f64 };
        let factor = match self.kind {
            ScheduleKind::Constant => 1.0,
            ScheduleKind::Inverse => 1.0 / (1.0 + self.factor * share),
            ScheduleKind::Exponential => libm::pow(self.factor, share),
            ScheduleKind::Cosine => {
                let fallen = (1.0 + libm::cos(std::f64::consts::PI * share.min(1.0))) / 2.0;
                self.factor + (1.0 - self.factor) * fallen
            }
        };
        factor as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn factors(kind: ScheduleKind, factor: f64, warmup: u64) -> Vec<f32> {
        let schedule = Schedule { kind, steps: 4, factor, warmup };
        schedule.check().expect("a valid schedule");
        (1..=9).map(|step| schedule.factor(step)).collect()
    }

    #[test]
    fn factors_are_those_of_the_formulas() {
        assert_eq!(Schedule::CONSTANT.factor(1_000_000), 1.0);
        let inverse = factors(ScheduleKind::Inverse, 1.0, 0);
        assert_eq!((inverse[0], inverse[4], inverse[8]), (1.0, 0.5, 1.0 / 3.0));
        let exponential = factors(ScheduleKind::Exponential, 0.25, 0);
        assert_eq!((exponential[0], exponential[2], exponential[8]), (1.0, 0.5, 0.0625));
        let cosine = factors(ScheduleKind::Cosine, 0.5, 0);
        assert_eq!((cosine[0], cosine[2], cosine[4], cosine[8]), (1.0, 0.75, 0.5, 0.5));
    }

    #[test]
    fn warm_up_rises_to_the_full_rate_and_the_shape_follows() {
        let factors = factors(ScheduleKind::Inverse, 1.0, 4);
        assert_eq!(factors[..5], [0.25, 0.5, 0.75, 1.0, 1.0]);
        assert_eq!(factors[8], 0.5);
    }

    #[test]
    fn fields_out_of_bounds_are_refused() {
        for (kind, steps, factor) in [
            (ScheduleKind::Inverse, 0, 1.0),
            (ScheduleKind::Inverse, 1, 0.0),
            (ScheduleKind::Exponential, 1, 1.5),
            (ScheduleKind::Cosine, 1, -0.1),
            (ScheduleKind::Inverse, 1, f64::INFINITY),
            (ScheduleKind::Constant, 0, 0.5),
        ] {
            assert!(
                Schedule { kind, steps, factor, warmup: 0 }.check().is_err(),
                "{kind:?} {factor}"
            );
        }
    }
}
