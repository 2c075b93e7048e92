//! The work of the job: phases, lanes, tasks, dispatch, evaluation, locality.

pub(crate) mod data_statistics;
pub(crate) mod dispatch;
pub(crate) mod evaluation;
pub(crate) mod lanes;
pub(crate) mod locality;
pub(crate) mod phases;
pub(crate) mod queue;
pub(crate) mod step_rate;
