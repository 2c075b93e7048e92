//! `heddle controller`: sets the numbers of containers of all jobs with `run.elastic = "controller"`.

mod lead;
mod observer;
mod place;
mod show;

use place::Place;

use crate::am_client;
use crate::failure::CommandResult;

/// Set the sizes of a cluster's elastic jobs: lead, or wait until the leader has gone
///
/// Jobs with run.elastic = "controller" take part. The command runs until it is stopped, for a service user; any number of them
/// may run, on any hosts. One leads.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(flatten)]
    place: Place,
    #[command(subcommand)]
    command: Option<ControllerCommand>,
}

#[derive(Debug, clap::Subcommand)]
enum ControllerCommand {
    /// Print what the controller would decide now, without orders
    Plan(Place),
    /// List the jobs that take part, with their sizes and what they wait for
    Status(Place),
}

pub fn controller(args: &Args, json: bool) -> CommandResult {
    am_client::runtime()?.block_on(async {
        match &args.command {
            None => lead::lead(&args.place, json).await,
            Some(ControllerCommand::Plan(place)) => show::plan(place, json).await,
            Some(ControllerCommand::Status(place)) => show::status(place, json).await,
        }
    })
}
