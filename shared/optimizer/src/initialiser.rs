//! Initial values of rows.
//!
//! A value is a pure function of the job's seed, the table, the row's key and the column, so it is the same for every number
//! of shards, after every rollback and on every machine: hashing is integer arithmetic, and logarithm and cosine come from
//! `libm`.

use serde::{Deserialize, Serialize};

/// How the rows of a table begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Initialiser {
    /// Zeros.
    #[default]
    Zero,
    /// One value.
    Constant(f64),
    /// Uniform from the first value up to, not including, the second.
    Uniform(f64, f64),
    /// Normal with this mean and standard deviation.
    Normal(f64, f64),
}

impl Initialiser {
    /// Whether all numbers are within their bounds.
    ///
    /// # Errors
    /// What must hold.
    pub fn check(&self) -> Result<(), String> {
        let (valid, rule, got) = match *self {
            Self::Zero => (true, "", String::new()),
            Self::Constant(value) => {
                (value.is_finite(), "constant must be finite", value.to_string())
            }
            Self::Uniform(low, high) => (
                low.is_finite() && high.is_finite() && low < high,
                "uniform must be [low, high] with low below high",
                format!("[{low}, {high}]"),
            ),
            Self::Normal(mean, sd) => (
                mean.is_finite() && sd.is_finite() && sd >= 0.0,
                "normal must be [mean, sd] with sd at least 0",
                format!("[{mean}, {sd}]"),
            ),
        };
        if valid { Ok(()) } else { Err(format!("{rule} (got {got})")) }
    }

    /// Fills `values`, which has the rows from `first` on of `cols` columns each, of table `table`.
    pub fn fill(&self, seed: u64, table: u16, first: u64, cols: usize, values: &mut [f32]) {
        let of_table = mix(mix(seed) ^ u64::from(table));
        for (n, row) in (0u64..).zip(values.chunks_mut(cols.max(1))) {
            let of_row = mix(of_table ^ first.wrapping_add(n));
            for (column, value) in (0..).zip(row) {
                *value = self.value(mix(of_row ^ column));
            }
        }
    }

    fn value(&self, random: u64) -> f32 {
        /// The top 53 bits, from 0 up to, not including, 1.
        fn unit(bits: u64) -> f64 {
            (bits >> 11) as f64 / (1u64 << 53) as f64
        }
        match *self {
            Self::Zero => 0.0,
            Self::Constant(value) => value as f32,
            Self::Uniform(low, high) => {
                let value = (low + (high - low) * unit(random)) as f32;
                // Rounding to f32 may reach the upper bound.
                if value < high as f32 { value } else { low as f32 }
            }
            // Box and Muller 1958. The first number is above 0, since its logarithm is taken.
            Self::Normal(mean, sd) => {
                let radius = libm::sqrt(-2.0 * libm::log(1.0 - unit(random)));
                let angle = std::f64::consts::TAU * unit(mix(random));
                (mean + sd * radius * libm::cos(angle)) as f32
            }
        }
    }
}

/// A bijection of u64 whose output bits each depend on all input bits (the finaliser of SplitMix64: Steele et al., OOPSLA
/// 2014).
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(initialiser: Initialiser, first: u64, rows: usize, cols: usize) -> Vec<f32> {
        let mut values = vec![0.0; rows * cols];
        initialiser.fill(42, 3, first, cols, &mut values);
        values
    }

    #[test]
    fn values_do_not_depend_on_how_rows_are_divided() {
        for initialiser in [Initialiser::Uniform(-1.0, 1.0), Initialiser::Normal(0.0, 0.05)] {
            let whole = filled(initialiser, 0, 100, 3);
            let parts = [filled(initialiser, 0, 33, 3), filled(initialiser, 33, 67, 3)].concat();
            assert_eq!(whole, parts);
        }
    }

    #[test]
    fn values_have_the_moments_of_their_distribution() {
        let moments = |values: &[f32]| {
            let count = values.len() as f64;
            let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / count;
            let square = |v: f32| (f64::from(v) - mean) * (f64::from(v) - mean);
            (mean, (values.iter().map(|&v| square(v)).sum::<f64>() / count).sqrt())
        };
        let uniform = filled(Initialiser::Uniform(1.0, 3.0), 0, 10_000, 4);
        assert!(uniform.iter().all(|value| (1.0..3.0).contains(value)));
        let (mean, sd) = moments(&uniform);
        assert!((mean - 2.0).abs() < 0.01 && (sd - 1.0 / 3f64.sqrt()).abs() < 0.01, "{mean} {sd}");
        let (mean, sd) = moments(&filled(Initialiser::Normal(-1.0, 0.5), 0, 10_000, 4));
        assert!((mean + 1.0).abs() < 0.01 && (sd - 0.5).abs() < 0.01, "{mean} {sd}");
        assert_eq!(filled(Initialiser::Constant(0.25), 7, 2, 2), [0.25; 4]);
    }

    #[test]
    fn seeds_tables_rows_and_columns_differ() {
        let normal = Initialiser::Normal(0.0, 1.0);
        let value = |seed, table, row| {
            let mut values = [0.0; 2];
            normal.fill(seed, table, row, 2, &mut values);
            values
        };
        let base = value(1, 0, 0);
        assert_ne!(base[0], base[1]);
        for other in [value(2, 0, 0), value(1, 1, 0), value(1, 0, 1)] {
            assert_ne!(base, other);
        }
    }

    #[test]
    fn numbers_out_of_bounds_are_refused() {
        for (bad, got) in [
            (Initialiser::Constant(f64::NAN), "(got NaN)"),
            (Initialiser::Uniform(1.0, 1.0), "(got [1, 1])"),
            (Initialiser::Normal(0.0, -1.0), "(got [0, -1])"),
        ] {
            let text = bad.check().expect_err("beyond its bounds");
            assert!(text.ends_with(got), "{text}");
        }
    }
}
