//! `heddle data`: what data without a job file looks like.

mod job_text;
mod lines;
mod sample_args;
mod sample_text;
mod table;
mod typed;

use clap::Subcommand;
use heddle_am::input;
use heddle_input::{TextHead, typed_format, unpacked_name};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::job_spec::columns::Header;
use heddle_protocol::job_spec::{DataFormat, Location};

use super::checkpoint_source::{location, reached};
use super::run::preflight::unreadable;
use sample_args::SampleArgs;

use crate::am_client;
use crate::failure::{CommandFailure, CommandResult, OrFail};

#[derive(Debug, Subcommand)]
pub enum DataAction {
    /// Show the columns at the beginning of data, propose the part of a job file that reads them, and show the first
    /// records as features
    Sample(SampleArgs),
}

pub fn data(command: &DataAction, json: bool) -> CommandResult {
    let DataAction::Sample(args) = command;
    let place = location(&args.data)?;
    let head = am_client::runtime()?.block_on(async {
        reached(&place).await?;
        let fact = format!("{:?} is not a valid path or URL", args.data);
        let place: Location = place.to_string().parse().or_fail(ExitCode::Input, fact)?;
        input::head_of_place(&place).await.map_err(|error| unreadable(&error))
    })?;
    let format = format_of(args, &head)?;
    let is_for_text = args.delimiter.is_some() || args.header() != Header::Auto;
    if let Some(typed) = typed_format(format).filter(|_| !is_for_text) {
        typed::show(args, format, typed, &head.file, json)
    } else if format.has_columns() && format.is_text() {
        table::show(args, format, &head, json)
    } else if args.label.is_some() || args.delimiter.is_some() || args.header() != Header::Auto {
        let fact = format!(
            "--delimiter and --header are for tables of text, --label for tables (got {})",
            format.name()
        );
        Err(CommandFailure::new(ExitCode::Usage, fact))
    } else {
        lines::show(args, format, &head, json)
    }
}

fn format_of(args: &SampleArgs, head: &TextHead) -> Result<DataFormat, CommandFailure> {
    let name = unpacked_name(&head.file);
    let suffix = name.rsplit_once('.').map_or("", |(_, suffix)| suffix);
    DataFormat::of_name(args.format.as_deref().unwrap_or(suffix)).ok_or_else(|| {
        let fact = format!("the name of {} does not show its format", head.file);
        let names = DataFormat::names().join(", ");
        CommandFailure::new(ExitCode::Input, fact).next(format!("--format states it: {names}"))
    })
}
