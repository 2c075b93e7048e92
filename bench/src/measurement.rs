//! Samples, medians and ratios.

use std::time::{Duration, Instant};

use serde::Serialize;

/// A figure of Heddle beside the figure of its baseline.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measurement {
    /// What was measured.
    pub what: String,
    /// Unit of the four values.
    pub unit: &'static str,
    /// Median of Heddle.
    pub heddle: f64,
    /// Its 99th percentile.
    pub heddle_p99: f64,
    /// What the baseline is.
    pub baseline: &'static str,
    /// Median of the baseline.
    pub baseline_value: f64,
    /// Its 99th percentile.
    pub baseline_p99: f64,
    /// Speed of Heddle divided by the baseline's: above 1 Heddle is faster.
    pub ratio: f64,
    /// Samples of Heddle.
    pub samples: usize,
}

/// Values of one side.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// Adds a value.
    pub fn add(&mut self, value: f64) {
        self.0.push(value);
    }

    /// Adds a duration in microseconds.
    pub fn add_micros(&mut self, time: Duration) {
        self.add(time.as_secs_f64() * 1e6);
    }

    /// The value that `share` of the values do not exceed; 0 without values.
    #[must_use]
    pub fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let last = sorted.len().saturating_sub(1);
        let at = (sorted.len() as f64 * share) as usize;
        sorted.get(at.min(last)).copied().unwrap_or(0.0)
    }

    /// The number of values.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The median; 0 without values.
    #[must_use]
    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }
}

impl Measurement {
    /// Of times: a shorter one is faster. `other`: the times of the baseline.
    #[must_use]
    pub fn of_times(
        what: impl Into<String>,
        unit: &'static str,
        heddle: &Samples,
        baseline: &'static str,
        other: &Samples,
    ) -> Self {
        let measured = Self::of_rates(what, unit, heddle, baseline, other);
        Self { ratio: 1.0 / measured.ratio, ..measured }
    }

    /// Of rates: a higher one is faster. `other`: the rates of the baseline.
    #[must_use]
    pub fn of_rates(
        what: impl Into<String>,
        unit: &'static str,
        heddle: &Samples,
        baseline: &'static str,
        other: &Samples,
    ) -> Self {
        Self {
            what: what.into(),
            unit,
            heddle: heddle.median(),
            heddle_p99: heddle.quantile(0.99),
            baseline,
            baseline_value: other.median(),
            baseline_p99: other.quantile(0.99),
            ratio: heddle.median() / other.median(),
            samples: heddle.0.len(),
        }
    }
}

/// How long `work` takes.
pub fn timed(work: impl FnOnce()) -> Duration {
    let begun = Instant::now();
    work();
    begun.elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratio_above_one_means_that_heddle_is_faster() {
        let (mut low, mut high) = (Samples::default(), Samples::default());
        for n in 1..=100 {
            low.add(f64::from(n));
            high.add(f64::from(2 * n));
        }
        assert_eq!((low.median(), low.quantile(0.99)), (51.0, 100.0));
        assert_eq!(Measurement::of_times("a", "us", &low, "b", &high).ratio, 2.0);
        assert_eq!(Measurement::of_rates("a", "GB/s", &low, "b", &high).ratio, 0.5);
        assert_eq!(Samples::default().median(), 0.0);
    }
}
