//! The least row that was pushed: rows are compared by their first column, then by the second, and so on.
//!
//! The result does not depend on the order of the pushes, nor on their number. A choice by a random key in the first column
//! is a draw without a coordinator.

use crate::arithmetic::Arithmetic;
use crate::kind::OptimizerKind;

pub(crate) const KIND: OptimizerKind = OptimizerKind {
    name: "least",
    doc:
        "a pushed row replaces the row if its first column is less; if that is equal, the second column decides, and so on",
    parameters: &[],
    state: &[],
    gradient: None,
};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Least {
    cols: usize,
}

/// Whether row `a` is less than row `b` of the same length. −0 is less than 0, so that no two rows are equal but those of
/// the same bits.
#[must_use]
pub fn is_less(a: &[f32], b: &[f32]) -> bool {
    let unequal = a.iter().zip(b).map(|(a, b)| a.total_cmp(b)).find(|order| order.is_ne());
    unequal.is_some_and(std::cmp::Ordering::is_lt)
}

impl Arithmetic for Least {
    const KEEPS_LEAST: bool = true;

    fn new(_none: &[f64]) -> Self {
        Self { cols: 1 }
    }

    fn of_rows(self, cols: usize) -> Self {
        Self { cols }
    }

    #[inline(always)]
    fn block(
        &self,
        values: &mut [f32],
        _state: [&mut [f32]; 2],
        sums: &[f32],
        _gradient: impl Fn(f32, f32) -> f32,
    ) {
        for (row, push) in values.chunks_exact_mut(self.cols).zip(sums.chunks_exact(self.cols)) {
            if is_less(push, row) {
                row.copy_from_slice(push);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Optimizer, Rule};

    #[test]
    fn least_row_stays_in_any_order_of_pushes() {
        let rule = Rule::new(&Optimizer::least(), 0.0).of_rows(2);
        let pushes = [[0.5, 9.0], [0.25, 3.0], [0.25, 2.0], [0.75, 0.0]];
        for start in 0..pushes.len() {
            let mut row = [f32::MAX, f32::MAX];
            for n in 0..2 * pushes.len() {
                rule.apply(&mut row, [&mut [], &mut []], &pushes[(start + n) % pushes.len()], 0);
            }
            assert_eq!(row, [0.25, 2.0]);
        }
        let mut rows = [1.0, 1.0, -1.0, -1.0];
        rule.apply(&mut rows, [&mut [], &mut []], &[0.0, 5.0, 0.0, 5.0], 0);
        assert_eq!(rows, [0.0, 5.0, -1.0, -1.0]);
    }
}
