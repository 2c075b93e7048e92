//! A rule ready to be applied: parameters as f32, and the objective's l2.

use crate::Coefficients;
use crate::kind::GradientKind;
use crate::optimizer::Optimizer;
use crate::schedule::Schedule;

/// An update rule with its parameters as f32, and the objective's l2.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    coefficients: Coefficients,
    gradient: Option<GradientKind>,
    l2: f32,
    schedule: Schedule,
    /// Whether the processor has AVX2.
    wide: bool,
}

impl Rule {
    /// The rule of `optimizer` on a table with this strength of l2, at a constant rate.
    #[must_use]
    pub fn new(optimizer: &Optimizer, l2: f64) -> Self {
        Self {
            coefficients: Coefficients::new(optimizer.kind(), optimizer.parameters()),
            gradient: optimizer.gradient(),
            l2: l2 as f32,
            schedule: Schedule::CONSTANT,
            wide: is_wide(),
        }
    }

    /// The rule with a schedule of its rate.
    #[must_use]
    pub fn with_schedule(self, schedule: Schedule) -> Self {
        Self { schedule, ..self }
    }

    /// The rule as it is at step `step` of the table, from 1: the rate of the schedule, and corrections that depend on the
    /// number of the step.
    #[must_use]
    pub fn at(&self, step: u64) -> Self {
        Self { coefficients: self.coefficients.at(step, self.schedule.factor(step)), ..*self }
    }

    /// The rule for rows of `cols` values, 1 unless it is given. Blocks hold whole rows.
    #[must_use]
    pub fn of_rows(self, cols: usize) -> Self {
        Self { coefficients: self.coefficients.of_rows(cols), ..self }
    }

    /// Whether [`Self::end_pass`] changes anything.
    #[must_use]
    pub fn ends_passes(&self) -> bool {
        self.coefficients.ends_passes()
    }

    /// Whether pushes of a step are combined by the least row ([`is_less`](crate::is_less)), not by their sum.
    #[must_use]
    pub fn keeps_least(&self) -> bool {
        self.coefficients.keeps_least()
    }

    /// The end of a training pass, for whole rows of `cols` values. All slices have the same length.
    pub fn end_pass(&self, values: &mut [f32], state: [&mut [f32]; 2], cols: usize) {
        self.coefficients.end_pass(values, state, cols);
    }

    /// Whether a step without records changes nothing: all rules but those that add pushes as they are.
    #[must_use]
    pub fn needs_records(&self) -> bool {
        self.gradient.is_some()
    }

    /// Sets the state, all zeros, of values with which a table begins, so that the first step continues from them.
    pub fn begin(&self, values: &[f32], state: [&mut [f32]; 2]) {
        self.coefficients.begin(values, state);
    }

    /// Updates `values` by `sums`, the gradient summed over `rows` records. All slices have the same length; a state array
    /// that the rule does not have is empty. `rows` is above 0 where the rule needs records.
    pub fn apply(&self, values: &mut [f32], state: [&mut [f32]; 2], sums: &[f32], rows: u64) {
        debug_assert_eq!(values.len(), sums.len());
        debug_assert!(rows > 0 || !self.needs_records());
        if self.wide {
            self.apply_wide(values, state, sums, rows);
        } else {
            self.apply_block(values, state, sums, rows);
        }
    }

