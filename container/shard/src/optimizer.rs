//! Update rules. Every operation is one that IEEE 754 defines to the bit (add, multiply, divide, square root; none is
//! fused), so the result is the same on all machines.

use heddle_protocol::spec::Optimizer;

/// An update rule with its parameters as f32, and the objective's l2.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    kind: RuleKind,
    l2: f32,
}

#[derive(Clone, Copy, Debug)]
enum RuleKind {
    Sgd { rate: f32 },
    Ftrl { inverse_alpha: f32, beta: f32, l1: f32, l2: f32 },
    Add,
}

/// Names of the optimizer's state arrays, in their order.
pub(crate) fn state_names(optimizer: &Optimizer) -> &'static [&'static str] {
    match optimizer {
        Optimizer::Sgd { .. } | Optimizer::Add => &[],
        Optimizer::Ftrl { .. } => &["z", "n"],
    }
}

impl Rule {
    pub(crate) fn new(optimizer: &Optimizer, l2: f64) -> Self {
        let kind = match *optimizer {
            Optimizer::Sgd { rate } => RuleKind::Sgd { rate: rate as f32 },
            Optimizer::Ftrl { alpha, beta, l1, l2 } => RuleKind::Ftrl {
                inverse_alpha: (1.0 / alpha) as f32,
                beta: beta as f32,
                l1: l1 as f32,
                l2: l2 as f32,
            },
            Optimizer::Add => RuleKind::Add,
        };
        Self { kind, l2: l2 as f32 }
    }

    /// Whether the rule uses the mean over a step's records, which must not be 0 then.
    pub(crate) fn takes_mean(&self) -> bool {
        !matches!(self.kind, RuleKind::Add)
    }

    /// Updates `values` by `sums`, the gradient summed over `rows` records. All slices have the same length; `z` and `n` are
    /// empty if the rule has no state.
    pub(crate) fn apply(
        &self,
        values: &mut [f32],
        z: &mut [f32],
        n: &mut [f32],
        sums: &[f32],
        rows: u64,
    ) {
        debug_assert_eq!(values.len(), sums.len());
        let count = rows as f32;
        // Division by a power of two and multiplication by its inverse give the same bits. The multiplication takes a sixth
        // of the time, and batch sizes are usually powers of two.
        if rows.is_power_of_two() {
            let inverse = 1.0 / count;
            self.apply_means(values, [z, n], sums, |sum| sum * inverse);
        } else {
            self.apply_means(values, [z, n], sums, |sum| sum / count);
        }
    }

    fn apply_means(
        &self,
        values: &mut [f32],
        [z, n]: [&mut [f32]; 2],
        sums: &[f32],
        mean: impl Fn(f32) -> f32,
    ) {
        let l2 = self.l2;
        match self.kind {
            RuleKind::Add => {
                for (w, g) in values.iter_mut().zip(sums) {
                    *w += g;
                }
            }
            RuleKind::Sgd { rate } => {
                for (w, sum) in values.iter_mut().zip(sums) {
                    let g = mean(*sum) + l2 * *w;
                    *w -= rate * g;
                }
            }
            RuleKind::Ftrl { inverse_alpha, beta, l1, l2: pull } => {
                for (((w, z), n), sum) in values.iter_mut().zip(z).zip(n).zip(sums) {
                    let g = mean(*sum) + l2 * *w;
                    let square = g * g;
                    let root = (*n + square).sqrt();
                    let sigma = (root - n.sqrt()) * inverse_alpha;
                    *z += g - sigma * *w;
                    *n += square;
                    let moved = -(*z - l1.copysign(*z)) / ((beta + root) * inverse_alpha + pull);
                    *w = if z.abs() <= l1 { 0.0 } else { moved };
                }
            }
        }
    }
}

/// Whether all values are finite. An exponent of all ones carries into the sign when 1 is added to it. Collecting the
/// carries needs no early exit and three simple operations per value, which the compiler vectorizes.
pub(crate) fn all_finite(values: &[f32]) -> bool {
    const EXPONENT: u32 = 0x7f80_0000;
    const ONE: u32 = 0x0080_0000;
    let carries = |carries, value: &f32| carries | ((value.to_bits() & EXPONENT) + ONE);
    values.iter().fold(0, carries) >> 31 == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sgd_moves_against_the_mean_gradient_with_l2() {
        let rule = Rule::new(&Optimizer::Sgd { rate: 0.5 }, 0.1);
        let mut w = [1.0, 2.0];
        rule.apply(&mut w, &mut [], &mut [], &[4.0, -8.0], 4);
        assert_eq!(w, [1.0 - 0.5 * (1.0 + 0.1), 2.0 - 0.5 * (-2.0 + 0.1 * 2.0)]);
    }

    #[test]
    fn ftrl_follows_algorithm_1_of_the_paper() {
        // One coordinate in f64, as the paper writes it.
        let (alpha, beta, l1, l2) = (0.1f64, 1.0, 0.5, 0.25);
        let (mut w, mut z, mut n) = (0.0f64, 0.0f64, 0.0f64);
        let rule = Rule::new(&Optimizer::Ftrl { alpha, beta, l1, l2 }, 0.0);
        let (mut ws, mut zs, mut ns) = ([0.0f32], [0.0f32], [0.0f32]);
        for g in [1.0f64, -0.25, 3.0, 0.5, -2.0, 0.0, 0.125] {
            w = if z.abs() <= l1 {
                0.0
            } else {
                -(z - z.signum() * l1) / ((beta + n.sqrt()) / alpha + l2)
            };
            let sigma = ((n + g * g).sqrt() - n.sqrt()) / alpha;
            z += g - sigma * w;
            n += g * g;
            rule.apply(&mut ws, &mut zs, &mut ns, &[(g * 2.0) as f32], 2);
            // The shard computes the weight after the update, the paper before the next prediction.
            let next = if z.abs() <= l1 {
                0.0
            } else {
                -(z - z.signum() * l1) / ((beta + n.sqrt()) / alpha + l2)
            };
            assert!((f64::from(ws[0]) - next).abs() < 1e-5 * next.abs().max(1e-3), "{ws:?} {next}");
        }
        assert!(w != 0.0);
    }

    #[test]
    fn mean_over_a_power_of_two_has_the_bits_of_a_division() {
        let rule = Rule::new(&Optimizer::Sgd { rate: 1.0 }, 0.0);
        for rows in [1, 2, 512, 1 << 20] {
            for sum in [1.0f32, -3.7e-3, 1e-40, f32::MAX, 0.1] {
                let mut w = [0.0];
                rule.apply(&mut w, &mut [], &mut [], &[sum], rows);
                assert_eq!(w[0].to_bits(), (0.0 - sum / rows as f32).to_bits(), "{sum} of {rows}");
            }
        }
    }

    #[test]
    fn l1_gives_exact_zeros() {
        let rule = Rule::new(&Optimizer::Ftrl { alpha: 0.1, beta: 1.0, l1: 10.0, l2: 0.0 }, 0.0);
        let (mut w, mut z, mut n) = ([0.0], [0.0], [0.0]);
        rule.apply(&mut w, &mut z, &mut n, &[9.0], 1);
        assert_eq!((w, z, n), ([0.0], [9.0], [81.0]));
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
