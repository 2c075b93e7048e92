//! Requests that are not answered yet: kept, sent, sent again.
//!
//! Every request has a number, counted up. A connection that opens again gets all of its requests that are
//! not answered, in the order of their numbers, so that a shard sees a trainer's frames in order however often the
//! connection broke. A request that a shard cannot take just now waits and goes again by itself.
//!
//! A barrier has no answer. It is forgotten when anything sent after it on the same connection is answered,
//! since a pserver reads a connection in order, and when the next cut's barrier is sent. A trainer that sends nothing may
//! thus send the barrier of a cut that is over again; it names its cut by generation and number, so that no
//! shard counts it for another one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::Range;

use heddle_protocol::control::ShardPlace;
use heddle_protocol::frame::{Header, Kind};
use heddle_protocol::ids::ShardId;

use super::backoff::Backoff;
use super::event::{PullId, Unit};
use super::links::{Closed, Links};
use crate::gradient::Payload;

/// One frame to send: the header, then the payload's keys, then its values.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The header, complete.
    pub header: Header,
    /// What follows it.
    pub payload: Payload,
}

/// What a request is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Some values of one item of a pull.
    Pull { pull: PullId, item: usize, values: Range<usize> },
    /// A part of a step.
    Push,
    /// The end of a lane's step.
    Done,
    /// The end of a task.
    TaskDone,
    /// Where a lane stands.
    Query,
    /// A cut's barrier.
    Barrier,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// In the queue of its connection, or waiting for the connection to open.
    Queued,
    /// Sent; the number counts sendings on all connections.
    Sent(u64),
    /// To be sent again.
    Waiting { until_ms: u64 },
}

#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) header: Header,
    pub(crate) payload: Payload,
    pub(crate) purpose: Purpose,
    /// Whose request, if anybody's: dropped with it.
    pub(crate) unit: Option<Unit>,
    endpoint: SocketAddr,
    state: State,
    tries: u32,
}

/// Counters since the start, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames handed to connections, repeats included.
    pub sent: u64,
    /// Of these, frames that had been sent before.
    pub repeated: u64,
    /// Answers that asked to send the frame again later.
    pub postponed: u64,
    /// Answers that belonged to nothing (other epoch, dropped work).
    pub dropped: u64,
}

#[derive(Debug, Default)]
pub(crate) struct RequestQueue {
    requests: BTreeMap<u64, InFlight>,
    waiting: BTreeSet<(u64, u64)>,
    /// Barriers among them: few, and looked at with every answer.
    barriers: BTreeSet<u64>,
    next: u64,
    sendings: u64,
    places: BTreeMap<ShardId, SocketAddr>,
    pub(crate) links: Links,
    pub(crate) counters: Counters,
}

impl RequestQueue {
    /// Learns where shards are. Requests of shards that moved go to their new place.
    pub(crate) fn place(&mut self, places: &[ShardPlace], now_ms: u64) {
        let wanted = places.iter().map(|place| (place.endpoint, place.holder)).collect();
        self.links.want(&wanted, now_ms);
        self.places = places.iter().map(|place| (place.shard, place.endpoint)).collect();
        let mut gone = Vec::new();
        for (&id, request) in &mut self.requests {
            let endpoint = match request.purpose {
                Purpose::Barrier => Some(request.endpoint).filter(|&e| self.links.wants(e)),
                _ => self.places.get(&request.header.shard).copied(),
            };
            let Some(endpoint) = endpoint else {
                gone.push(id);
                continue;
            };
            if endpoint != request.endpoint {
                request.endpoint = endpoint;
                if !matches!(request.state, State::Waiting { .. }) {
                    request.state = State::Queued;
                    self.links.push(endpoint, id);
                }
            }
        }
        for id in gone {
            self.remove(id);
        }
        // What shards refused until this word came is due now.
        self.timer(u64::MAX);
    }

    /// Forgets everything that is under way.
    pub(crate) fn clear(&mut self) {
        self.requests.clear();
        self.waiting.clear();
        self.barriers.clear();
    }

    /// Forgets what is under way for one lane or task.
    pub(crate) fn forget(&mut self, unit: Unit) {
        self.requests.retain(|_, request| request.unit != Some(unit));
        let requests = &self.requests;
        self.waiting.retain(|(_, id)| requests.contains_key(id));
    }

    /// Adds a request to a shard; `header.request` is filled in. One to a shard without a place is lost, which
    /// can only happen before the first map of an era.
    pub(crate) fn ask(
        &mut self,
        header: Header,
        payload: Payload,
        purpose: Purpose,
        unit: Option<Unit>,
    ) {
        let endpoint = self.places.get(&header.shard).copied();
        debug_assert!(endpoint.is_some(), "shard {} has no place", header.shard);
        if let Some(endpoint) = endpoint {
            self.add(endpoint, header, payload, purpose, unit);
        }
    }

