//! What every container does: find the ApplicationMaster, register, beat, obey.
//!
//! The decisions (when to connect, whom to obey, when to give up as an orphan) are a state machine
//! without sockets or clocks in [`machine`]; [`session`] owns the connection and the thread; [`leader`] knows
//! where the ApplicationMaster is. What the commands mean is decided by the pserver and the trainer, not here.

pub mod environment;
pub mod leader;
pub mod machine;
pub mod session;

pub use environment::{AmPlace, Environment, EnvironmentError, log_dir};
pub use leader::{ReadHighest, Reading};
pub use machine::Exit;
pub use session::{Agent, Hooks, Reporter, leave};
