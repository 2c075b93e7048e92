//! Requests without a reply: kept, sent, and sent again.
//!
//! Requests are numbered. A connection that opens again gets all of its unanswered requests in the order of their numbers,
//! so that a shard receives a trainer's frames in order across any number of reconnects. A request that a shard cannot take
//! yet waits and is sent again.
//!
//! A clock (SSP) has no reply. It is dropped when it is sent; a connection that opens gets the present one first.
//!
//! A barrier has no reply. It is dropped when a later frame of the same connection is answered, since a pserver reads a
//! connection in order, and when the next cut's barrier is sent. A trainer that sends nothing may therefore send the
//! barrier of an ended cut again. It names the cut by generation and number, so no shard counts it for another cut.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::Range;

use heddle_backoff::Backoff;
use heddle_protocol::control::ShardPlace;
use heddle_protocol::frame::{Header, Kind};
use heddle_protocol::ids::{Member, ShardId};

use super::connections::{Closed, Endpoints};
use super::request::PullId;
use super::unit::Unit;
use crate::gradient::Payload;

/// A frame to send: the header, then the payload's keys, then its values.
#[derive(Clone, Debug)]
pub struct RequestFrame {
    /// The complete header.
    pub header: Header,
    /// Keys and values after it.
    pub payload: Payload,
}

/// What a reply to the request means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RequestPurpose {
    /// Some values of one item of a pull.
    Pull { pull: PullId, item: usize, values: Range<usize> },
    /// A part of a step.
    Push,
    /// The end of a lane's step.
    Done,
    /// The end of a task.
    TaskDone,
    /// The status of a lane.
    Query,
    /// A cut's barrier.
    Barrier,
    /// SSP: the lowest clock. Answers to earlier questions do not count.
    ClockQuery { asked: u64 },
    /// SSP: the present clock.
    Clock,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// In the queue of its connection, or waiting for the connection to open.
    Queued,
    /// Sent. The number counts transmissions on all connections.
    Sent(u64),
    /// Waits to be sent again.
    Waiting { until_ms: u64 },
}

#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) header: Header,
    pub(super) payload: Payload,
    pub(super) purpose: RequestPurpose,
    /// The lane or task that it belongs to, if any: both are dropped together.
    pub(super) unit: Option<Unit>,
    endpoint: SocketAddr,
    state: State,
    tries: u32,
}

/// Counters since the start, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameCounters {
    /// Frames passed to connections, repeats included.
    pub sent: u64,
    /// Of these, frames that had been sent before.
    pub repeated: u64,
    /// Replies that asked to send the frame again later.
    pub postponed: u64,
    /// Replies without a request (other epoch, dropped work).
    pub dropped: u64,
}

/// All requests in flight, and the connections that they use.
#[derive(Debug, Default)]
pub(super) struct RequestQueue {
    requests: BTreeMap<u64, InFlight>,
    /// By time and number: requests to be sent again.
    waiting: BTreeSet<(u64, u64)>,
    /// Barriers among the requests: few, and checked with every reply.
    barriers: BTreeSet<u64>,
    next: u64,
    transmissions: u64,
    places: BTreeMap<ShardId, SocketAddr>,
    pub(super) connections: Endpoints,
    pub(super) counters: FrameCounters,
}

impl RequestQueue {
    /// Sets the addresses of the shards. Requests of shards that moved go to the new address.
    pub(super) fn place(&mut self, places: &[ShardPlace], now_ms: u64) {
        let wanted = places.iter().map(|place| (place.endpoint, place.holder)).collect();
        self.connections.want(&wanted, now_ms);
        self.places = places.iter().map(|place| (place.shard, place.endpoint)).collect();
        let mut unplaced = Vec::new();
        for (&id, request) in &mut self.requests {
            let endpoint = match request.purpose {
                RequestPurpose::Barrier | RequestPurpose::Clock => {
                    Some(request.endpoint).filter(|&e| self.connections.wants(e))
                }
                _ => self.places.get(&request.header.shard).copied(),
            };
            let Some(endpoint) = endpoint else {
                unplaced.push(id);
                continue;
            };
            if endpoint != request.endpoint {
                request.endpoint = endpoint;
                if !matches!(request.state, State::Waiting { .. }) {
                    request.state = State::Queued;
                    self.connections.push(endpoint, id);
                }
            }
        }
        for id in unplaced {
            self.remove(id);
        }
        // The addresses end the wait for what shards rejected until now.
        self.timer(u64::MAX);
    }

