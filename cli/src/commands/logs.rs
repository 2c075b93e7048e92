//! `heddle logs`: what the processes of a job wrote.

use super::{WorkDirArgs, named_or_newest};
use crate::am_client;
use crate::failure::CommandResult;
use crate::job::LogQuery;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run's id or its first digits, or an application's id [default: the newest run of this machine]
    #[arg(value_name = "RUN|APPLICATION")]
    run: Option<String>,
    /// Only what begins so: am, trainer, pserver-1, trainer-0-2
    #[arg(value_name = "SLOT")]
    named_slot: Option<String>,
    /// The same
    #[arg(long, value_name = "SLOT", default_value = "", conflicts_with = "named_slot")]
    slot: String,
    /// Containers that failed come first (applications)
    #[arg(long)]
    failed_first: bool,
    /// Continue until the run has ended
    #[arg(short, long)]
    follow: bool,
    #[command(flatten)]
    place: WorkDirArgs,
}

pub fn logs(args: &Args, json: bool) -> CommandResult {
    let wanted = LogQuery {
        slot: args.named_slot.as_ref().unwrap_or(&args.slot).clone(),
        failed_first: args.failed_first,
        follow: args.follow,
        json,
    };
    let mut job = named_or_newest(args.run.as_deref(), &args.place)?;
    am_client::runtime()?.block_on(job.print_logs(&wanted))
}
