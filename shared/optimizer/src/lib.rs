//! Update rules: what a pushed gradient does to a parameter and to the optimizer's state beside it.
//!
//! A rule is one file: its name, parameters with defaults and bounds, state arrays, and a function over a block of values.
//! The job file, its reference page, the memory check, the shard's planes and its files follow from that table, so a new
//! rule adds a file and a line to `rules!`.
//!
//! Every operation on a value is one that IEEE 754 defines to the bit (add, multiply, divide, square root; none is fused),
//! so a rule gives the same bits on all machines, with blocks of any length and with vector instructions of any width.
//! Powers and cosines of the step's number come from `libm`, whose results do not depend on the machine.
//!
//! ```
//! use heddle_optimizer::{Optimizer, Rule};
//!
//! let rule = Rule::new(&Optimizer::sgd(0.5), 0.0);
//! let mut values = [1.0];
//! // A gradient summed over 4 records; sgd uses its mean.
//! rule.apply(&mut values, [&mut [], &mut []], &[8.0], 4);
//! assert_eq!(values, [0.0]);
//! ```

mod arithmetic;
#[cfg(test)]
mod golden;
mod initialiser;
mod kind;
mod optimizer;
mod prefetch;
mod rule;
mod schedule;

use arithmetic::Arithmetic;

pub use initialiser::Initialiser;
pub use kind::{GradientKind, OptimizerKind, Parameter, ParameterBounds};
pub use least::is_less;
pub use optimizer::Optimizer;
pub use prefetch::{prefetch, prefetch_cells};
pub use rule::{Rule, all_finite};
pub use schedule::{SCHEDULE_KINDS, Schedule, ScheduleKind};

/// Declares the files of the rules, the list of their kinds, and one type that holds the coefficients of any of them.
macro_rules! rules {
    ($($module:ident :: $rule:ident),* $(,)?) => {
        $(mod $module;)*

        /// All rules, in the order of the documentation.
        pub const KINDS: &[&OptimizerKind] = &[$(&$module::KIND),*];

        /// The coefficients of a rule as f32.
        #[derive(Clone, Copy, Debug)]
        enum Coefficients {
            $($rule($module::$rule)),*
        }

        impl Coefficients {
            /// The coefficients of `kind` with these parameters.
            fn new(kind: &OptimizerKind, parameters: &[f64]) -> Self {
                $(
                    if kind.name == $module::KIND.name {
                        return Self::$rule(<$module::$rule as Arithmetic>::new(parameters));
                    }
                )*
                unreachable!("every kind is in the list")
            }

            /// The rule at step `step`, with its rate multiplied by `factor`.
            fn at(self, step: u64, factor: f32) -> Self {
                match self {
                    $(Self::$rule(rule) => Self::$rule(rule.scaled(factor).at(step))),*
                }
            }

            /// The rule for rows of this number of values.
            fn of_rows(self, cols: usize) -> Self {
                match self {
                    $(Self::$rule(rule) => Self::$rule(rule.of_rows(cols))),*
                }
            }

            /// Whether the end of a pass changes the values.
            fn ends_passes(&self) -> bool {
                match self {
                    $(Self::$rule(_) => <$module::$rule as Arithmetic>::ENDS_PASSES),*
                }
            }

            /// Whether the least row of a step's pushes counts, not their sum.
            fn keeps_least(&self) -> bool {
                match self {
                    $(Self::$rule(_) => <$module::$rule as Arithmetic>::KEEPS_LEAST),*
                }
            }

            /// The end of a pass.
            fn end_pass(&self, values: &mut [f32], state: [&mut [f32]; 2], cols: usize) {
                match self {
                    $(Self::$rule(rule) => rule.end_pass(values, state, cols)),*
                }
            }

            /// Sets the state, all zeros, of values with which a table begins.
            fn begin(&self, values: &[f32], state: [&mut [f32]; 2]) {
                match self {
                    $(Self::$rule(rule) => rule.begin(values, state)),*
                }
            }

            /// Updates a block by `gradient(sum, value)` of each of `sums`, which has the length of all arrays that the rule
            /// uses.
            #[inline(always)]
            fn block(
                &self,
                values: &mut [f32],
                state: [&mut [f32]; 2],
                sums: &[f32],
                gradient: impl Fn(f32, f32) -> f32,
            ) {
                match self {
                    $(Self::$rule(rule) => rule.block(values, state, sums, gradient)),*
                }
            }
        }
    };
}

rules! {
    ftrl::Ftrl,
    sgd::Sgd,
    momentum::Momentum,
    adagrad::Adagrad,
    rmsprop::Rmsprop,
    adadelta::Adadelta,
    adam::Adam,
    add::Add,
    mean::Mean,
    least::Least,
}
