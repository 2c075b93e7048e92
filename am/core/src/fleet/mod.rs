//! The containers of the job: slots, registration, liveness, restart policy, drains and preemption.

pub(crate) mod data_path;
pub(crate) mod liveness;
pub(crate) mod membership;
pub(crate) mod oom_retry;
pub(crate) mod preemption;
pub(crate) mod registration;
pub(crate) mod restart_policy;
pub(crate) mod scale;
pub(crate) mod slots;
pub(crate) mod storage_wait;
