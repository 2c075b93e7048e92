//! Means of what a pass pushes: for centres of clusters and other averages of records.
//!
//! Pushes are added up as by `add`, beside the values, which stay as they are during the pass. When it ends, the values
//! become the sums divided by the sum of the last column, the number of records or their weight.

use crate::add::add_exactly;
use crate::arithmetic::Arithmetic;
use crate::kind::OptimizerKind;

pub(crate) const KIND: OptimizerKind = OptimizerKind {
    name: "mean",
    doc:
        "pushes are added up; when the pass ends, a row becomes its sums divided by the sum of its last column, which becomes that sum; a row whose last column is 0 then keeps its other columns",
    parameters: &[],
    state: &["sum", "low"],
    gradient: None,
};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Mean;

impl Arithmetic for Mean {
    const ENDS_PASSES: bool = true;

    fn new(_none: &[f64]) -> Self {
        Self
    }

    #[inline(always)]
    fn block(
        &self,
        _values: &mut [f32],
        [sum, low]: [&mut [f32]; 2],
        sums: &[f32],
        _gradient: impl Fn(f32, f32) -> f32,
    ) {
        add_exactly(sum, low, sums);
    }

    fn end_pass(&self, values: &mut [f32], [sum, low]: [&mut [f32]; 2], cols: usize) {
        let sums = sum.chunks_exact(cols).zip(low.chunks_exact(cols));
        for (values, (sum, low)) in values.chunks_exact_mut(cols).zip(sums) {
            let total = |col: usize| f64::from(sum[col]) + f64::from(low[col]);
            let count = total(cols - 1);
            values[cols - 1] = count as f32;
            if count != 0.0 {
                for (col, value) in values[..cols - 1].iter_mut().enumerate() {
                    *value = (total(col) / count) as f32;
                }
            }
        }
        sum.fill(0.0);
        low.fill(0.0);
    }
}

#[cfg(test)]
mod tests {
    use crate::{Optimizer, Rule};

    #[test]
    fn rows_become_means_when_the_pass_ends() {
        let rule = Rule::new(&Optimizer::mean(), 0.0).of_rows(3);
        // Two rows of two sums and a count; nothing is pushed to the second one.
        let mut values = [9.0, 9.0, 1.0, 5.0, -5.0, 7.0];
        let (mut sum, mut low) = ([0.0; 6], [0.0; 6]);
        for push in [[1.0, 2.0, 1.0], [3.0, -8.0, 2.0], [2.0, 0.0, 1.0]] {
            rule.apply(&mut values[..3], [&mut sum[..3], &mut low[..3]], &push, 0);
        }
        assert_eq!(values, [9.0, 9.0, 1.0, 5.0, -5.0, 7.0], "values rest during the pass");
        rule.end_pass(&mut values, [&mut sum, &mut low], 3);
        assert_eq!(values, [1.5, -1.5, 4.0, 5.0, -5.0, 0.0]);
        assert_eq!((sum, low), ([0.0; 6], [0.0; 6]));
    }

    #[test]
    fn counts_beyond_the_digits_of_an_f32_divide_exactly() {
        let rule = Rule::new(&Optimizer::mean(), 0.0).of_rows(2);
        let (mut values, mut sum, mut low) = ([0.0; 2], [0.0; 2], [0.0; 2]);
        let many = (1u32 << 24) as f32;
        for push in [[many * 3.0, many], [3.0, 1.0], [3.0, 1.0], [3.0, 1.0]] {
            rule.apply(&mut values, [&mut sum, &mut low], &push, 0);
        }
        rule.end_pass(&mut values, [&mut sum, &mut low], 2);
        assert_eq!(values[0], 3.0);
    }
}
