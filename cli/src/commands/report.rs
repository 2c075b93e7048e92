//! `heddle report`: prints the report of an ended job.

use super::NamedJobArgs;
use crate::am_client;
use crate::failure::CommandResult;

pub fn report(args: &NamedJobArgs, json: bool) -> CommandResult {
    let mut job = args.named()?;
    am_client::runtime()?.block_on(job.print_report(json))
}
