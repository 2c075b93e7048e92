//! `heddle completions`: a script for the shell.

use clap::CommandFactory;
use clap_complete::Shell;
use heddle_protocol::exit_code::ExitCode;

use crate::cli::Cli;
use crate::failure::CommandResult;
use crate::output;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The shell
    shell: Shell,
}

pub fn completions(args: &Args) -> CommandResult {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "heddle", &mut script);
    output::line(String::from_utf8_lossy(&script).trim_end())?;
    Ok(ExitCode::Ok)
}
