//! What tests of processes that stand still share: a BSP job of two pservers and two trainers, from its start to its model.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use heddle_protocol::view::{JobEvent, JobState, JobView};

use crate::local::{Run, write_libsvm};

/// Writes `job.toml` and two files of this many records each. A step takes 16 records.
///
/// # Errors
/// When the folder cannot be written.
pub fn write_job(dir: &Path, name: &str, records: u32) -> Result<()> {
    write_libsvm(&dir.join("data"), "train", 2, records, 50, 5, 3)?;
    let text = format!(
        "name = \"{name}\"\n\
         [data]\ntrain = \"data/train-*.libsvm\"\npasses = 1\n\
         [model]\nalgorithm = \"logistic-regression\"\nfeatures = 50\nstandardise = false\n\
         [training]\nconsistency = \"bsp\"\nlanes = 2\nbatch = 8\n\
         [pservers]\ncount = 2\nshards = 4\n\
         [trainers]\nmin = 2\nmax = 2\n\
         [checkpoint]\ndir = \"ckpt\"\nevery = \"1s\"\n\
         [output]\nmodel = \"model\"\n"
    );
    Ok(std::fs::write(dir.join("job.toml"), text)?)
}

/// Waits until the job trains, has a checkpoint, and all its processes are known.
///
/// # Errors
/// When it does not come to that.
pub fn await_training(run: &mut Run, limit: Duration) -> Result<JobView> {
    run.wait_for("training", limit, |view| {
        view.state == JobState::Running
            && view.rows > 0
            && view.checkpoints_taken > 0
            && view.slots.iter().all(|slot| slot.pid > 0)
    })
}

/// The view with which the job reported its end.
///
/// # Errors
/// When it reported none.
pub fn end_of(events: Vec<JobEvent>) -> Result<JobView> {
    let view = events.into_iter().find_map(|event| match event {
        JobEvent::Ended { view, .. } => Some(*view),
        _ => None,
    });
    view.context("the end is not reported")
}

/// The bytes of the job's model.
///
/// # Errors
/// When there is none.
pub fn model(dir: &Path) -> Result<Vec<u8>> {
    Ok(std::fs::read(dir.join("model/model.safetensors"))?)
}
