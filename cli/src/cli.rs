//! The sub-commands, one module each.

use clap::{CommandFactory, Parser, Subcommand};
use heddle_hadoop::configuration::StatedValue;

use crate::application::duration;
use crate::cluster;
use crate::commands::{
    attach, bench, checkpoint, completions, config, containers, export, kill, list, logs, predict,
    prune, report, run, scale, status, submit,
};
use crate::failure::{CommandFailure, CommandResult};
use crate::login::LoginFlags;

/// Train models with parameter servers, on one machine or on a YARN cluster.
#[derive(Debug, Parser)]
#[command(name = "heddle", version, propagate_version = true)]
#[command(
    after_help = "Exit codes: 0 ok, 1 job failed, 2 command line, 3 killed, 4 refused by the cluster, \
    5 denied, 6 unreachable, 7 job file, data or paths, 8 checkpoint corrupt or incompatible, \
    9 superseded by another run, 10 internal, 124 wait timed out, 130/143 interrupted."
)]
pub struct Cli {
    /// Print data as JSON, one object per line
    #[arg(long, global = true)]
    pub json: bool,
    /// Set how long to wait for a ResourceManager that does not respond [default:
    /// yarn.resourcemanager.connect.max-wait.ms of yarn-site.xml, or 60s]
    #[arg(long, global = true, value_name = "DURATION", value_parser = duration)]
    pub rm_wait: Option<std::time::Duration>,
    /// Log in to a secured cluster as this Kerberos principal, by --keytab [default: the keytab's first one]
    #[arg(long, global = true, requires = "keytab")]
    pub principal: Option<String>,
    /// Log in to a secured cluster by this keytab, not by the ticket cache
    #[arg(long, global = true, value_name = "FILE")]
    pub keytab: Option<std::path::PathBuf>,
    /// Act on a cluster as this user, on whose behalf the own user may act (HADOOP_PROXY_USER)
    #[arg(long, global = true, value_name = "USER")]
    pub proxy_user: Option<String>,
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Train a job on this machine
    Run(run::Args),
    /// Train a job on a YARN cluster
    Submit(Box<submit::Args>),
    /// Follow a running job on a cluster
    Attach(attach::Args),
    /// Show the state of a run or an application
    Status(status::Args),
    /// List runs of this machine and applications of the cluster
    List(list::Args),
    /// Remove directories of ended runs, or files of ended applications on the cluster
    Prune(prune::Args),
    /// Print the logs of a run or an application
    Logs(logs::Args),
    /// Print the report of an ended run or application
    Report(report::Args),
    /// End a run or an application
    Kill(kill::Args),
    /// Change the number of trainers of a running job
    Scale(scale::Args),
    Predict(predict::Args),
    /// Write the model of a checkpoint
    Export(export::Args),
    /// Show the values of a job file, or the reference of all keys
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// List, verify, take and remove checkpoints
    #[command(subcommand)]
    Checkpoint(checkpoint::CheckpointCommand),
    /// Measure this machine, each figure beside a baseline in the same run
    Bench(bench::Args),
    /// Print the completion script of a shell
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

impl Cli {
    /// The flags of the login at a cluster.
    pub fn login(&self) -> LoginFlags<'_> {
        LoginFlags {
            principal: self.principal.as_deref(),
            keytab: self.keytab.as_deref(),
            proxy_user: self.proxy_user.as_deref(),
        }
    }

    /// Values of Hadoop's configuration that the command line states.
    ///
    /// # Errors
    /// Exit code 7 with the properties that are refused.
    pub fn hadoop_values(&self) -> Result<Vec<StatedValue>, CommandFailure> {
        let keys = match &self.command {
            CliCommand::Submit(args) => &args.keys,
            CliCommand::Config(config::ConfigCommand::Show(args)) => &args.keys,
            _ => return Ok(Vec::new()),
        };
        Ok(keys.stated()?.hadoop)
    }
}

/// Runs the sub-command.
///
/// # Errors
/// The failure of the sub-command, with the exit code of its class.
pub fn dispatch(cli: Cli) -> CommandResult {
    let json = cli.json;
    if let Some(wait) = cli.rm_wait {
        cluster::set_rm_wait(wait);
    }
    match cli.command {
        CliCommand::Run(args) => run::run(args, json),
        CliCommand::Submit(args) => submit::submit(&args, json),
        CliCommand::Attach(args) => attach::attach(&args, json),
        CliCommand::Status(args) => status::status(&args, json),
        CliCommand::List(args) => list::list(&args, json),
        CliCommand::Prune(args) => prune::prune(&args, json),
        CliCommand::Logs(args) => logs::logs(&args, json),
        CliCommand::Report(args) => report::report(&args, json),
        CliCommand::Kill(args) => kill::kill(&args, json),
        CliCommand::Scale(args) => scale::scale(&args, json),
        CliCommand::Predict(args) => predict::predict(&args, json),
        CliCommand::Export(args) => export::export(&args, json),
        CliCommand::Config(command) => config::config(command, json),
        CliCommand::Checkpoint(command) => checkpoint::checkpoint(command, json),
        CliCommand::Bench(args) => bench::bench(&args, json),
        CliCommand::Completions(args) => completions::completions(&args, &mut Cli::command()),
        CliCommand::Am(args) => containers::am(&args),
        CliCommand::Pserver => containers::pserver(),
        CliCommand::Trainer => containers::trainer(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
