//! Gradient descent with momentum (Polyak 1964).

use crate::arithmetic::Arithmetic;
use crate::kind::{GradientKind, OptimizerKind, Parameter, ParameterBounds};

pub(crate) const KIND: OptimizerKind = OptimizerKind {
    name: "momentum",
    doc: "v = momentum · v + g, w -= rate · v",
    parameters: &[
        Parameter::required("rate", ParameterBounds::Positive),
        Parameter::new("momentum", 0.9, ParameterBounds::Fraction),
    ],
    state: &["v"],
    gradient: Some(GradientKind::Mean),
};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Momentum {
    rate: f32,
    momentum: f32,
}

impl Arithmetic for Momentum {
    fn new(parameters: &[f64]) -> Self {
        Self { rate: parameters[0] as f32, momentum: parameters[1] as f32 }
    }

    fn scaled(self, factor: f32) -> Self {
        Self { rate: self.rate * factor, ..self }
    }

    #[inline(always)]
    fn block(
        &self,
        values: &mut [f32],
        [v, _]: [&mut [f32]; 2],
        sums: &[f32],
        gradient: impl Fn(f32, f32) -> f32,
    ) {
        let Self { rate, momentum } = *self;
        for ((w, v), sum) in values.iter_mut().zip(v).zip(sums) {
            let g = gradient(*sum, *w);
            *v = momentum * *v + g;
            *w -= rate * *v;
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::golden::after_ten_steps;

    #[test]
    fn momentum_has_its_golden_value() {
        after_ten_steps("momentum", |w, [v, _], g| {
            *v = 0.9 * *v + g;
            *w -= 0.1 * *v;
        });
    }
}
