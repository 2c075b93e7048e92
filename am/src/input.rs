//! Finds the job's input files and cuts them into tasks, once, when the job begins.

use heddle_protocol::manifest::{InputFile, InputPlan};
use heddle_protocol::plan::{TaskLength, compression_of, plan_input};
use heddle_protocol::spec::{Consistency, JobSpec, Location, TaskSize};
use heddle_storage::{StorageError, connect, find_files};

/// Why the input cannot be planned. Ends the job with exit code 7, or 6 where storage cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// A place that no storage of ours reaches.
    #[error("{key} = {location}")]
    Location {
        /// The key of the job file.
        key: &'static str,
        /// What it says.
        location: String,
        /// Why not.
        source: heddle_storage::LocationError,
    },
    /// Nothing there, or not readable.
    #[error("{key} = {location}")]
    Storage {
        /// The key of the job file.
        key: &'static str,
        /// What it says.
        location: String,
        /// Why not.
        source: StorageError,
    },
    /// Files are there and hold nothing.
    #[error("{key}: the files have no byte of data")]
    Empty {
        /// The key of the job file.
        key: &'static str,
    },
}

/// The files and tasks of a job.
///
/// # Errors
/// Names the key, the path and what is wrong with it.
pub async fn plan(spec: &JobSpec) -> Result<InputPlan, InputError> {
    let train = files("data.train", &spec.data.train).await?;
    let test = files("data.test", &spec.data.test).await?;
    let plan = plan_input(train, test, length_of(spec));
    if plan.train.is_empty() {
        return Err(InputError::Empty { key: "data.train" });
    }
    if plan.test.is_empty() && !spec.data.test.is_empty() {
        return Err(InputError::Empty { key: "data.test" });
    }
    Ok(plan)
}

fn length_of(spec: &JobSpec) -> TaskLength {
    match spec.data.task_size {
        TaskSize::Bytes(bytes) => TaskLength::Bytes(bytes.0),
        TaskSize::Auto => TaskLength::Auto {
            workers: match spec.training.consistency {
                Consistency::Bsp => spec.training.lanes,
                Consistency::Asp => spec.trainers.max,
            },
        },
    }
}

async fn files(key: &'static str, places: &[Location]) -> Result<Vec<InputFile>, InputError> {
    let mut found = Vec::new();
    for place in places {
        let shown = place.to_string();
        let location = heddle_storage::Location::parse(&place.url()).map_err(|source| {
            InputError::Location {
                key,
                location: shown.clone(),
                source,
            }
        })?;
        let failed = |source| InputError::Storage {
            key,
            location: shown.clone(),
            source,
        };
        let storage = connect(&location).map_err(failed)?;
        for entry in find_files(&*storage, location.path())
            .await
            .map_err(failed)?
        {
            let name = entry.name().to_owned();
            found.push(InputFile {
                url: location.with_path(entry.path).to_string(),
                bytes: entry.bytes,
                modified_ms: entry.modified_ms,
                compression: compression_of(&name),
            });
        }
    }
    // Two patterns may name one file; it is read once.
    found.sort_by(|a, b| a.url.cmp(&b.url));
    found.dedup_by(|a, b| a.url == b.url);
    Ok(found)
}
