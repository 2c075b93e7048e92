//! Measures Heddle on a machine, beside a baseline in the same run: what `heddle bench` prints.
//!
//! A measurement alternates between Heddle and its baseline and gives medians, since on a shared machine only ratios of
//! neighbouring moments mean anything. A module measures one part: [`net`] the exchange with a pserver, [`table`] the
//! rows of a shard, [`read`] the parser, [`checkpoint`] a save and the pushes meanwhile, [`sparse`] the same with a sparse
//! table, [`train`] a plain loop over the same records, [`steps`] the parts of a step. [`peer`] and [`raw_peer`] are the ends of
//! connections that they need.

pub mod checkpoint;
mod cores;
mod encrypted;
pub mod measurement;
pub mod net;
pub mod peer;
pub mod random;
pub mod raw_peer;
pub mod read;
pub mod requests;
mod sealing;
pub mod sparse;
pub mod steps;
pub mod table;
pub mod train;

pub use measurement::{Measurement, Samples};
