//! `heddle completions`: prints the completion script of a shell.

use clap_complete::Shell;
use heddle_protocol::exit_code::ExitCode;

use crate::failure::CommandResult;
use crate::output;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The shell
    shell: Shell,
}

pub fn completions(args: &Args, command: &mut clap::Command) -> CommandResult {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, command, "heddle", &mut script);
    output::line(String::from_utf8_lossy(&script).trim_end())?;
    Ok(ExitCode::Ok)
}