    /// Sends a barrier down every connection that is wanted, open or not.
    pub(crate) fn barrier(&mut self, header: Header) {
        let endpoints: Vec<_> = self.links.endpoints().collect();
        for older in std::mem::take(&mut self.barriers) {
            self.requests.remove(&older);
        }
        for endpoint in endpoints {
            self.barriers.insert(self.next);
            self.add(endpoint, header, Payload::none(), Purpose::Barrier, None);
        }
    }

    fn add(
        &mut self,
        endpoint: SocketAddr,
        header: Header,
        payload: Payload,
        purpose: Purpose,
        unit: Option<Unit>,
    ) {
        let id = self.next;
        self.next += 1;
        let header = Header { request: id, ..header };
        self.requests.insert(
            id,
            InFlight { header, payload, purpose, unit, endpoint, state: State::Queued, tries: 0 },
        );
        self.links.push(endpoint, id);
    }

    pub(crate) fn opened(&mut self, endpoint: SocketAddr) {
        if !self.links.opened(endpoint) {
            return;
        }
        for (&id, request) in
            self.requests.iter_mut().filter(|(_, request)| request.endpoint == endpoint)
        {
            if let State::Waiting { until_ms } = request.state {
                self.waiting.remove(&(until_ms, id));
            }
            request.state = State::Queued;
            self.links.push(endpoint, id);
        }
    }

    /// The connection is gone; what was sent on it counts as not sent. Returns who is unreachable if that is news.
    pub(crate) fn closed(
        &mut self,
        endpoint: SocketAddr,
        how: Closed,
        now_ms: u64,
    ) -> Option<(heddle_protocol::ids::Member, bool)> {
        for request in self.requests.values_mut().filter(|request| request.endpoint == endpoint) {
            if matches!(request.state, State::Sent(_)) {
                request.state = State::Queued;
            }
        }
        self.links.closed(endpoint, how, now_ms)
    }

    /// The next frame for an open connection.
    pub(crate) fn next_frame(&mut self, endpoint: SocketAddr) -> Option<Frame> {
        while let Some(id) = self.links.pop(endpoint) {
            let Some(request) = self.requests.get_mut(&id) else {
                continue;
            };
            if request.endpoint != endpoint || request.state != State::Queued {
                continue;
            }
            self.sendings += 1;
            self.counters.sent += 1;
            self.counters.repeated += u64::from(request.tries > 0);
            request.tries = request.tries.saturating_add(1);
            request.state = State::Sent(self.sendings);
            return Some(Frame { header: request.header, payload: request.payload.clone() });
        }
        None
    }

    /// The request that a reply answers, if it is under way on that connection.
    pub(crate) fn find(&self, endpoint: SocketAddr, reply: &Header) -> Option<&InFlight> {
        self.requests.get(&reply.request).filter(|request| {
            request.endpoint == endpoint
                && matches!(request.state, State::Sent(_))
                && request.header.shard == reply.shard
        })
    }

    /// Whose request it is.
    pub(crate) fn find_unit(&self, id: u64) -> Option<Unit> {
        self.requests.get(&id)?.unit
    }

    /// Takes an answered request out, and the barriers that this answer confirms.
    pub(crate) fn take(&mut self, id: u64) -> Option<InFlight> {
        let request = self.remove(id)?;
        self.confirm_barriers(&request);
        Some(request)
    }

    /// Sends a request again later.
    pub(crate) fn postpone(&mut self, id: u64, backoff: Backoff, now_ms: u64) {
        self.counters.postponed += 1;
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        let until_ms = now_ms + backoff.wait_ms(request.tries.saturating_sub(1));
        request.state = State::Waiting { until_ms };
        self.waiting.insert((until_ms, id));
    }

    /// Sends again what has waited long enough, in order.
    pub(crate) fn timer(&mut self, now_ms: u64) {
        let mut due = BTreeSet::new();
        while let Some(&(until_ms, id)) = self.waiting.first()
            && until_ms <= now_ms
        {
            self.waiting.pop_first();
            due.insert(id);
        }
        for id in due {
            if let Some(request) = self.requests.get_mut(&id) {
                request.state = State::Queued;
                self.links.push(request.endpoint, id);
            }
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<u64> {
        let retry = self.waiting.first().map(|&(until_ms, _)| until_ms);
        [retry, self.links.next_deadline()].into_iter().flatten().min()
    }

    /// Whether an earlier frame of the same unit to the same shard is not answered: then "out of order" says
    /// no more than that the shard could not take that one.
    pub(crate) fn has_earlier(&self, id: u64) -> bool {
        let Some(request) = self.requests.get(&id) else {
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
