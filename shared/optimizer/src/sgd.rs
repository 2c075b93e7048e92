//! Plain gradient descent.

use crate::arithmetic::Arithmetic;
use crate::kind::{GradientKind, OptimizerKind, Parameter, ParameterBounds};

pub(crate) const KIND: OptimizerKind = OptimizerKind {
    name: "sgd",
    doc: "w -= rate · g",
    parameters: &[Parameter::required("rate", ParameterBounds::Positive)],
    state: &[],
    gradient: Some(GradientKind::Mean),
};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Sgd {
    rate: f32,
}

impl Arithmetic for Sgd {
    fn new(parameters: &[f64]) -> Self {
        Self { rate: parameters[0] as f32 }
    }

    fn scaled(self, factor: f32) -> Self {
        Self { rate: self.rate * factor }
    }

    #[inline(always)]
    fn block(
        &self,
        values: &mut [f32],
        _none: [&mut [f32]; 2],
        sums: &[f32],
        gradient: impl Fn(f32, f32) -> f32,
    ) {
        let rate = self.rate;
        for (w, sum) in values.iter_mut().zip(sums) {
            let g = gradient(*sum, *w);
            *w -= rate * g;
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Optimizer, Rule};

    #[test]
    fn sgd_moves_against_the_mean_gradient_with_l2() {
        let rule = Rule::new(&Optimizer::sgd(0.5), 0.1);
        let mut w = [1.0, 2.0];
        rule.apply(&mut w, [&mut [], &mut []], &[4.0, -8.0], 4);
        assert_eq!(w, [1.0 - 0.5 * (1.0 + 0.1), 2.0 - 0.5 * (-2.0 + 0.1 * 2.0)]);
    }
}
