//! The `heddle` command: arguments in, output and exit codes out. The crates below do the work.

mod am_client;
mod application;
mod cli;
mod cluster;
mod commands;
mod elf;
mod event_printer;
mod failure;
mod file_systems;
mod job;
mod job_file;
mod launcher;
mod login;
mod login_failure;
mod output;
mod private_home;
mod program;
mod program_dir;
mod rm_calls;
mod rm_web;
mod runs;
mod site_defaults;
mod stop_signals;
mod view_printer;
mod waiting;

use clap::Parser;
use heddle_hadoop::configuration::Environment;
use heddle_protocol::exit_code::ExitCode;

fn main() -> std::process::ExitCode {
    launcher::die_with_launcher();
    stop_signals::outlive_file_limits();
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are not errors; clap prints each to the right stream.
            let _closed = error.print();
            return match error.use_stderr() {
                true => ExitCode::Usage.into(),
                false => ExitCode::Ok.into(),
            };
        }
    };
    let json = cli.json;
    // The containers of a job share their tokens, and live on when one of them ends.
    let shares_tokens = cli.login().is_in_container;
    let ended = cli.hadoop_values().and_then(|values| {
        cli.unpack_carried_files()?;
        // Before the first use of Hadoop's configuration.
        Environment::set_process_values(values);
        login::prepare(&cli.login(), || cli.stated_keytab());
        cli::dispatch(cli)
    });
    let exit = match ended {
        Ok(exit) => exit,
        Err(failure) => {
            output::failure(&failure, json);
            failure.exit
        }
    };
    if !shares_tokens {
        heddle_storage::cancel_fetched_tokens();
    }
    exit.into()
}
