//! `heddle export`: the model of any checkpoint, without a job.

use clap::ValueEnum;
use heddle_am::report::format;
use heddle_am::wall_clock::wall_ms;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::job_spec::ModelFormat;
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

/// Exports of a folder that begin, each with its newest checkpoint. More would not end either: its job takes checkpoints faster
/// than one is read.
const TRIES: u32 = 8;

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
    let name = args.checkpoint.trim_end_matches('/').rsplit('/').next();
    let named = match name.is_some_and(|name| parse_cut(name).is_ok()) {
        true => Some(location(&args.checkpoint)?),
        false => None,
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
    let runtime = am_client::runtime()?;
    let find = || match &named {
        Some(named) => Ok(named.clone()),
        None => runtime.block_on(newest(&what)),
    };
    let write = |from: &StorageUrl| {
        runtime.block_on(async {
            reached(from).await?;
            reached(&out).await
        })?;
        let write = || write(from, &formats, &out, wall_ms());
        Ok(waiting::while_blocked(format!("{from} and {out}"), write))
    };
    let exported = of_present(if named.is_some() { 1 } else { TRIES }, find, write)?;
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

/// What `write` makes of the checkpoint that `find` returns: of another one if retention removes it meanwhile.
fn of_present<T>(
    tries: u32,
    find: impl Fn() -> Result<StorageUrl, CommandFailure>,
    mut write: impl FnMut(&StorageUrl) -> Result<Result<T, ExportError>, CommandFailure>,
) -> Result<T, CommandFailure> {
    let mut tried = 0;
    loop {
        let from = find()?;
        tried += 1;
        match write(&from)? {
            Ok(written) => return Ok(written),
            Err(error) if error.is_removed() && tried < tries => {
                output::note(&format!(
                    "{from} was removed while it was read: begins again with the newest one"
                ));
            }
            Err(error) => return Err(refused(&error)),
        }
    }
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
    if error.is_removed() {
        return CommandFailure::caused(ExitCode::Input, FACT, error).next(
            "export the folder of all, whose newest checkpoint counts; a larger checkpoint.keep \
             keeps more of them",
        );
    }
    match error {
        ExportError::Checkpoint(CheckpointError::Storage(error)) | ExportError::Storage(error) => {
            unusable(FACT, error)
        }
        _ => CommandFailure::caused(error.class().exit_code(), FACT, error),
    }
}

#[cfg(test)]
mod tests {
    use heddle_storage::checkpoint::CheckpointError;

    use super::*;

    #[test]
    fn export_of_a_folder_begins_again_when_its_checkpoint_goes() {
        let removed = |from: &StorageUrl| {
            ExportError::Checkpoint(CheckpointError::Removed { dir: from.to_string() })
        };
        let find = || location("/ckpt/g1-c4");
        let export = |tries: u32, goes: u32| {
            let mut written = 0;
            of_present(tries, find, |from| {
                written += 1;
                Ok(if written <= goes { Err(removed(from)) } else { Ok(written) })
            })
        };
        assert_eq!(export(TRIES, 2).expect("the third stays"), 3);
        for refused in [export(TRIES, TRIES), export(1, 1)] {
            let refused = refused.expect_err("none stays");
            assert_eq!(refused.exit, ExitCode::Input);
            assert!(refused.causes.concat().contains("removed while it was read"), "{refused:?}");
        }
    }
}
