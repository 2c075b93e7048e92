//! Sums: pushes are added as they are, not averaged. For counts and sums, not for training.
//!
//! f32 alone stops counting at 2²⁴. The rounding error of each addition is kept beside the sum (two-sum: Knuth, The Art of
//! Computer Programming, volume 2, 4.2.2), so that counts are exact to 2⁴⁸. A pull gives the rounded sum.

use crate::arithmetic::Arithmetic;
use crate::kind::OptimizerKind;

pub(crate) const KIND: OptimizerKind = OptimizerKind {
    name: "add",
    doc: "w += pushed value; for counts and sums in tables of one's own, exact to 2⁴⁸",
    parameters: &[],
    state: &["low"],
    gradient: None,
};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Add;

/// `a + b` rounded, and the rounding error.
#[inline(always)]
fn two_sum(a: f32, b: f32) -> (f32, f32) {
    let sum = a + b;
    let of_b = sum - a;
    (sum, (a - (sum - of_b)) + (b - of_b))
}

impl Arithmetic for Add {
    fn new(_none: &[f64]) -> Self {
        Self
    }

    #[inline(always)]
    fn block(
        &self,
        values: &mut [f32],
        [low, _]: [&mut [f32]; 2],
        sums: &[f32],
        _gradient: impl Fn(f32, f32) -> f32,
    ) {
        add_exactly(values, low, sums);
    }
}

/// Adds pushes to sums whose rounding errors are kept in `low`.
#[inline(always)]
pub(crate) fn add_exactly(values: &mut [f32], low: &mut [f32], pushes: &[f32]) {
    for ((w, low), g) in values.iter_mut().zip(low).zip(pushes) {
        let (sum, error) = two_sum(*w, *g);
        let (high, rest) = two_sum(sum, *low + error);
        // The error of an overflow is not a number; the sum stays infinite.
        let finite = high.is_finite();
        *w = if finite { high } else { sum };
        *low = if finite { rest } else { 0.0 };
    }
}

#[cfg(test)]
mod tests {
    use crate::{Optimizer, Rule};

    #[test]
    fn ones_are_counted_beyond_the_digits_of_an_f32() {
        let rule = Rule::new(&Optimizer::add(), 0.0);
        let (mut count, mut low) = ([(1u32 << 24) as f32], [0.0]);
        for _ in 0..1001 {
            rule.apply(&mut count, [&mut low, &mut []], &[1.0], 0);
        }
        assert_eq!(f64::from(count[0]) + f64::from(low[0]), f64::from((1u32 << 24) + 1001));
        assert_eq!(count[0], ((1u32 << 24) + 1000) as f32, "the rounded sum, ties to even");
        // A sum of f32 alone stays where it is.
        assert_eq!((1u32 << 24) as f32 + 1.0, (1u32 << 24) as f32);
    }

    #[test]
    fn an_overflow_is_infinite_and_stays_so() {
        let rule = Rule::new(&Optimizer::add(), 0.0);
        let (mut sum, mut low) = ([f32::MAX], [0.0]);
        for push in [f32::MAX, -1.0, 1.0] {
            rule.apply(&mut sum, [&mut low, &mut []], &[push], 0);
            assert_eq!((sum[0], low[0]), (f32::INFINITY, 0.0));
        }
    }
}
