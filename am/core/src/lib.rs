//! The job's state machine: decisions as pure functions of events.
//!
//! [`Core`] takes an event ([`Event`]) and the time ([`Now`]) and returns the actions to perform ([`Action`]). It holds no
//! socket, file, task or clock and draws no random number; its `clippy.toml` forbids them. So the same core runs under
//! YARN, on one machine, and in simulations of thousands of faults. The driver in `heddle-am` waits on sockets, RPC, disks
//! and time.
//!
//! Five components with private state share one context: the fleet (containers), the work (phases and tasks), the
//! checkpoints, the credentials, and the stage of the job. `core` routes events to them and facts between them.
//!
//! ```no_run
//! # fn example(config: heddle_am_core::Config, startup: heddle_am_core::StartupState) {
//! use heddle_am_core::{Core, Event, Now};
//!
//! let mut core = Core::new(config);
//! for action in core.on(Event::Startup(Box::new(startup)), Now::default()) {
//!     println!("{action:?}");
//! }
//! # }
//! ```

mod action;
mod chaos;
mod checkpoint;
mod compaction;
mod config;
mod context;
mod core;
mod credentials;
mod event;
mod failure;
mod fleet;
mod model_saves;
mod outcome;
mod received_reports;
mod record;
mod stage;
#[cfg(test)]
mod tables;
mod time;
mod token_lifetime;
mod token_refresh;
mod work;

pub use action::{
    Action, CallId, Checkpoint, ConnectionId, ContainerName, ContainerOrder, ContainerRequest,
    OperationId, RecordId, StoreCall,
};
pub use compaction::compact;
pub use config::{Config, InputHost, Limits, Locality, RecordedSpec};
pub use core::Core;
pub use event::{DamagedCheckpoint, Event, Exit, Probe, StartupState, Stored, SurvivingContainer};
pub use outcome::Outcome;
pub use received_reports::ReceivedReports;
pub use record::{GrantedSave, LostUpdates, Record, RecordedFill, RecordedView};
pub use time::{MonotonicMs, Now};
pub use token_lifetime::{FetchedTokens, TokenLifetime};
pub use token_refresh::TokenRefresh;
