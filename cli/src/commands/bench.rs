//! `heddle bench`: not there yet; the benchmarks of the source tree are.

use crate::failure::{CommandResult, not_yet};

/// Takes nothing yet.
#[derive(Debug, clap::Args)]
pub struct Args {}

pub fn bench(_: &Args) -> CommandResult {
    Err(not_yet("bench")
        .next("in the source tree, `cargo bench` measures frames, parsing and snapshots"))
}
