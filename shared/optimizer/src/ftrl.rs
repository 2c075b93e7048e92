//! FTRL-proximal with per-coordinate rates (McMahan et al., KDD 2013, algorithm 1).
//!
//! The squared gradient of a step is added to `n`, not the sum of the records' squares: a feature of every record gets a
//! large `n` and small steps, which makes large batches steady. `beta` has the scale of one record's gradient, so the rule
//! uses sums: with means over B records, `beta` would weigh B times as much, and rare features would hardly move.

use crate::arithmetic::Arithmetic;
use crate::kind::{GradientKind, OptimizerKind, Parameter, ParameterBounds};

pub(crate) const KIND: OptimizerKind = OptimizerKind {
    name: "ftrl",
    doc: "FTRL-proximal (McMahan et al. 2013): n += g², z += g − (√n − √n₀)/alpha · w, \
          w = −(z − sign(z)·l1) / ((beta + √n)/alpha + l2), or 0 where |z| ≤ l1",
    parameters: &[
        Parameter::new("alpha", 0.2, ParameterBounds::Positive),
        Parameter::new("beta", 1.0, ParameterBounds::NotNegative),
        Parameter::new("l1", 0.0, ParameterBounds::NotNegative),
        Parameter::new("l2", 0.0, ParameterBounds::NotNegative),
    ],
    state: &["z", "n"],
    gradient: Some(GradientKind::Sum),
};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Ftrl {
    inverse_alpha: f32,
    beta: f32,
    l1: f32,
    l2: f32,
}

impl Arithmetic for Ftrl {
    fn new(parameters: &[f64]) -> Self {
        Self {
            inverse_alpha: (1.0 / parameters[0]) as f32,
            beta: parameters[1] as f32,
            l1: parameters[2] as f32,
            l2: parameters[3] as f32,
        }
    }

    /// The z of which w is the result at n = 0. With beta = 0 and l2 = 0 there is none but that of w = 0.
    fn begin(&self, values: &[f32], [z, _]: [&mut [f32]; 2]) {
        for (w, z) in values.iter().zip(z).filter(|(w, _)| **w != 0.0) {
            *z = -*w * (self.beta * self.inverse_alpha + self.l2) - self.l1.copysign(*w);
        }
    }

    #[inline(always)]
    fn block(
        &self,
        values: &mut [f32],
        [z, n]: [&mut [f32]; 2],
        sums: &[f32],
        gradient: impl Fn(f32, f32) -> f32,
    ) {
        let Self { inverse_alpha, beta, l1, l2 } = *self;
        for (((w, z), n), sum) in values.iter_mut().zip(z).zip(n).zip(sums) {
            let g = gradient(*sum, *w);
            let square = g * g;
            let root = (*n + square).sqrt();
            let sigma = (root - n.sqrt()) * inverse_alpha;
            *z += g - sigma * *w;
            *n += square;
            let moved = -(*z - l1.copysign(*z)) / ((beta + root) * inverse_alpha + l2);
            *w = if z.abs() <= l1 { 0.0 } else { moved };
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{GradientKind, Optimizer, Rule};

    #[test]
    fn ftrl_follows_algorithm_1_of_the_paper() {
        // One coordinate in f64, as the paper writes it.
        let (alpha, beta, l1, l2) = (0.1f64, 1.0, 0.5, 0.25);
        let (mut w, mut z, mut n) = (0.0f64, 0.0f64, 0.0f64);
        let ftrl = Optimizer::ftrl(alpha, beta, l1, l2).with_gradient(GradientKind::Mean);
        let rule = Rule::new(&ftrl, 0.0);
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
            rule.apply(&mut ws, [&mut zs, &mut ns], &[(g * 2.0) as f32], 2);
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
    fn first_step_continues_from_the_initial_value() {
        let (alpha, beta, g) = (0.5f32, 2.0f32, 0.25f32);
        let rule = Rule::new(&Optimizer::ftrl(alpha.into(), beta.into(), 0.0, 0.0), 0.0);
        for start in [0.5f32, -0.125, 0.0] {
            let (mut w, mut z, mut n) = ([start], [0.0], [0.0]);
            rule.begin(&w, [&mut z, &mut n]);
            rule.apply(&mut w, [&mut z, &mut n], &[g], 1);
            let expected = start - alpha * g / (beta + g);
            assert!((w[0] - expected).abs() < 1e-6, "{w:?} {expected}");
        }
        let rule = Rule::new(&Optimizer::ftrl(0.5, 2.0, 0.75, 0.25), 0.0);
        let (mut w, mut z, mut n) = ([0.5], [0.0], [0.0]);
        rule.begin(&w, [&mut z, &mut n]);
        rule.apply(&mut w, [&mut z, &mut n], &[0.0], 1);
        assert_eq!(w, [0.5], "a gradient of zero keeps the value");
    }

    #[test]
    fn l1_gives_exact_zeros() {
        let rule = Rule::new(&Optimizer::ftrl(0.1, 1.0, 10.0, 0.0), 0.0);
        let (mut w, mut z, mut n) = ([0.0], [0.0], [0.0]);
        rule.apply(&mut w, [&mut z, &mut n], &[9.0], 1);
        assert_eq!((w, z, n), ([0.0], [9.0], [81.0]));
    }
}
