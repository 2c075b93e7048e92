//! What can be known before anything is made: that the data is there, that the outputs can be
//! written, that the program exists. A fault found here costs nothing; found after hours of training
//! it costs these.

mod mirrors;
pub mod spelling;

use std::path::{Path, PathBuf};

use heddle_am::input::{self, InputError, PlannedInput};
use heddle_am::own_model;
use heddle_am::store::exit_code_of;
use heddle_input::{Head, find_columns, has_record};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::job_spec::{JobSpec, Location, ModelFormat};
use heddle_protocol::model::MODEL_FILE;
use heddle_storage::checkpoint::CheckpointDir;
use heddle_storage::{Op, StorageError, check_place, connect, try_place};
use heddle_trainer::export::{SAFETENSORS_FILE, TEXT_FILE};
use nix::unistd::{AccessFlags, access};

use crate::am_client;
use crate::commands::checkpoint_source::{self, unusable};
use crate::failure::{CommandFailure, OrFail};

/// What a model that is there already means for a job.
#[derive(Clone, Copy, Debug)]
pub enum ModelRule {
    /// `--overwrite`.
    Replace,
    /// One that the job has published itself stays: the job is finished.
    KeepOwn,
    /// The job starts over, and would have to replace it.
    Refuse,
}

impl ModelRule {
    /// The rule of a command line.
    pub fn of(overwrite: bool, fresh: bool) -> Self {
        match (overwrite, fresh) {
            (true, _) => Self::Replace,
            (false, false) => Self::KeepOwn,
            (false, true) => Self::Refuse,
        }
    }
}

/// Checks what can be checked; returns files and tasks. Where checkpoints and model are to be on a cluster's file
/// system a few small files are created and deleted, since only a write detects quotas, safe mode and missing permissions.
///
/// # Errors
/// Exit code 7 with the wrong key; 5 if access is denied or a quota is used up, 6 if a storage does not respond.
pub fn check(spec: &JobSpec, models: ModelRule) -> Result<PlannedInput, CommandFailure> {
    check_as_far(spec, models, true)
}

/// The same without writing anything.
///
/// # Errors
/// As [`check`].
pub fn look(spec: &JobSpec, models: ModelRule) -> Result<PlannedInput, CommandFailure> {
    check_as_far(spec, models, false)
}

fn check_as_far(
    spec: &JobSpec,
    models: ModelRule,
    trying: bool,
) -> Result<PlannedInput, CommandFailure> {
    let ports = spec.network.ports.map(|range| range.ports().count());
    let needed = 1 + (spec.pservers.slots() * spec.pservers.vcores) as usize;
    if ports.is_some_and(|ports| ports < needed) {
        return Err(CommandFailure::new(
            ExitCode::Input,
            format!(
                "network.ports: {} ports, at least {needed} are needed: one for the ApplicationMaster and one for each data thread",
                ports.unwrap_or(0)
            ),
        ));
    }
    program(&spec.trainers.command)?;
    writable("checkpoint.dir", &spec.checkpoint.dir)?;
    writable("output.model", &spec.output.model)?;
    for mirror in &spec.checkpoint.mirrors {
        writable("checkpoint.mirrors", mirror)?;
    }
    am_client::runtime()?.block_on(on_storage(spec, models, trying))
}

/// The part of it that asks storages: that they answer, that the data is there, that checkpoints and model can be
/// kept. `trying`: by making a few small files on a cluster and removing them again.
///
/// # Errors
/// As [`check`].
pub async fn on_storage(
    spec: &JobSpec,
    models: ModelRule,
    trying: bool,
) -> Result<PlannedInput, CommandFailure> {
    for (key, place) in places(spec) {
        on_cluster(key, place).await?;
    }
    let plan = input::plan(spec, None).await.map_err(|error| unreadable(&error))?;
    let mut read = spec.clone();
    if spec.data.format.has_columns() {
        let head = input::head(spec, &plan).await.map_err(|error| unreadable(&error))?;
        columns(&mut read, &head)?;
    }
    for (key, training) in [("data.train", true), ("data.test", false)] {
        let is_stated = !plan.plan.tasks(training).is_empty();
        if is_stated && !has_record(&read, &plan.plan, training).await {
            let fact = format!("{key}: the files have no record");
            return Err(CommandFailure::new(ExitCode::Input, fact));
        }
    }
    outputs(spec, models, trying).await?;
    Ok(plan)
}

