//! State that pulls, lanes and tasks share: the tables, the era, the last cut, requests in flight, pending events.

use std::collections::VecDeque;
use std::sync::Arc;

use heddle_protocol::frame::{Header, Kind};
use heddle_protocol::ids::{CutId, ShardId};

use super::event::ClientEvent;
use super::in_flight::{RequestPurpose, RequestQueue};
use super::parts;
use super::unit::{Era, Unit};
use crate::error::Fault;
use crate::gradient::{Gradient, Payload};
use crate::layout::Layout;

/// What a handler may use besides its own state.
#[derive(Debug)]
pub(super) struct MachineContext {
    pub(super) layout: Layout,
    /// None before the first work.
    pub(super) era: Option<Era>,
    /// The last cut whose barrier was sent; number 0 before the first.
    pub(super) cut: CutId,
    pub(super) requests: RequestQueue,
    pub(super) events: VecDeque<ClientEvent>,
}

impl MachineContext {
    pub(super) fn new(layout: Layout) -> Self {
        Self {
            layout,
            era: None,
            cut: CutId::default(),
            requests: RequestQueue::default(),
            events: VecDeque::new(),
        }
    }

    pub(super) fn fault(&mut self, fault: Fault) {
        self.events.push_back(ClientEvent::Fault(fault));
    }

    /// A header of the current era.
    pub(super) fn header(&self, kind: Kind) -> Header {
        debug_assert!(self.era.is_some(), "requests before the first work are dropped");
        let era = self.era.unwrap_or_default();
        let mut header = Header::new(kind, era.epoch);
        header.phase = era.phase;
        header
    }

    pub(super) fn shards(&self) -> impl Iterator<Item = ShardId> + use<> {
        (0..self.layout.shards()).map(ShardId)
    }

    pub(super) fn shard_count(&self) -> usize {
        self.layout.shards() as usize
    }

    /// Sends a frame without payload to every shard.
    pub(super) fn send_to_all(&mut self, mut header: Header, purpose: &RequestPurpose, unit: Unit) {
        for shard in self.shards() {
            header.shard = shard;
            self.requests.send(header, Payload::none(), purpose.clone(), Some(unit));
        }
    }

    /// Queues all parts of a checked gradient, and returns how many frames the shards have to acknowledge.
    pub(super) fn send_parts(
        &mut self,
        header: Header,
        unit: Unit,
        gradient: &Arc<Gradient>,
    ) -> usize {
        let frames = parts::cut(&self.layout, header, gradient);
        let count = frames.len();
        for (header, payload) in frames {
            self.requests.send(header, payload, RequestPurpose::Push, Some(unit));
        }
        count
    }
}
