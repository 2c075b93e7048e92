//! All sub-commands, and which file does what.

use clap::{Parser, Subcommand};

use crate::cluster;
use crate::commands::{
    attach, bench, checkpoint, completions, config, containers, export, kill, list, logs, predict,
    prune, report, run, scale, status, submit,
};
use crate::failure::{CommandResult, not_yet};

/// Trains models with parameter servers, on one machine or on a YARN cluster.
#[derive(Debug, Parser)]
#[command(name = "heddle", version, propagate_version = true)]
#[command(
    after_help = "Exit codes: 0 ok, 1 job failed, 2 command line, 3 killed, 4 refused by the cluster, \
    5 denied, 6 unreachable, 7 job file, data or paths, 8 checkpoint corrupt or incompatible, \
    9 superseded by another run, 10 internal, 124 waited long enough, 130/143 interrupted."
)]
pub struct Cli {
    /// Write data as JSON, one object a line
    #[arg(long, global = true)]
    pub json: bool,
    /// How long to wait for a ResourceManager that does not answer [default: what yarn-site.xml says
    /// (yarn.resourcemanager.connect.max-wait.ms), or 60s]
    #[arg(long, global = true, value_name = "DURATION", value_parser = submit::duration)]
    pub rm_wait: Option<std::time::Duration>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Train a job on this machine
    Run(run::Args),
    /// Train a job on a YARN cluster
    Submit(Box<submit::Args>),
    /// Follow a job that runs on a cluster
    Attach(attach::Args),
    /// Show how a run or an application stands
    Status(status::Args),
    /// List runs of this machine and applications of the cluster
    List(list::Args),
    /// Remove run directories of ended runs, or what applications left on the cluster
    Prune(prune::Args),
    /// Print the logs of a run or an application
    Logs(logs::Args),
    /// Print the report of a run or an application that is over
    Report(report::Args),
    /// End a run or an application
    Kill(kill::Args),
    /// Change the number of trainers of a job that runs
    Scale(scale::Args),
    Predict(predict::Args),
    /// Write the model of a checkpoint
    Export(export::Args),
    /// Show what a job file comes to, or the reference of all keys
    #[command(subcommand)]
    Config(config::Command),
    /// Look after checkpoints
    #[command(subcommand)]
    Checkpoint(checkpoint::Command),
    /// Measure this machine (see cargo bench for now)
    Bench(bench::Args),
    /// Inject faults into a run (not available yet)
    Chaos(Anything),
    /// Check a cluster (not available yet)
    Doctor(Anything),
    /// Print completions for a shell
    Completions(completions::Args),
    /// The ApplicationMaster of a run
    #[command(hide = true)]
    Am(containers::AmArgs),
    /// A process that holds shards
    #[command(hide = true)]
    Pserver,
    /// A process that computes gradients
    #[command(hide = true)]
    Trainer,
}

/// Whatever was typed: the command has no function yet and says so first.
#[derive(Debug, clap::Args)]
struct Anything {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    rest: Vec<String>,
}

/// Does what was asked for.
///
/// # Errors
/// With the exit code of its class.
pub fn dispatch(cli: Cli) -> CommandResult {
    let json = cli.json;
    if let Some(wait) = cli.rm_wait {
        cluster::set_rm_wait(wait);
    }
    let missing = |command: &str, _: Anything| Err(not_yet(command));
    match cli.command {
        Command::Run(args) => run::run(args, json),
        Command::Submit(args) => submit::submit(&args, json),
        Command::Attach(args) => attach::attach(&args, json),
        Command::Status(args) => status::status(&args, json),
        Command::List(args) => list::list(&args, json),
        Command::Prune(args) => prune::prune(&args, json),
        Command::Logs(args) => logs::logs(&args, json),
        Command::Report(args) => report::report(&args, json),
        Command::Kill(args) => kill::kill(&args, json),
        Command::Scale(args) => scale::scale(&args, json),
        Command::Predict(args) => predict::predict(&args, json),
        Command::Export(args) => export::export(&args, json),
        Command::Config(command) => config::config(command, json),
        Command::Checkpoint(command) => checkpoint::checkpoint(command, json),
        Command::Bench(args) => bench::bench(&args),
        Command::Chaos(rest) => missing("chaos", rest),
        Command::Doctor(rest) => missing("doctor", rest),
        Command::Completions(args) => completions::completions(&args),
        Command::Am(args) => containers::am(&args),
        Command::Pserver => containers::pserver(),
        Command::Trainer => containers::trainer(),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
