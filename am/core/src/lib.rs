//! The job's state machine: decisions as pure functions of events.
//!
//! [`Core`] is told what happened ([`Event`]) and when ([`Now`]), and says what to do ([`Action`]). It
//! holds no socket, file, task or clock and draws no random number; its `clippy.toml` refuses them. So
//! the same core runs under YARN, on one machine, and in simulations of thousands of faults. Who waits
//! on sockets, RPC, disks and time is the driver, in `heddle-am`.
//!
//! ```text
//!             ┌────────────────────────── driver ──────────────────────────┐
//!   cluster ──┤                                                            ├── journal
//!   control ──┤  Event, Now ──▶ Core::on ──▶ Vec<Action>                   ├── store
//!   people  ──┤               ◀── Core::next_deadline, Core::view           ├── clock
//!             └────────────────────────────────────────────────────────────┘
//! ```

mod action;
mod blame;
mod commit;
mod compaction;
mod config;
mod core;
mod cut;
mod deadlines;
mod deal;
mod due;
mod event;
mod figures;
mod finish;
mod heard;
mod incident;
mod joins;
mod lanes;
mod lease;
mod leaving;
mod liveness;
mod manifest;
mod members;
mod memory;
mod near;
mod outages;
mod outbox;
mod pace;
mod phases;
mod queue;
mod record;
mod reports;
mod rollback;
mod scale;
mod scores;
mod shard_map;
mod slots;
mod snapshots;
mod stop;
mod storage_wait;
mod takeover;
mod time;
mod view;

pub use action::{
    Action, CallId, Checkpoint, ConnectionId, ContainerId, OperationId, Outcome, RecordId,
    StoreCall,
};
pub use compaction::compact;
pub use config::{Config, Limits, Locality};
pub use core::Core;
pub use event::{DamagedCheckpoint, Event, Exit, Kept, Probe, Recovered, Stored};
pub use heard::Heard;
pub use record::Record;
pub use time::{Mono, Now};
