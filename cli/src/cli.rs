//! The sub-commands, one module each.

use clap::{CommandFactory, Parser, Subcommand};
use heddle_hadoop::configuration::StatedValue;
use heddle_protocol::environment::AM_DIR;

use crate::application::duration;
use crate::commands::{
    NamedJobArgs, attach, bench, chaos, checkpoint, clean, completions, config, containers,
    controller, data, export, install, kill, list, logs, move_queue, predict, report, run, scale,
    shards, status, submit,
};
use crate::failure::{CommandFailure, CommandResult};
use crate::login::{LoginFlags, StatedKeytab};
use crate::rm_calls;
use crate::site_defaults;

/// Train models with parameter servers, on one machine or on a YARN cluster.
#[derive(Debug, Parser)]
#[command(name = "heddle", version, propagate_version = true)]
#[command(
    after_help = "Exit codes: 0 ok, 1 job failed, 2 command line, 3 killed, 4 refused by the \
        cluster, 5 denied, 6 unreachable, 7 job file, data or paths, 8 checkpoint corrupt or \
        incompatible, 9 superseded by another run, 10 internal, 75 refused for now, 124 wait timed \
        out, 130/143 interrupted."
)]
pub struct Cli {
    /// Print data as JSON, one object per line
    #[arg(long, global = true)]
    pub json: bool,
    /// Set how long to wait for a ResourceManager that does not respond [default: submit.rm-wait, else
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
    Status(NamedJobArgs),
    /// List runs of this machine and applications of the cluster
    List(list::Args),
    /// Remove what ended jobs left: run directories, and staging, reports, data and programs on the cluster
    Clean(clean::Args),
    /// The earlier name of clean
    #[command(hide = true)]
    Prune(clean::Args),
    /// Print the logs of a run or an application
    Logs(logs::Args),
    /// Print the report of an ended run or application
    Report(NamedJobArgs),
    /// End a run or an application
    Kill(kill::Args),
    /// Install this program on HDFS for all users of a cluster (submit.binary-dir)
    Install(install::Args),
    /// Move an application to another queue
    Move(move_queue::Args),
    /// Show where the shards of a running job are, and which of them move
    Shards(NamedJobArgs),
    /// Change the number of trainers or pservers of a running job
    Scale(scale::Args),
    Controller(controller::Args),
    Chaos(chaos::Args),
    Predict(predict::Args),
    /// Write the model of a checkpoint
    Export(export::Args),
    /// Show the values of a job file, or the reference of all keys
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Show what data without a job looks like
    #[command(subcommand)]
    Data(data::DataAction),
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
            is_in_container: match &self.command {
                CliCommand::Am(args) => args.yarn,
                CliCommand::Pserver | CliCommand::Trainer => std::env::var_os(AM_DIR).is_some(),
                _ => false,
            },
        }
    }

    /// The keytab of the job file of this command, or of the site's defaults. Problems of these files are left to the
    /// command, which reports them.
    pub fn stated_keytab(&self) -> Option<StatedKeytab> {
        let yarn = match &self.command {
            CliCommand::Submit(args) => {
                let flags = args.keys.stated().ok()?.job;
                args.job.read_with("", None, &flags).ok()?.spec.yarn
            }
            CliCommand::Run(args) => args.job.read("").ok()?.spec.yarn,
            // Processes of a job have tokens alone.
            CliCommand::Am(_) | CliCommand::Pserver | CliCommand::Trainer => return None,
            _ => return site_defaults::keytab(),
        };
        Some(StatedKeytab { path: yarn.keytab?, principal: yarn.principal })
    }

    /// Writes the files that travel in the credentials of an ApplicationMaster into its work directory, which is that of
    /// this process. Hadoop's configuration is one of them.
    ///
    /// # Errors
    /// Exit code 5 if they cannot be read or written.
    pub fn unpack_carried_files(&self) -> Result<(), CommandFailure> {
        match &self.command {
            CliCommand::Am(args) if args.yarn => containers::unpack_carried_files(),
            _ => Ok(()),
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
        rm_calls::set_rm_wait(wait);
    }
    match cli.command {
        CliCommand::Run(args) => run::run(args, json),
        CliCommand::Submit(args) => submit::submit(&args, json),
        CliCommand::Attach(args) => attach::attach(&args, json),
        CliCommand::Status(args) => status::status(&args, json),
        CliCommand::List(args) => list::list(&args, json),
        CliCommand::Clean(args) => clean::clean(&args, json),
        CliCommand::Prune(args) => clean::prune(args, json),
        CliCommand::Logs(args) => logs::logs(&args, json),
        CliCommand::Report(args) => report::report(&args, json),
        CliCommand::Kill(args) => kill::kill(&args, json),
        CliCommand::Install(args) => install::install(&args, json),
        CliCommand::Move(args) => move_queue::move_queue(&args, json),
        CliCommand::Shards(args) => shards::shards(&args, json),
        CliCommand::Scale(args) => scale::scale(&args, json),
        CliCommand::Controller(args) => controller::controller(&args, json),
        CliCommand::Chaos(args) => chaos::chaos(&args, json),
        CliCommand::Predict(args) => predict::predict(&args, json),
        CliCommand::Export(args) => export::export(&args, json),
        CliCommand::Config(command) => config::config(command, json),
        CliCommand::Data(command) => data::data(&command, json),
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
