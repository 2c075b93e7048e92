//! Checks a rule against its formula in f64 over ten steps.

use std::collections::BTreeMap;

use crate::{Optimizer, OptimizerKind, Rule};

/// Compares ten steps of the rule with defaults (a rate without default is 0.1) with `formula` in f64, which gets the value,
/// the state and the gradient.
pub(crate) fn after_ten_steps(name: &str, mut formula: impl FnMut(&mut f64, &mut [f64; 2], f64)) {
    let kind = OptimizerKind::find(name).expect("a rule of this name");
    let given: BTreeMap<_, _> = kind
        .parameters
        .iter()
        .filter(|parameter| parameter.default.is_none())
        .map(|parameter| (parameter.name.to_owned(), 0.1))
        .collect();
    let rule = Rule::new(&Optimizer::new(kind, &given, None).expect("valid parameters"), 0.0);
    let mut arrays = [[0.5f32], [0.0], [0.0]];
    let (mut w, mut state) = (0.5f64, [0.0f64; 2]);
    for (step, g) in (1..).zip([1.0, -0.25, 3.0, 0.5, -2.0, 0.0, 0.125, 0.75, -0.5, 1.5]) {
        let [values, first, second] = &mut arrays;
        let held = |n: usize| usize::from(kind.state.len() > n);
        let state_arrays = [&mut first[..held(0)], &mut second[..held(1)]];
        // One record, so that sums and means are the same.
        rule.at(step).apply(values, state_arrays, &[g as f32], 1);
        formula(&mut w, &mut state, g);
    }
    let got = f64::from(arrays[0][0]);
    assert!((got - w).abs() < 1e-5 * w.abs().max(0.1), "{name}: {got} instead of {w}");
    assert!((w - 0.5).abs() > 1e-3, "{name} moved");
}
