//! `heddle predict`: scores files with a model, one score a line, in input order.

use std::path::PathBuf;

use crate::failure::{Outcome, not_yet};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The model's folder
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// The files to score
    #[arg(value_name = "DATA", required = true)]
    data: Vec<PathBuf>,
}

pub fn predict(args: &Args, _: bool) -> Outcome {
    let _ = (&args.model, &args.data);
    Err(not_yet("predict"))
}
