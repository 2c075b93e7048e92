//! The `heddle` command: arguments in, output and exit codes out. What it does is in the crates below.

mod am_client;
mod application;
mod cli;
mod cluster;
mod commands;
mod event_printer;
mod exit;
mod failure;
mod job_file;
mod output;
mod runs;
mod waiting;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are no errors; clap knows where each text goes.
            let _closed = error.print();
            return match error.use_stderr() {
                true => exit::Exit::Usage.into(),
                false => exit::Exit::Ok.into(),
            };
        }
    };
    let json = cli.json;
    match cli::dispatch(cli) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            failure.print(json);
            failure.exit.into()
        }
    }
}
