//! `heddle list`: the runs of this machine, newest first.

use serde::Serialize;

use super::PlaceArgs;
use crate::exit::Exit;
use crate::failure::Outcome;
use crate::output;
use crate::runs::{self, Standing};

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    place: PlaceArgs,
}

/// A run as `--json` shows it.
#[derive(Serialize)]
struct RunView {
    run: String,
    name: String,
    state: Standing,
    started_ms: u64,
    dir: String,
    message: String,
}

pub fn list(args: &Args, json: bool) -> Outcome {
    let work_dir = runs::work_dir(args.place.work_dir.as_deref())?;
    let mut rows = Vec::new();
    for run in runs::all(&work_dir) {
        let state = run.standing();
        let message = run
            .outcome()
            .map(|outcome| outcome.message)
            .unwrap_or_default();
        if json {
            output::json(&RunView {
                run: run.file.run.to_string(),
                name: run.file.name.clone(),
                state,
                started_ms: run.file.started_ms,
                dir: run.dir.path().display().to_string(),
                message,
            })?;
        } else {
            rows.push(vec![
                run.file.run.short(),
                run.file.name.clone(),
                state.word().to_owned(),
                output::time(run.file.started_ms),
                message.lines().next().unwrap_or_default().to_owned(),
            ]);
        }
    }
    if !json && !rows.is_empty() {
        let head = ["run", "name", "state", "started", ""]
            .map(str::to_owned)
            .to_vec();
        rows.insert(0, head);
        output::line(&output::columns(&rows))?;
    }
    if rows.is_empty() && !json {
        eprintln!("no runs in {}", work_dir.display());
    }
    Ok(Exit::Ok)
}
