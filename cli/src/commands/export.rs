//! `heddle export`: the model of any checkpoint, without a job.

use clap::ValueEnum;
use heddle_am::report::format;
use heddle_am::wall_clock::wall_ms;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::spec::ModelFormat;
use heddle_storage::StorageUrl;
use heddle_storage::checkpoint::{
    CheckpointDir, CheckpointError, DamagePolicy, Depth, KeptCheckpoint,
};
use heddle_trainer::export::{ExportError, export as write};

use super::WorkDirArgs;
use super::checkpoint_source::{CheckpointSource, failure, location, parse_cut, reached, unusable};
use crate::am_client;
use crate::failure::{CommandFailure, CommandResult};
use crate::output;
use crate::waiting;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// A checkpoint's folder (…/g1-c4), or a folder of checkpoints, a run or an application: its newest checkpoint, or that of
    /// its best pass where the job keeps it
    #[arg(value_name = "CHECKPOINT|DIR|RUN|APPLICATION")]
    checkpoint: String,
    /// The folder to write into; empty or not there yet
    #[arg(value_name = "OUT")]
    out: String,
    /// A format; may be given several times [default: those of the checkpoint's job]
    #[arg(long, value_name = "FORMAT")]
    format: Vec<ExportFormat>,
    #[command(flatten)]
    place: WorkDirArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ExportFormat {
    Safetensors,
    Text,
}

pub fn export(args: &Args, json: bool) -> CommandResult {
    let what = CheckpointSource::new(&args.checkpoint, &args.place);
    let from = match args.checkpoint.trim_end_matches('/').rsplit('/').next() {
        Some(name) if parse_cut(name).is_ok() => location(&args.checkpoint)?,
        _ => am_client::runtime()?.block_on(newest(&what))?,
    };
    let formats: Vec<ModelFormat> = args
        .format
        .iter()
        .map(|format| match format {
            ExportFormat::Safetensors => ModelFormat::Safetensors,
            ExportFormat::Text => ModelFormat::Text,
        })
        .collect();
    let out = location(&args.out)?;
    am_client::runtime()?.block_on(async {
        reached(&from).await?;
        reached(&out).await
    })?;
    let exported = waiting::while_blocked(format!("{from} and {out}"), || {
        write(&from, &formats, &out, wall_ms())
    });
    let exported = exported.map_err(|error| refused(&error))?;
    for file in &exported.files {
        if json {
            output::json(file)?;
        } else {
            output::line(&format!(
                "{}/{}  {}",
                args.out.trim_end_matches('/'),
                file.name,
                format::size(file.bytes)
            ))?;
        }
    }
    Ok(ExitCode::Ok)
}

/// The newest complete checkpoint of a folder or run, or that of its best pass where the job keeps it. A damaged one is an
/// error, not skipped.
async fn newest(what: &CheckpointSource) -> Result<StorageUrl, CommandFailure> {
    let place = what.location().await?;
    let dir: CheckpointDir = what.open().await?;
    let find = async {
        let lineage = dir.lineage().await?;
        let newest = dir.newest(&lineage, Depth::Shallow, DamagePolicy::Fail);
        match newest.await?.checkpoint {
            Some(newest) => dir.kept(newest).await.map(Some),
            None => Ok::<_, CheckpointError>(None),
        }
    };
    match waiting::on(&place, find).await {
        Ok(Some(KeptCheckpoint { checkpoint, missing })) => {
            if let Some(pass) = missing {
                output::note(&format!(
                    "pass {} was the best (training.keep), and has no whole checkpoint: this model is that of the newest one",
                    pass + 1
                ));
            }
            Ok(place.with_path(checkpoint.dir))
        }
        Ok(None) => Err(CommandFailure::new(ExitCode::Input, format!("no checkpoints in {place}"))),
        Err(error) => Err(failure("the newest checkpoint cannot be used", &error)
            .next("name another one by its folder; `heddle checkpoint ls` lists them")),
    }
}

fn refused(error: &ExportError) -> CommandFailure {
    const FACT: &str = "the model was not exported";
    let exit = match error {
        ExportError::Checkpoint(CheckpointError::Storage(error)) | ExportError::Storage(error) => {
            return unusable(FACT, error);
        }
        ExportError::Checkpoint(error) => error.class().exit_code(),
        ExportError::Spec(_) | ExportError::Rows { .. } => ExitCode::Checkpoint,
        ExportError::Runtime(_) | ExportError::Standard(_) => ExitCode::Internal,
        _ => ExitCode::Input,
    };
    CommandFailure::caused(exit, FACT, error)
}
