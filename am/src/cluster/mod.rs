//! Where containers come from: one trait, a cluster behind it.
//!
//! A cluster performs what the core asks (get, launch, stop containers) and says what happened, as
//! the core's events. It decides nothing about the job.

pub mod local;
pub mod yarn;

use heddle_am_core::{ContainerId, Event};
use heddle_protocol::ids::{Incarnation, Member, Slot};
use heddle_protocol::spec::Bytes;
use heddle_protocol::view::Placement;
use tokio::sync::mpsc;

/// A container that is wanted.
#[derive(Clone, Debug)]
pub struct ContainerRequest {
    /// The place.
    pub slot: Slot,
    /// The filling it is for.
    pub incarnation: Incarnation,
    /// Nodes not to take.
    pub avoid: Vec<String>,
    /// Hosts that would suit best, the best first; another one will do.
    pub prefer: Vec<String>,
    /// Memory in place of the spec's.
    pub memory: Option<Bytes>,
}

/// A source of containers. Calls return at once; what comes of them arrives as events.
pub trait ContainerSource {
    /// Get a container. Answered by `Allocated`.
    fn ask(&mut self, ask: ContainerRequest);
    /// The ask is not wanted any more.
    fn cancel(&mut self, slot: Slot, incarnation: Incarnation);
    /// Give a container back unused.
    fn release(&mut self, container: &ContainerId);
    /// Start the member's process in the container. Answered by `Started` or `Exited`.
    fn launch(&mut self, container: &ContainerId, member: Member);
    /// Asks the container's process to end, kill it after `grace_ms`. Answered by `Exited`.
    fn stop(&mut self, container: &ContainerId, grace_ms: u64);

    /// A container has said which one it is and who runs in it.
    fn known(&mut self, _container: &ContainerId, _member: Member) {}
    /// The connection of this member closed: find out whether its process ended, if that can be known before it is told.
    fn look(&mut self, _member: Member) {}
    /// How much of the job is done, 0 … 1, for people.
    fn progress(&mut self, _done: f32) {}
    /// The container of a member, as people know it; also after its end.
    fn placement(&self, _member: Member) -> Option<Placement> {
        None
    }
}

/// Where a cluster's events go. Unbounded: they are a few per container in its life.
pub type Events = mpsc::UnboundedSender<Event>;
