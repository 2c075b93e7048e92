//! The job's state machine: decisions as pure functions of events.
