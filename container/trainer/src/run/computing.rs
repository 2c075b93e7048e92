//! The part of a step that the algorithm does: timed for the heartbeat, and marked, since it may take long and may hang.

use std::time::Instant;

use heddle_fail_points::fail_point;
use heddle_protocol::ids::TaskAttempt;

use super::pipeline::{Pipeline, PipelineAction};
use super::status::SharedStatus;
use crate::algorithm::Algorithm;

/// The next action of a lane's or a task's steps. `attempt`: which hand-out of the task this is; 0 for a lane.
pub(super) fn next_action(
    pipeline: &mut Pipeline,
    algorithm: &mut dyn Algorithm,
    attempt: TaskAttempt,
    status: &SharedStatus,
) -> Option<PipelineAction> {
    if let Some(task) = pipeline.task_ahead() {
        status.computes(task, attempt);
    }
    let (rows, loss) = (pipeline.metrics().rows, pipeline.metrics().loss_sum);
    let started = Instant::now();
    let action = pipeline.next_action(algorithm);
    if let Some(PipelineAction::Push(_) | PipelineAction::Computed) = &action {
        fail_point!("step-computed");
        if let Some(extra) = status.slowness.extra(started.elapsed()) {
            std::thread::sleep(extra);
        }
        fail_point!("step-slowed");
        let took = started.elapsed();
        let metrics = pipeline.metrics();
        let evaluated = matches!(action, Some(PipelineAction::Computed));
        let (rows, loss) = (metrics.rows - rows, metrics.loss_sum - loss);
        status.computed(rows, loss, evaluated, took);
    }
    status.computes_no_more();
    action
}
