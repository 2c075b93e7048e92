//! `heddle kill`: ends a job, at once or after a checkpoint.

use super::RunArgs;
use crate::am_client;
use crate::failure::CommandResult;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    run: RunArgs,
    /// Take a checkpoint first, so that a continued job repeats no work
    #[arg(long)]
    checkpoint: bool,
}

pub fn kill(args: &Args, json: bool) -> CommandResult {
    let mut job = args.run.named()?;
    am_client::runtime()?.block_on(job.kill(args.checkpoint, json))
}
