//! AdaGrad with diagonal scaling (Duchi et al., JMLR 2011).

use crate::arithmetic::Arithmetic;
use crate::kind::{GradientKind, OptimizerKind, Parameter, ParameterBounds};

pub(crate) const KIND: OptimizerKind = OptimizerKind {
    name: "adagrad",
    doc: "n += g², w -= rate · g / (√n + epsilon)",
    parameters: &[
        Parameter::new("rate", 0.1, ParameterBounds::Positive),
        Parameter::new("epsilon", 1e-6, ParameterBounds::Positive),
    ],
    state: &["n"],
    gradient: Some(GradientKind::Sum),
};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Adagrad {
    rate: f32,
    epsilon: f32,
}

impl Arithmetic for Adagrad {
    fn new(parameters: &[f64]) -> Self {
        Self { rate: parameters[0] as f32, epsilon: parameters[1] as f32 }
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
        let Self { rate, epsilon } = *self;
        for ((w, n), sum) in values.iter_mut().zip(n).zip(sums) {
            let g = gradient(*sum, *w);
            *n += g * g;
            *w -= rate * g / (n.sqrt() + epsilon);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::golden::after_ten_steps;

    #[test]
    fn adagrad_has_its_golden_value() {
        after_ten_steps("adagrad", |w, [n, _], g| {
            *n += g * g;
            *w -= 0.1 * g / (n.sqrt() + 1e-6);
        });
    }
}
