//! The container's side of the control plane: finds the ApplicationMaster, registers, sends heartbeats, and receives commands.
//!
//! [`machine`] decides, without sockets or clocks: when to connect, which attempt to follow, when to stop as an orphan.
//! The control thread ([`Agent`]) performs its decisions: it owns the connection and the timers. [`environment`] reads what
//! the process was started with. The meaning of commands is decided by the pserver and the trainer.
//!
//! ```
//! use heddle_agent::machine::{ControlMachine, Input, Output};
//!
//! let mut machine = ControlMachine::new(0);
//! assert!(matches!(machine.on(Input::Timer, 0)[..], [Output::Connect]));
//! assert!(matches!(machine.on(Input::Opened, 5)[..], [Output::Register]));
//! ```

pub mod environment;
pub mod machine;
mod shell;

pub use heddle_channel::{PeerProbe, PeerTimeout};

pub use environment::{
    AmPlace, ContainerEnvironment, EnvironmentError, UserSecrets, log_dir, resident_bytes,
};
pub use machine::AgentExit;
pub use shell::turn::{TurnCounter, slowest};
pub use shell::{
    AddressLookup, Agent, Hooks, InstallTokensHook, LogContext, ReadHighest, Reporter, leave,
};