    #[inline(always)]
    fn apply_block(&self, values: &mut [f32], state: [&mut [f32]; 2], sums: &[f32], rows: u64) {
        let Self { coefficients, l2, .. } = *self;
        let count = rows as f32;
        match self.gradient {
            None => coefficients.block(values, state, sums, |sum, _| sum),
            Some(GradientKind::Sum) => {
                let l2 = count * l2;
                coefficients.block(values, state, sums, |sum, w| sum + l2 * w);
            }
            // Division by a power of two and multiplication by its inverse give the same bits. The multiplication takes a
            // sixth of the time, and batch sizes are usually powers of two.
            Some(GradientKind::Mean) if rows.is_power_of_two() => {
                let inverse = 1.0 / count;
                coefficients.block(values, state, sums, |sum, w| sum * inverse + l2 * w);
            }
            Some(GradientKind::Mean) => {
                coefficients.block(values, state, sums, |sum, w| sum / count + l2 * w);
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "calls a function that is compiled for AVX2")]
    fn apply_wide(&self, values: &mut [f32], state: [&mut [f32]; 2], sums: &[f32], rows: u64) {
        /// The same code, compiled for vectors of eight.
        #[target_feature(enable = "avx2")]
        fn compiled(
            rule: &Rule,
            values: &mut [f32],
            state: [&mut [f32]; 2],
            sums: &[f32],
            rows: u64,
        ) {
            rule.apply_block(values, state, sums, rows);
        }
        // SAFETY: `wide` is set only where the processor reports AVX2.
        unsafe { compiled(self, values, state, sums, rows) }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn apply_wide(&self, values: &mut [f32], state: [&mut [f32]; 2], sums: &[f32], rows: u64) {
        self.apply_block(values, state, sums, rows);
    }
}

fn is_wide() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::is_x86_feature_detected!("avx2");
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

/// Whether all values are finite. An exponent of all ones carries into the sign when 1 is added to it. Collecting the
/// carries needs no early exit and three simple operations per value, which the compiler vectorizes.
#[must_use]
pub fn all_finite(values: &[f32]) -> bool {
    const EXPONENT: u32 = 0x7f80_0000;
    const ONE: u32 = 0x0080_0000;
    let carries = |carries, value: &f32| carries | ((value.to_bits() & EXPONENT) + ONE);
    values.iter().fold(0, carries) >> 31 == 0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::KINDS;
    use std::collections::BTreeMap;

    fn every_rule() -> impl Strategy<Value = Optimizer> {
        let gradient = prop::bool::ANY;
        (0..KINDS.len(), gradient).prop_map(|(kind, mean)| {
            let kind = KINDS[kind];
            let missing = kind.parameters.iter().filter(|parameter| parameter.default.is_none());
            let given: BTreeMap<_, _> =
                missing.map(|parameter| (parameter.name.to_owned(), 0.5)).collect();
            let optimizer = Optimizer::new(kind, &given, None).expect("defaults are valid");
            optimizer.with_gradient(if mean { GradientKind::Mean } else { GradientKind::Sum })
        })
    }

    /// Values, states and sums for a rule, as bits.
    struct Arrays {
        values: Vec<f32>,
        state: [Vec<f32>; 2],
    }

    impl Arrays {
        fn new(optimizer: &Optimizer, values: &[f32]) -> Self {
            let held = optimizer.kind().state.len();
            let state = |index: usize| match index < held {
                // State of real rules is not negative where it holds squares.
                true => values.iter().map(|w| w * w).collect(),
                false => Vec::new(),
            };
            Self { values: values.to_vec(), state: [state(0), state(1)] }
        }

        fn bits(&self) -> Vec<u32> {
            let all = self.values.iter().chain(&self.state[0]).chain(&self.state[1]);
            all.map(|value| value.to_bits()).collect()
        }
    }

    fn number() -> impl Strategy<Value = f32> {
        prop_oneof![
            8 => -3.0f32..3.0,
            1 => Just(0.0),
            1 => Just(-0.0),
            1 => Just(1e-40),
            1 => prop::num::f32::NORMAL,
        ]
    }

    proptest! {
        /// One value at a time, blocks of any length, and vectors give the same bits.
        #[test]
        fn blocks_and_vectors_have_the_bits_of_the_scalar_rule(
            optimizer in every_rule(),
            pairs in prop::collection::vec((number(), number()), 1..700),
            rows in 1u64..5000,
            l2 in prop_oneof![Just(0.0), 0.0f64..0.1],
        ) {
            let (values, sums): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
            let rule = Rule::new(&optimizer, l2);
            let narrow = Rule { wide: false, ..rule };
            let mut whole = Arrays::new(&optimizer, &values);
            let mut plain = Arrays::new(&optimizer, &values);
            let mut single = Arrays::new(&optimizer, &values);
            let [first, second] = &mut whole.state;
            rule.apply(&mut whole.values, [first, second], &sums, rows);
            let [first, second] = &mut plain.state;
            narrow.apply(&mut plain.values, [first, second], &sums, rows);
            for (i, sum) in sums.iter().enumerate() {
                let [first, second] = &mut single.state;
                let own = |state: &mut Vec<f32>| if state.is_empty() { 0..0 } else { i..i + 1 };
                let (a, b) = (own(first), own(second));
                let state = [&mut first[a], &mut second[b]];
                narrow.apply(&mut single.values[i..=i], state, &[*sum], rows);
            }
            prop_assert_eq!(whole.bits(), single.bits());
            prop_assert_eq!(plain.bits(), single.bits());
        }

        /// Sums with `beta · rows` are means with `beta`, for powers of two to the bit but for the scale of z and n.
        #[test]
        fn ftrl_on_sums_with_scaled_beta_is_ftrl_on_means(
            gradients in prop::collection::vec(-2.0f32..2.0, 1..20),
            exponent in 0u32..10,
        ) {
            let rows = 1u64 << exponent;
            let mean = Optimizer::ftrl(0.5, 1.0, 0.0, 0.0).with_gradient(GradientKind::Mean);
            let mean = Rule::new(&mean, 0.0);
            let sum = Rule::new(&Optimizer::ftrl(0.5, rows as f64, 0.0, 0.0), 0.0);
            let (mut a, mut b) = ([[0.0f32]; 3], [[0.0f32]; 3]);
            for g in gradients {
                let [w, z, n] = &mut a;
                mean.apply(w, [z, n], &[g], rows);
                let [w, z, n] = &mut b;
                sum.apply(w, [z, n], &[g], rows);
            }
            prop_assert_eq!(a[0][0].to_bits(), b[0][0].to_bits());
        }
    }

    #[test]
    fn mean_over_a_power_of_two_has_the_bits_of_a_division() {
        let rule = Rule::new(&Optimizer::sgd(1.0), 0.0);
        for rows in [1, 2, 512, 1 << 20] {
            for sum in [1.0f32, -3.7e-3, 1e-40, f32::MAX, 0.1] {
                let mut w = [0.0];
                rule.apply(&mut w, [&mut [], &mut []], &[sum], rows);
                assert_eq!(w[0].to_bits(), (0.0 - sum / rows as f32).to_bits(), "{sum} of {rows}");
            }
        }
    }

    #[test]
    fn l2_of_a_sum_counts_once_for_each_record() {
        let mut w = [2.0];
        let rule = Rule::new(&Optimizer::sgd(0.5).with_gradient(GradientKind::Sum), 0.25);
        rule.apply(&mut w, [&mut [], &mut []], &[3.0], 4);
        assert_eq!(w, [2.0 - 0.5 * (3.0 + 4.0 * 0.25 * 2.0)]);
    }

    #[test]
    fn non_finite_values_are_detected_at_any_index() {
        let mut values = vec![1.0f32; 1000];
        assert!(all_finite(&values));
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 500, 999] {
                values[at] = bad;
                assert!(!all_finite(&values));
                values[at] = -0.0;
            }
        }
        assert!(all_finite(&[f32::MAX, f32::MIN_POSITIVE / 2.0]));
    }
}
