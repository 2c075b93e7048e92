//! ASP: applies each part of a task's step at once, exactly once.

use heddle_optimizer::all_finite;
use heddle_protocol::frame::{Status, flags};
use heddle_protocol::ids::TaskId;

use crate::frame::Frame;
use crate::memory::ShardMemory;
use crate::step_count::StepCount;
use crate::table::{NoRoom, SummedGradient};
use crate::task_progress::{Judgement, TaskProgress};

/// Applies a part if it is the next one of its task. Returns the status of the reply.
///
/// # Errors
/// [`NoRoom`]: nothing has happened.
pub(crate) fn apply(
    tasks: &mut TaskProgress,
    steps: &mut StepCount,
    memory: &mut ShardMemory,
    frame: &Frame<'_>,
) -> Result<Status, NoRoom> {
    let ShardMemory { tables, arena, snapshots } = memory;
    let gradient = match tables.check_push(frame) {
        Ok(gradient) => gradient,
        Err(status) => return Ok(status),
    };
    let header = &frame.header;
    let task = TaskId(header.unit);
    match tasks.check_part(task, header.step, header.part) {
        Judgement::Already => return Ok(Status::Already),
        Judgement::Ahead => return Ok(Status::OutOfOrder),
        Judgement::Next => {}
    }
    let mut status = Status::Ok;
    if let Some((index, target, sums)) = gradient {
        let table = &mut tables.all_mut()[index];
        if table.rule.needs_records() && header.rows == 0 {
            return Ok(Status::BadLength);
        }
        if all_finite(sums) {
            let rule = table.rule.at(steps.next());
            let gradient = SummedGradient { sums, records: header.rows.into() };
            table.apply(arena, snapshots.rows_of(index), &rule, target, gradient)?;
        } else {
            status = Status::NotFinite;
        }
    }
    tasks.advance(task, header.step, header.part, header.has(flags::LAST));
    if header.has(flags::LAST) {
        steps.applied();
    }
    Ok(status)
}
