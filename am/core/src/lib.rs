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
mod checkpoint;
mod compaction;
mod config;
mod context;
mod core;
mod event;
mod fleet;
mod received_reports;
mod record;
mod reports;
mod stage;
mod time;
mod view;
mod work;

pub use action::{
    Action, CallId, Checkpoint, ConnectionId, ContainerId, OperationId, Outcome, RecordId,
    StoreCall,
};
pub use compaction::compact;
pub use config::{Config, Limits, Locality};
pub use core::Core;
pub use event::{DamagedCheckpoint, Event, Exit, Probe, StartupState, Stored, SurvivingContainer};
pub use received_reports::ReceivedReports;
pub use record::Record;
pub use time::{MonotonicMs, Now};
