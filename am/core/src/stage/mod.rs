//! The stage of the job: rollback, takeover, completion, stop.

pub(crate) mod completion;
pub(crate) mod recovery_timing;
pub(crate) mod rollback;
pub(crate) mod shard_map;
pub(crate) mod stop;
pub(crate) mod takeover;
