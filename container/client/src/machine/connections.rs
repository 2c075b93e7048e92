//! Connections to data threads as the machine sees them: wanted, being opened, open.
//!
//! ```text
//!           due          opened
//! Waiting ──────▶ Opening ──────▶ Open
//!    ▲               │ closed       │ closed
//!    └───────────────┴──────────────┘   back-off
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use heddle_protocol::ids::Member;

use super::backoff::RECONNECT;

/// Why a connection closed or did not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// It was open and ended.
    Broke,
    /// The port refused it: no process listens there.
    Refused,
    /// It could not be opened for another reason.
    Failed,
    /// The pserver responds but has not registered this trainer (yet).
    NotMember,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting { until_ms: u64 },
    Opening,
    Open,
}

#[derive(Debug)]
struct Endpoint {
    /// The pserver's container at this address.
    holder: Member,
    state: State,
    tries: u32,
    reported_broken: bool,
    reported_refused: bool,
    /// Since when its path is lost.
    lost_since_ms: Option<u64>,
    /// Requests to send, in order. Numbers of dropped or moved requests are skipped.
    queue: VecDeque<u64>,
}

/// All connections of this client.
#[derive(Debug, Default)]
pub(super) struct Endpoints(BTreeMap<SocketAddr, Endpoint>);

impl Endpoints {
    /// The container at this address.
    pub(super) fn holder(&self, endpoint: SocketAddr) -> Option<Member> {
        self.0.get(&endpoint).map(|known| known.holder)
    }

    /// Wants exactly these connections; new ones are due at once.
    pub(super) fn want(&mut self, wanted: &BTreeMap<SocketAddr, Member>, now_ms: u64) {
        self.0.retain(|endpoint, _| wanted.contains_key(endpoint));
        for (&endpoint, &holder) in wanted {
            let known = self.0.entry(endpoint).or_insert_with(|| Endpoint {
                holder,
                state: State::Waiting { until_ms: now_ms },
                tries: 0,
                reported_broken: false,
                reported_refused: false,
                lost_since_ms: None,
                queue: VecDeque::new(),
            });
            if known.holder != holder {
                // Another container at the same address: reports on the previous one do not apply.
                known.holder = holder;
                known.reported_broken = false;
                known.reported_refused = false;
                known.lost_since_ms = None;
                if let State::Waiting { until_ms } = &mut known.state {
                    *until_ms = now_ms;
                    known.tries = 0;
                }
            }
        }
    }

    pub(super) fn wants(&self, endpoint: SocketAddr) -> bool {
        self.0.contains_key(&endpoint)
    }

    /// Containers with a lost path, sorted, each with the time since when.
    pub(super) fn outages(&self) -> BTreeMap<Member, u64> {
        let mut members = BTreeMap::new();
        for endpoint in self.0.values() {
            if let Some(lost_ms) = endpoint.lost_since_ms {
                let since_ms: &mut u64 = members.entry(endpoint.holder).or_insert(lost_ms);
                *since_ms = lost_ms.min(*since_ms);
            }
        }
        members
    }

    /// A probe has found the path of an open connection lost since this time, or whole.
    pub(super) fn probed(&mut self, endpoint: SocketAddr, lost_since_ms: Option<u64>) {
        if let Some(endpoint) = self.0.get_mut(&endpoint)
            && endpoint.state == State::Open
        {
            endpoint.lost_since_ms = lost_since_ms;
        }
    }

    pub(super) fn endpoints(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.0.keys().copied()
    }

    /// Endpoints with an open connection.
    pub(super) fn open_endpoints(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        let open = self.0.iter().filter(|(_, endpoint)| endpoint.state == State::Open);
        open.map(|(&address, _)| address)
    }

    /// The next connection to open, which counts as being opened from now on.
    pub(super) fn next_to_open(&mut self, now_ms: u64) -> Option<SocketAddr> {
        let due =
            |state: &State| matches!(state, State::Waiting { until_ms } if *until_ms <= now_ms);
        let (&address, endpoint) = self.0.iter_mut().find(|(_, endpoint)| due(&endpoint.state))?;
        endpoint.state = State::Opening;
        Some(address)
    }

    pub(super) fn next_deadline(&self) -> Option<u64> {
        let until = |endpoint: &Endpoint| match endpoint.state {
            State::Waiting { until_ms } => Some(until_ms),
            State::Opening | State::Open => None,
        };
        self.0.values().filter_map(until).min()
    }

    /// The connection is open, with an empty queue. False if it is not wanted.
    pub(super) fn opened(&mut self, endpoint: SocketAddr) -> bool {
        let Some(endpoint) = self.0.get_mut(&endpoint) else {
            return false;
        };
        endpoint.state = State::Open;
        endpoint.tries = 0;
        endpoint.reported_broken = false;
        endpoint.reported_refused = false;
        endpoint.lost_since_ms = None;
        endpoint.queue.clear();
        true
    }

    /// The connection is closed. Returns the container and whether its port refused, if that was not reported before.
    pub(super) fn closed(
        &mut self,
        endpoint: SocketAddr,
        how: Closed,
        now_ms: u64,
    ) -> Option<(Member, bool)> {
        let endpoint = self.0.get_mut(&endpoint)?;
        endpoint.state = State::Waiting { until_ms: now_ms + RECONNECT.after_ms(endpoint.tries) };
        endpoint.tries = endpoint.tries.saturating_add(1);
        endpoint.queue.clear();
        if how != Closed::NotMember {
            endpoint.lost_since_ms.get_or_insert(now_ms);
        }
        let (new, refused) = match how {
            Closed::NotMember => (false, false),
            Closed::Refused => (!std::mem::replace(&mut endpoint.reported_refused, true), true),
            Closed::Broke | Closed::Failed => {
                (!std::mem::replace(&mut endpoint.reported_broken, true), false)
            }
        };
        new.then_some((endpoint.holder, refused))
    }

    /// Appends a request to an open connection's queue. A closed one gets all its requests when it opens.
    pub(super) fn push(&mut self, endpoint: SocketAddr, request: u64) {
        if let Some(endpoint) = self.0.get_mut(&endpoint)
            && endpoint.state == State::Open
        {
            endpoint.queue.push_back(request);
        }
    }

    pub(super) fn pop(&mut self, endpoint: SocketAddr) -> Option<u64> {
        self.0.get_mut(&endpoint)?.queue.pop_front()
    }

    pub(super) fn has_queued(&self, endpoint: SocketAddr) -> bool {
        self.0.get(&endpoint).is_some_and(|endpoint| !endpoint.queue.is_empty())
    }
}
