//! What every component uses: time, deadlines, outgoing actions, store calls.

pub(crate) mod deadlines;
pub(crate) mod journal_gate;
pub(crate) mod lease;