    /// Drops all requests.
    pub(super) fn clear(&mut self) {
        self.requests.clear();
        self.waiting.clear();
        self.barriers.clear();
    }

    /// Drops the requests of one lane or task.
    pub(super) fn drop_unit(&mut self, unit: Unit) {
        self.requests.retain(|_, request| request.unit != Some(unit));
        let requests = &self.requests;
        self.waiting.retain(|(_, id)| requests.contains_key(id));
    }

    /// Adds a request to the shard in the header, and fills in `header.request`.
    pub(super) fn send(
        &mut self,
        header: Header,
        payload: Payload,
        purpose: RequestPurpose,
        unit: Option<Unit>,
    ) {
        let endpoint = self.places.get(&header.shard).copied();
        debug_assert!(endpoint.is_some(), "shard {} has no address", header.shard);
        if let Some(endpoint) = endpoint {
            self.add(endpoint, header, payload, purpose, unit);
        }
    }

    /// Sends a barrier on every wanted connection, open or not.
    pub(super) fn send_barrier(&mut self, header: Header) {
        let endpoints: Vec<_> = self.connections.endpoints().collect();
        // Also one that waits: a pserver in another epoch refuses a barrier.
        for older in std::mem::take(&mut self.barriers) {
            self.remove(older);
        }
        for endpoint in endpoints {
            self.barriers.insert(self.next);
            self.add(endpoint, header, Payload::none(), RequestPurpose::Barrier, None);
        }
    }

    /// Sends a clock on every open connection.
    pub(super) fn send_clock(&mut self, header: Header) {
        let endpoints: Vec<_> = self.connections.open_endpoints().collect();
        for endpoint in endpoints {
            self.add(endpoint, header, Payload::none(), RequestPurpose::Clock, None);
        }
    }

    fn add(
        &mut self,
        endpoint: SocketAddr,
        header: Header,
        payload: Payload,
        purpose: RequestPurpose,
        unit: Option<Unit>,
    ) {
        let id = self.next;
        self.next += 1;
        let header = Header { request: id, ..header };
        self.requests.insert(
            id,
            InFlight { header, payload, purpose, unit, endpoint, state: State::Queued, tries: 0 },
        );
        self.connections.push(endpoint, id);
    }

    /// The connection is open: all its unanswered requests are queued in order, after the present clock.
    pub(super) fn opened(&mut self, endpoint: SocketAddr, clock: Option<Header>) {
        if !self.connections.opened(endpoint) {
            return;
        }
        if let Some(clock) = clock {
            self.add(endpoint, clock, Payload::none(), RequestPurpose::Clock, None);
        }
        for (&id, request) in
            self.requests.iter_mut().filter(|(_, request)| request.endpoint == endpoint)
        {
            if let State::Waiting { until_ms } = request.state {
                self.waiting.remove(&(until_ms, id));
            }
            request.state = State::Queued;
            self.connections.push(endpoint, id);
        }
    }

    /// The connection is closed; its frames count as not sent. Returns the pserver that became unreachable, and whether its
    /// port refused, if that was not reported before.
    pub(super) fn closed(
        &mut self,
        endpoint: SocketAddr,
        how: Closed,
        now_ms: u64,
    ) -> Option<(Member, bool)> {
        let is_clock = |request: &InFlight| request.purpose == RequestPurpose::Clock;
        self.requests.retain(|_, request| request.endpoint != endpoint || !is_clock(request));
        for request in self.requests.values_mut().filter(|request| request.endpoint == endpoint) {
            if matches!(request.state, State::Sent(_)) {
                request.state = State::Queued;
            }
        }
        self.connections.closed(endpoint, how, now_ms)
    }

    /// Whether a request was sent to this endpoint and not answered.
    pub(super) fn awaits(&self, endpoint: SocketAddr) -> bool {
        let awaited = |request: &InFlight| {
            request.endpoint == endpoint && matches!(request.state, State::Sent(_))
        };
        self.requests.values().any(awaited)
    }

