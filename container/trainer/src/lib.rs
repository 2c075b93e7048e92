//! The trainer process: reads data, computes gradients, and writes models.

pub mod batch;
pub mod reader;
