//! The built-in algorithms reach the quality of converged solvers, on the data of the examples and on generated data.

mod generated;
mod harness;
mod letter;
mod spambase;
