//! The trainer process: reads data, computes gradients, and writes models.

pub mod algorithm;
pub mod batch;
pub mod lanes;
pub mod reader;
