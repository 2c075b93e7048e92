//! RMSProp: AdaGrad with a decaying mean of squares (Tieleman and Hinton 2012, lecture 6.5).

use crate::arithmetic::Arithmetic;
use crate::kind::{GradientKind, OptimizerKind, Parameter, ParameterBounds};

pub(crate) const KIND: OptimizerKind = OptimizerKind {
    name: "rmsprop",
    doc: "n = decay · n + (1 − decay) · g², w -= rate · g / (√n + epsilon)",
    parameters: &[
        Parameter::new("rate", 0.01, ParameterBounds::Positive),
        Parameter::new("decay", 0.9, ParameterBounds::Fraction),
        Parameter::new("epsilon", 1e-6, ParameterBounds::Positive),
    ],
    state: &["n"],
    gradient: Some(GradientKind::Mean),
};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Rmsprop {
    rate: f32,
    decay: f32,
    rest: f32,
    epsilon: f32,
}

impl Arithmetic for Rmsprop {
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
        [n, _]: [&mut [f32]; 2],
        sums: &[f32],
        gradient: impl Fn(f32, f32) -> f32,
    ) {
        let Self { rate, decay, rest, epsilon } = *self;
        for ((w, n), sum) in values.iter_mut().zip(n).zip(sums) {
            let g = gradient(*sum, *w);
            *n = decay * *n + rest * (g * g);
            *w -= rate * g / (n.sqrt() + epsilon);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::golden::after_ten_steps;

    #[test]
    fn rmsprop_has_its_golden_value() {
        after_ten_steps("rmsprop", |w, [n, _], g| {
            *n = 0.9 * *n + 0.1 * g * g;
            *w -= 0.01 * g / (n.sqrt() + 1e-6);
        });
    }
}
