//! What tests, the benchmark and the simulation share.
#![allow(dead_code)]

pub mod random;
pub mod world;
