//! Prints the view of a job.

use heddle_am::report::format;
use heddle_am::report::lines::{lines as figure_lines, slot_cells, slot_heads};
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
    print_all(view.passes.iter().map(format::trained))?;
    print_all(view.evaluations.iter().map(format::evaluation))?;
    print_all(view.recoveries.iter().map(format::recovery))?;
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
    lines.extend(figure_lines(view).iter().map(ToString::to_string));
    lines.extend(Some(view.message.clone()).filter(|message| !message.is_empty()));
    lines.push(slots(view));
    lines
}

/// The table of containers.
fn slots(view: &JobView) -> String {
    let head = ["slot", "state", "node", "pid", "per second"].into_iter().chain(slot_heads());
    let mut rows = vec![head.chain(["last heartbeat"]).map(str::to_owned).collect()];
    for slot in &view.slots {
        let mut row = vec![
            slot.slot.to_string(),
            format::slot_state(slot),
            slot.host.clone(),
            slot.pid.to_string(),
            format::rate(slot.per_second),
        ];
        row.extend(slot_cells(&slot.figures));
        row.push(format::heartbeat_age(slot.heartbeat_age_ms));
        rows.push(row);
    }
    output::columns(&rows)
}
