//! Prints the view of a job.

use heddle_am::report::format;
use heddle_protocol::view::{JobState, JobView};

use crate::failure::CommandFailure;
use crate::output;

/// Prints a view: what the job does if it has not ended, its results, and its checkpoints.
///
/// # Errors
/// Output cannot be written.
pub fn print(view: &JobView) -> Result<(), CommandFailure> {
    if !matches!(view.state, JobState::Finished | JobState::Failed | JobState::Stopped) {
        print_all(under_way(view))?;
    }
    print_history(view)?;
    let damaged = view.history.checkpoints_damaged.iter();
    print_all(damaged.map(|lost| format::checkpoint_damaged(lost.cut, &lost.dir, &lost.error)))?;
    let mirrors = view.mirrors.iter();
    print_all(mirrors.map(|mirror| format!("mirror       {} {}", mirror.dir, mirror.text())))?;
    let Some(last) = view.checkpoints.last() else {
        return Ok(());
    };
    output::line(&format!(
        "checkpoints  {} taken, newest {} in {}",
        view.checkpoints_taken, last.cut, last.dir
    ))?;
    print_all(last.tables.iter().map(format::table))
}

/// Prints its passes, evaluations and recoveries.
///
/// # Errors
/// Output cannot be written.
pub fn print_history(view: &JobView) -> Result<(), CommandFailure> {
    print_all(view.passes.iter().map(format::trained))?;
    print_all(view.evaluations.iter().map(format::evaluation))?;
    print_all(view.recoveries.iter().map(format::recovery))
}

fn print_all(lines: impl IntoIterator<Item = String>) -> Result<(), CommandFailure> {
    lines.into_iter().try_for_each(|line| output::line(&line))
}

/// What a job does that has not ended.
fn under_way(view: &JobView) -> Vec<String> {
    let mut lines = vec![format::progress(format::ProgressFigures {
        text: &view.phase_text,
        done: view.phase_done,
        rows: view.rows,
        rows_per_second: view.rows_per_second,
        loss: view.training_loss,
        left_ms: view.left_ms,
    })];
    lines.extend(view.set_aside.iter().map(|task| format!("set aside: {task}")));
    let named = |name: &str, text: Option<String>| text.map(|text| format!("{name}: {text}"));
    let figures = [
        named("late tasks", view.stragglers.map(|late| late.text())),
        view.data_locality.map(format::data_locality),
        named("staleness", view.granted_pulls.as_ref().map(format::granted_pulls)),
        named("saving", view.saved.map(format::saved_bytes)),
        named("replication", view.replication.as_ref().map(format::replication)),
        named("updates lost", view.updates_lost.map(format::thousands)),
        named("spares", view.spares.map(|spares| spares.text())),
        named("saves", view.model_saves.as_ref().map(|saves| saves.text())),
        view.credentials.as_ref().map(format::credentials),
        view.storage_wait.as_ref().map(format::storage_wait),
        Some(view.message.clone()).filter(|message| !message.is_empty()),
        Some(slots(view)),
    ];
    lines.extend(figures.into_iter().flatten());
    lines
}

/// The table of containers.
fn slots(view: &JobView) -> String {
    let head = ["slot", "state", "node", "pid", "per second", "memory", "last heartbeat"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for slot in &view.slots {
        rows.push(vec![
            slot.slot.to_string(),
            format::slot_state(slot),
            slot.host.clone(),
            slot.pid.to_string(),
            format::rate(slot.per_second),
            format::size(slot.rss_bytes),
            format::heartbeat_age(slot.heartbeat_age_ms),
        ]);
    }
    output::columns(&rows)
}
