//! AdaDelta (Zeiler 2012, algorithm 1), with a rate as a factor of the step.

use crate::arithmetic::Arithmetic;
use crate::kind::{GradientKind, OptimizerKind, Parameter, ParameterBounds};

pub(crate) const KIND: OptimizerKind = OptimizerKind {
    name: "adadelta",
    doc: "n = decay · n + (1 − decay) · g², Δ = √(d + epsilon) / √(n + epsilon) · g, \
          d = decay · d + (1 − decay) · Δ², w -= rate · Δ",
    parameters: &[
        Parameter::new("rate", 1.0, ParameterBounds::Positive),
        Parameter::new("decay", 0.95, ParameterBounds::Fraction),
        Parameter::new("epsilon", 1e-6, ParameterBounds::Positive),
    ],
    state: &["n", "d"],
    gradient: Some(GradientKind::Mean),
};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Adadelta {
    rate: f32,
    decay: f32,
    rest: f32,
    epsilon: f32,
}

impl Arithmetic for Adadelta {
    fn new(parameters: &[f64]) -> Self {
        Self {
            rate: parameters[0] as f32,
            decay: parameters[1] as f32,
            rest: (1.0 - parameters[1]) as f32,
            epsilon: parameters[2] as f32,
        }
    }

    fn scaled(self, factor: f32) -> Self {
        Self { rate: self.rate * factor, ..self }
    }

    #[inline(always)]
    fn block(
        &self,
        values: &mut [f32],
        [n, d]: [&mut [f32]; 2],
        sums: &[f32],
        gradient: impl Fn(f32, f32) -> f32,
    ) {
        let Self { rate, decay, rest, epsilon } = *self;
        for (((w, n), d), sum) in values.iter_mut().zip(n).zip(d).zip(sums) {
            let g = gradient(*sum, *w);
            *n = decay * *n + rest * (g * g);
            let step = (*d + epsilon).sqrt() / (*n + epsilon).sqrt() * g;
            *d = decay * *d + rest * (step * step);
            *w -= rate * step;
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::golden::after_ten_steps;

    #[test]
    fn adadelta_has_its_golden_value() {
        after_ten_steps("adadelta", |w, [n, d], g| {
            *n = 0.95 * *n + 0.05 * g * g;
            let step = (*d + 1e-6).sqrt() / (*n + 1e-6).sqrt() * g;
            *d = 0.95 * *d + 0.05 * step * step;
            *w -= step;
        });
    }
}
