//! What can be known before anything is made: that the data is there, that the outputs can be
//! written, that the program exists. A fault found here costs nothing; found after hours of training
//! it costs these.

use std::path::{Path, PathBuf};

use heddle_protocol::manifest::InputPlan;
use heddle_protocol::model::MODEL_FILE;
use heddle_protocol::spec::{JobSpec, Location};
use nix::unistd::{AccessFlags, access};

use crate::am_client;
use crate::exit::Exit;
use crate::failure::Failure;

/// Checks what can be checked without changing anything; returns files and tasks.
///
/// # Errors
/// Exit 7 with the key at fault.
pub fn check(spec: &JobSpec, overwrite: bool) -> Result<InputPlan, Failure> {
    let ports = spec.network.ports.map(|range| range.ports().count());
    let needed = 1 + (spec.pservers.count * spec.pservers.vcores) as usize;
    if ports.is_some_and(|ports| ports < needed) {
        return Err(Failure::new(
            Exit::Input,
            format!(
                "network.ports: {} ports, at least {needed} are needed: one for the ApplicationMaster and one for each data thread",
                ports.unwrap_or(0)
            ),
        ));
    }
    program(&spec.trainers.command)?;
    writable("checkpoint.dir", &spec.checkpoint.dir)?;
    writable("output.model", &spec.output.model)?;
    output_is_free(&spec.output.model, overwrite)?;
    let plan = am_client::runtime()?.block_on(heddle_am::input::plan(spec));
    plan.map_err(|error| {
        let exit = match &error {
            heddle_am::input::InputError::Storage { source, .. } if source.is_retryable() => {
                Exit::Unreachable
            }
            _ => Exit::Input,
        };
        Failure::caused(exit, "the data cannot be read", &error)
    })
}

/// The folder exists and is writable, or the nearest one above it is.
fn writable(key: &str, place: &Location) -> Result<(), Failure> {
    let Some(path) = place.as_local() else {
        return Ok(());
    };
    let existing = path
        .ancestors()
        .find(|path| path.exists())
        .unwrap_or(Path::new("/"));
    let fact = format!("{key} = {place} cannot be written");
    if !existing.is_dir() {
        let mut failure = Failure::new(Exit::Input, fact);
        failure
            .causes
            .push(format!("{} is not a folder", existing.display()));
        return Err(failure);
    }
    access(existing, AccessFlags::W_OK | AccessFlags::X_OK).map_err(|error| {
        let mut failure = Failure::caused(Exit::Input, fact, &error);
        failure.causes.insert(0, format!("{}", existing.display()));
        failure
    })
}

fn output_is_free(model: &Location, overwrite: bool) -> Result<(), Failure> {
    let holds_a_model = model
        .as_local()
        .is_some_and(|dir| dir.join(MODEL_FILE).exists());
    if !holds_a_model || overwrite {
        return Ok(());
    }
    Err(Failure::new(
        Exit::Input,
        format!("output.model = {model} holds a model already"),
    )
    .next("--overwrite replaces it when the new one is done; or give another output.model"))
}

/// `trainers.command` names something that can be executed.
fn program(command: &[String]) -> Result<(), Failure> {
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
        false => Err(Failure::new(
            Exit::Input,
            format!("trainers.command: {program} is not there or not executable"),
        )),
    }
}
