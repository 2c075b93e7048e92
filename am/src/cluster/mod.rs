//! Sources of containers: child processes (`local`) or YARN (`yarn`), behind one trait.
//!
//! A source performs the core's orders (request, launch, stop containers) and reports results as the core's events. It
//! decides nothing about the job.

pub mod local;
pub mod yarn;

use std::collections::BTreeSet;

use heddle_am_core::{ContainerName, ContainerOrder, Event};
use heddle_protocol::ids::Member;
use heddle_protocol::view::Placement;
use tokio::sync::mpsc;

/// A source of containers. Calls return at once; results arrive as events.
pub trait ContainerSource {
    /// Performs an order of the core.
    fn order(&mut self, order: ContainerOrder);

    /// A container has registered: `member` runs in it.
    fn registered(&mut self, _container: &ContainerName, _member: Member) {}
    /// The connection of this member closed: checks whether its process has ended, where that can be determined early.
    fn connection_closed(&mut self, _member: Member) {}
    /// Reports the finished share of the job, 0 … 1, for display.
    fn progress(&mut self, _done: f32) {}
    /// Containers of earlier attempts were on these hosts, which those attempts may have excluded.
    fn used_before(&mut self, _hosts: BTreeSet<String>) {}
    /// The container of a member, for display; also after its end.
    fn placement(&self, _member: Member) -> Option<Placement> {
        None
    }
}

/// Where a source's events go. Unbounded: each container causes a few events in its life.
pub type Events = mpsc::UnboundedSender<Event>;
