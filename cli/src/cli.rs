//! All sub-commands, and which file does what.

use clap::{Parser, Subcommand};

use crate::commands::{
    bench, checkpoint, completions, config, containers, export, kill, list, logs, predict, run,
    status,
};
use crate::failure::{Outcome, not_yet};

/// Trains models with parameter servers, on one machine or (later) on a YARN cluster.
#[derive(Debug, Parser)]
#[command(
    name = "heddle",
    version,
    propagate_version = true,
    disable_help_subcommand = true
)]
#[command(
    after_help = "Exit codes: 0 ok, 1 job failed, 2 command line, 3 killed, 5 denied, 6 unreachable, \
    7 job file, data or paths, 8 checkpoint corrupt or incompatible, 9 superseded by another run, 10 internal, \
    130/143 interrupted."
)]
pub struct Cli {
    /// Write data as JSON, one object a line
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Train a job on this machine
    Run(run::Args),
    /// Train a job on a YARN cluster (not available yet)
    Submit(Anything),
    /// Follow a job that runs on a cluster (not available yet)
    Attach(Anything),
    /// Show how a run stands
    Status(status::Args),
    /// List runs of this machine
    List(list::Args),
    /// Print the logs of a run
    Logs(logs::Args),
    /// End a run
    Kill(kill::Args),
    /// Change the number of trainers of a run (not available yet)
    Scale(Anything),
    /// Score files with a model
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
pub fn dispatch(cli: Cli) -> Outcome {
    let json = cli.json;
    let missing = |command: &str, _: Anything| Err(not_yet(command));
    match cli.command {
        Command::Run(args) => run::run(args, json),
        Command::Submit(rest) => missing("submit", rest),
        Command::Attach(rest) => missing("attach", rest),
        Command::Status(args) => status::status(&args, json),
        Command::List(args) => list::list(&args, json),
        Command::Logs(args) => logs::logs(&args, json),
        Command::Kill(args) => kill::kill(&args, json),
        Command::Scale(rest) => missing("scale", rest),
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
