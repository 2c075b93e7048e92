//! Sources of containers: child processes (`local`) or YARN (`yarn`), behind one trait.
//!
//! A source performs the core's orders (request, launch, stop containers) and reports results as the core's events. It
//! decides nothing about the job.

pub mod local;
pub mod yarn;

use heddle_am_core::{ContainerName, Event};
use heddle_protocol::ids::{Incarnation, Member, Slot};
use heddle_protocol::spec::Bytes;
use heddle_protocol::view::Placement;
use tokio::sync::mpsc;

/// A request for a container.
#[derive(Clone, Debug)]
pub struct ContainerRequest {
    /// The slot.
    pub slot: Slot,
    /// The incarnation that it is for.
    pub incarnation: Incarnation,
    /// Nodes to avoid.
    pub avoid: Vec<String>,
    /// Preferred hosts, best first; any other host is acceptable.
    pub prefer: Vec<String>,
    /// Memory, if it differs from the spec's.
    pub memory: Option<Bytes>,
}

/// A source of containers. Calls return at once; results arrive as events.
pub trait ContainerSource {
    /// Requests a container. The result is `Allocated`.
    fn ask(&mut self, ask: ContainerRequest);
    /// Cancels a request.
    fn cancel(&mut self, slot: Slot, incarnation: Incarnation);
    /// Releases an unused container.
    fn release(&mut self, container: &ContainerName);
    /// Starts the member's process in the container. `Exited` reports its end.
    fn launch(&mut self, container: &ContainerName, member: Member);
    /// Asks the container's process to end, and kills it after `grace_ms`. The result is `Exited`.
    fn stop(&mut self, container: &ContainerName, grace_ms: u64);

    /// A container has registered: `member` runs in it.
    fn known(&mut self, _container: &ContainerName, _member: Member) {}
    /// The connection of this member closed: checks whether its process has ended, where that can be known early.
    fn look(&mut self, _member: Member) {}
    /// Reports the finished share of the job, 0 … 1, for display.
    fn progress(&mut self, _done: f32) {}
    /// The container of a member, for display; also after its end.
    fn placement(&self, _member: Member) -> Option<Placement> {
        None
    }
}

/// Where a source's events go. Unbounded: each container causes a few events in its life.
pub type Events = mpsc::UnboundedSender<Event>;
