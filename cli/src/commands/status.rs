//! `heddle status`: prints the state of a job.

use super::NamedJobArgs;
use crate::am_client;
use crate::failure::CommandResult;

pub fn status(args: &NamedJobArgs, json: bool) -> CommandResult {
    let mut job = args.named()?;
    am_client::runtime()?.block_on(job.print_status(json))
}