/// Finds the columns of a job whose data has them, by the beginning of its training data.
///
/// # Errors
/// They do not fit the job file.
pub fn columns(spec: &mut JobSpec, head: &Head) -> Result<(), CommandFailure> {
    find_columns(spec, head).or_fail(ExitCode::Input, "data.train")
}

/// Tries whether checkpoints and model can be kept where they are to be.
///
/// # Errors
/// As [`check`].
///
/// # Cancel safety
/// None: small files may be left.
pub async fn outputs_take(spec: &JobSpec, models: ModelRule) -> Result<(), CommandFailure> {
    outputs(spec, models, true).await
}

async fn outputs(spec: &JobSpec, models: ModelRule, trying: bool) -> Result<(), CommandFailure> {
    // Both run to their end, so that the failure of one leaves no files of the other.
    let (checkpoints, model, mirrors) = tokio::join!(
        checkpoints(&spec.checkpoint.dir, trying),
        model(spec, models, trying),
        mirrors::mirrors(&spec.checkpoint, trying),
    );
    checkpoints.and(model).and(mirrors)
}

/// The failure of a job whose data cannot be read.
pub fn unreadable(error: &InputError) -> CommandFailure {
    let exit = match error {
        InputError::Storage { source, .. } => exit_code_of(source),
        InputError::File { source, .. } => source.class().exit_code(),
        InputError::Location { .. } | InputError::Empty { .. } | InputError::TooMany(_) => {
            ExitCode::Input
        }
    };
    let failure = CommandFailure::caused(exit, "the data cannot be read", error);
    let advice = match error {
        InputError::Storage { source, location, .. } if source.is_not_found() => {
            spelling::advice_on_data(location)
        }
        _ => None,
    };
    match advice {
        Some(advice) => failure.next(advice),
        None => failure,
    }
}

/// All places of a job with their keys.
fn places(spec: &JobSpec) -> impl Iterator<Item = (&'static str, &Location)> {
    let train = spec.data.train.iter().map(|place| ("data.train", place));
    let test = spec.data.test.iter().map(|place| ("data.test", place));
    train
        .chain(test)
        .chain([("checkpoint.dir", &spec.checkpoint.dir), ("output.model", &spec.output.model)])
        .chain(spec.checkpoint.mirrors.iter().map(|mirror| ("checkpoint.mirrors", mirror)))
}

/// Checks that the storage of a remote location responds.
async fn on_cluster(key: &str, place: &Location) -> Result<(), CommandFailure> {
    let Some((location, fact)) = remote(key, place)? else {
        return Ok(());
    };
    let found = async { connect(&location)?.reach().await };
    found.await.or_fail_with(unusable, &fact)
}

/// The location, if it is remote, and the fact of its failure.
fn remote(
    key: &str,
    place: &Location,
) -> Result<Option<(heddle_storage::StorageUrl, String)>, CommandFailure> {
    let (location, fact) = located(key, place)?;
    Ok((!location.is_local()).then_some((location, fact)))
}

/// The location, and the fact of its failure.
fn located(
    key: &str,
    place: &Location,
) -> Result<(heddle_storage::StorageUrl, String), CommandFailure> {
    let fact = format!("{key} = {place} cannot be used");
    let location =
        heddle_storage::StorageUrl::parse(&place.url()).or_fail(ExitCode::Input, &fact)?;
    Ok((location, fact))
}

async fn checkpoints(dir: &Location, trying: bool) -> Result<(), CommandFailure> {
    let Some((location, fact)) = remote("checkpoint.dir", dir)? else {
        return Ok(());
    };
    let storage = connect(&location).or_fail_with(unusable, &fact)?;
    CheckpointDir::rehearse(storage, location.path().clone(), trying)
        .await
        .or_fail_with(checkpoint_source::failure, &fact)
}