    /// The next frame for an open connection.
    pub(super) fn next_frame(&mut self, endpoint: SocketAddr) -> Option<RequestFrame> {
        while let Some(id) = self.connections.pop(endpoint) {
            let Some(request) = self.requests.get_mut(&id) else {
                continue;
            };
            if request.endpoint != endpoint || request.state != State::Queued {
                continue;
            }
            self.transmissions += 1;
            self.counters.sent += 1;
            self.counters.repeated += u64::from(request.tries > 0);
            request.tries = request.tries.saturating_add(1);
            request.state = State::Sent(self.transmissions);
            let frame = RequestFrame { header: request.header, payload: request.payload.clone() };
            if request.purpose == RequestPurpose::Clock {
                self.requests.remove(&id);
            }
            return Some(frame);
        }
        None
    }

    /// The request that a reply answers, if it is in flight on that connection.
    pub(super) fn find(&self, endpoint: SocketAddr, reply: &Header) -> Option<&InFlight> {
        self.requests.get(&reply.request).filter(|request| {
            request.endpoint == endpoint
                && matches!(request.state, State::Sent(_))
                && request.header.shard == reply.shard
        })
    }

    /// Removes an answered request, and the barriers that its reply confirms.
    pub(super) fn take(&mut self, id: u64) -> Option<InFlight> {
        let request = self.remove(id);
        debug_assert!(request.is_some(), "the reply was found to match");
        let request = request?;
        self.confirm_barriers(&request);
        Some(request)
    }

    /// Sends a request again later.
    pub(super) fn postpone(&mut self, id: u64, backoff: Backoff, now_ms: u64) {
        self.counters.postponed += 1;
        let Some(request) = self.requests.get_mut(&id) else {
            debug_assert!(false, "the reply was found to match");
            return;
        };
        let until_ms = now_ms + backoff.after_ms(request.tries.saturating_sub(1));
        request.state = State::Waiting { until_ms };
        self.waiting.insert((until_ms, id));
    }

    /// Queues the requests whose wait is over, in order.
    pub(super) fn timer(&mut self, now_ms: u64) {
        let mut due = BTreeSet::new();
        while let Some(&(until_ms, id)) = self.waiting.first()
            && until_ms <= now_ms
        {
            self.waiting.pop_first();
            due.insert(id);
        }
        for id in due {
            let request = self.requests.get_mut(&id);
            debug_assert!(request.is_some(), "a request leaves both lists together");
            if let Some(request) = request {
                request.state = State::Queued;
                self.connections.push(request.endpoint, id);
            }
        }
    }

    pub(super) fn next_deadline(&self) -> Option<u64> {
        let retry = self.waiting.first().map(|&(until_ms, _)| until_ms);
        [retry, self.connections.next_deadline()].into_iter().flatten().min()
    }

    /// Whether an earlier frame of the same unit to the same shard is unanswered: then `OutOfOrder` only means that the
    /// shard could not take that one.
    pub(super) fn has_earlier(&self, id: u64) -> bool {
        let Some(request) = self.requests.get(&id) else {
            debug_assert!(false, "the reply was found to match");
            return false;
        };
        self.requests.range(..id).any(|(_, earlier)| {
            earlier.unit == request.unit
                && earlier.header.shard == request.header.shard
                && earlier.header.kind != Kind::Pull
        })
    }

    fn remove(&mut self, id: u64) -> Option<InFlight> {
        let request = self.requests.remove(&id)?;
        self.barriers.remove(&id);
        if let State::Waiting { until_ms } = request.state {
            self.waiting.remove(&(until_ms, id));
        }
        Some(request)
    }

    fn confirm_barriers(&mut self, answered: &InFlight) {
        let State::Sent(answered_at) = answered.state else {
            return;
        };
        let confirmed = |id: &u64| {
            self.requests.get(id).is_none_or(|barrier| {
                barrier.endpoint == answered.endpoint
                    && matches!(barrier.state, State::Sent(at) if at < answered_at)
            })
        };
        let confirmed: Vec<_> = self.barriers.iter().copied().filter(confirmed).collect();
        for id in confirmed {
            self.remove(id);
        }
    }
}
