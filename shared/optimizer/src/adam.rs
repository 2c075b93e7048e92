//! Adam (Kingma and Ba, ICLR 2015, algorithm 1): moments of the gradient, corrected for their start at zero.
//!
//! The correction counts the steps that the shard has applied. Moments of a row that a push does not name rest, as in every
//! sparse optimizer.

use crate::arithmetic::Arithmetic;
use crate::kind::{GradientKind, OptimizerKind, Parameter, ParameterBounds};

pub(crate) const KIND: OptimizerKind = OptimizerKind {
    name: "adam",
    doc: "m = beta1 · m + (1 − beta1) · g, v = beta2 · v + (1 − beta2) · g², \
          w -= rate · (m / (1 − beta1ᵗ)) / (√(v / (1 − beta2ᵗ)) + epsilon) at step t",
    parameters: &[
        Parameter::new("rate", 0.001, ParameterBounds::Positive),
        Parameter::new("beta1", 0.9, ParameterBounds::Fraction),
        Parameter::new("beta2", 0.999, ParameterBounds::Fraction),
        Parameter::new("epsilon", 1e-8, ParameterBounds::Positive),
    ],
    state: &["m", "v"],
    gradient: Some(GradientKind::Mean),
};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Adam {
    betas: [f64; 2],
    rate: f32,
    epsilon: f32,
    /// `1 − betaᵗ` of both.
    corrections: [f32; 2],
}

impl Arithmetic for Adam {
    fn new(parameters: &[f64]) -> Self {
        let betas = [parameters[1], parameters[2]];
        let (rate, epsilon) = (parameters[0] as f32, parameters[3] as f32);
        Self { betas, rate, epsilon, corrections: [1.0; 2] }.at(1)
    }

    fn scaled(self, factor: f32) -> Self {
        Self { rate: self.rate * factor, ..self }
    }

    fn at(self, step: u64) -> Self {
        let correction = |beta| (1.0 - libm::pow(beta, step as f64)) as f32;
        Self { corrections: self.betas.map(correction), ..self }
    }

    #[inline(always)]
    fn block(
        &self,
        values: &mut [f32],
        [m, v]: [&mut [f32]; 2],
        sums: &[f32],
        gradient: impl Fn(f32, f32) -> f32,
    ) {
        let Self { rate, epsilon, corrections: [first, second], .. } = *self;
        let [beta1, beta2] = self.betas.map(|beta| beta as f32);
        for (((w, m), v), sum) in values.iter_mut().zip(m).zip(v).zip(sums) {
            let g = gradient(*sum, *w);
            *m = beta1 * *m + (1.0 - beta1) * g;
            *v = beta2 * *v + (1.0 - beta2) * (g * g);
            *w -= rate * (*m / first) / ((*v / second).sqrt() + epsilon);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::golden::after_ten_steps;

    #[test]
    fn adam_has_its_golden_value() {
        let mut step = 0;
        after_ten_steps("adam", move |w, [m, v], g| {
            step += 1;
            *m = 0.9 * *m + 0.1 * g;
            *v = 0.999 * *v + 0.001 * g * g;
            let (m, v) = (*m / (1.0 - 0.9f64.powi(step)), *v / (1.0 - 0.999f64.powi(step)));
            *w -= 0.001 * m / (v.sqrt() + 1e-8);
        });
    }
}