async fn model(spec: &JobSpec, models: ModelRule, trying: bool) -> Result<(), CommandFailure> {
    let dir = &spec.output.model;
    let (location, fact) = located("output.model", dir)?;
    let path = location.path();
    let looked = async {
        let storage = connect(&location)?;
        match location.is_local() {
            true => {}
            false if trying => drop(try_place(&*storage, path).await?),
            false => drop(check_place(&*storage, path).await?),
        }
        match storage.list(path).await {
            Ok(entries) => Ok(entries.iter().map(|entry| entry.name().to_owned()).collect()),
            Err(error) if error.is_not_found() => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    };
    let names: Vec<String> = looked.await.or_fail_with(unusable, &fact)?;
    let Some(name) = in_the_way(&names, &spec.output.formats) else {
        return Ok(());
    };
    let may_stay = match models {
        ModelRule::Replace => true,
        ModelRule::KeepOwn => name == MODEL_FILE && own_model::is_own(spec).await,
        ModelRule::Refuse => false,
    };
    if may_stay { Ok(()) } else { Err(taken(dir, &name)) }
}

/// The folder exists and is writable, or the nearest one above it is.
fn writable(key: &str, place: &Location) -> Result<(), CommandFailure> {
    let Some(path) = place.as_local() else {
        return Ok(());
    };
    spelling::check(key, path)?;
    let existing = path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let fact = format!("{key} = {place} cannot be written");
    if !existing.is_dir() {
        let mut failure = CommandFailure::new(ExitCode::Input, fact);
        failure.causes.push(format!("{} is not a folder", existing.display()));
        return Err(failure);
    }
    access(existing, AccessFlags::W_OK | AccessFlags::X_OK)
        .map_err(|error| StorageError::from_io(Op::Write, existing.display(), error.into()))
        .or_fail_with(unusable, fact)
}

/// What the publication of a model would meet among these names, if it may replace nothing. A publication that was
/// interrupted has left a draft of `MODEL.json`; the same command finishes it.
fn in_the_way(names: &[String], formats: &[ModelFormat]) -> Option<String> {
    let has = |name: &str| names.iter().any(|found| found == name);
    if has(MODEL_FILE) {
        return Some(MODEL_FILE.to_owned());
    }
    let draft = format!(".{MODEL_FILE}.");
    if names.iter().any(|name| name.starts_with(&draft)) {
        return None;
    }
    let files = formats.iter().map(|format| match format {
        ModelFormat::Safetensors => SAFETENSORS_FILE,
        ModelFormat::Text => TEXT_FILE,
    });
    files.into_iter().find(|name| has(name)).map(str::to_owned)
}

fn taken(model: &Location, name: &str) -> CommandFailure {
    let what = match name {
        MODEL_FILE => "holds a model already".to_owned(),
        name => format!("holds a file {name} already"),
    };
    CommandFailure::new(ExitCode::Input, format!("output.model = {model} {what}"))
        .next("--overwrite replaces it when the new one is done; or give another output.model")
}

/// `trainers.command` names something that can be executed.
fn program(command: &[String]) -> Result<(), CommandFailure> {
    let Some(program) = command.first() else {
        return Ok(());
    };
    let executable = |path: &Path| path.is_file() && access(path, AccessFlags::X_OK).is_ok();
    let found = match program.contains('/') {
        true => executable(Path::new(program)),
        false => std::env::var_os("PATH").is_some_and(|paths| {
            std::env::split_paths(&paths).any(|dir: PathBuf| executable(&dir.join(program)))
        }),
    };
    match found {
        true => Ok(()),
        false => Err(CommandFailure::new(
            ExitCode::Input,
            format!("trainers.command: {program} is not there or not executable"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_in_the_way_interrupted_ones_are_not() {
        let both = [ModelFormat::Safetensors, ModelFormat::Text];
        let met = |names: &[&str], formats: &[ModelFormat]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            in_the_way(&names, formats)
        };
        assert_eq!(met(&[], &both), None);
        assert_eq!(met(&["README", "other.txt"], &both), None);
        assert_eq!(met(&["MODEL.json", "model.txt"], &both).as_deref(), Some("MODEL.json"));
        assert_eq!(met(&["model.txt"], &both).as_deref(), Some("model.txt"));
        assert_eq!(met(&["model.txt"], &both[..1]), None);
        assert_eq!(met(&["model.safetensors", ".MODEL.json.0123"], &both), None);
    }
}
