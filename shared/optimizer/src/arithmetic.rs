//! What a rule computes.

/// The arithmetic of a rule, with its parameters as f32.
pub(crate) trait Arithmetic: Copy {
    /// The rule with these parameters, in the order of the kind.
    fn new(parameters: &[f64]) -> Self;

    /// Whether the end of a pass changes the values.
    const ENDS_PASSES: bool = false;
    /// Whether pushes of a step are combined by taking the least row, not by adding them up.
    const KEEPS_LEAST: bool = false;

    /// The rule for rows of this number of values.
    fn of_rows(self, _cols: usize) -> Self {
        self
    }

    /// The end of a pass, for rows of `cols` values.
    fn end_pass(&self, _values: &mut [f32], _state: [&mut [f32]; 2], _cols: usize) {}

    /// The rule with its rate multiplied by `factor`; a rule without a rate is left as it is.
    fn scaled(self, _factor: f32) -> Self {
        self
    }

    /// The rule as it is at step `step` of the table, from 1, for rules whose formula has the number of the step.
    fn at(self, _step: u64) -> Self {
        self
    }

    /// Sets the state, all zeros, of values with which a table begins. Most rules begin with zeros whatever the values.
    fn begin(&self, _values: &[f32], _state: [&mut [f32]; 2]) {}

    /// Updates a block by `gradient(sum, value)` of each pushed sum, in one pass over the memory. All slices have one length; a
    /// state array that the rule does not have is empty.
    fn block(
        &self,
        values: &mut [f32],
        state: [&mut [f32]; 2],
        sums: &[f32],
        gradient: impl Fn(f32, f32) -> f32,
    );
}
