//! `heddle export`: the model of any checkpoint, without a job.

use std::path::PathBuf;

use crate::failure::{Outcome, not_yet};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// A checkpoint's folder, such as out/ctr-1a2b3c4d/checkpoints/g1-c4
    #[arg(value_name = "CHECKPOINT")]
    checkpoint: PathBuf,
    /// The folder to write into
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

pub fn export(args: &Args, _: bool) -> Outcome {
    let _ = (&args.checkpoint, &args.dir);
    Err(not_yet("export"))
}
