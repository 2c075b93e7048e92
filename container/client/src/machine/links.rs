//! Connections to data threads, as far as the machine knows of them: wanted, being opened, open.
//!
//! ```text
//!           due          opened
//! Waiting ──────▶ Opening ──────▶ Open
//!    ▲               │ closed       │ closed
//!    └───────────────┴──────────────┘   wait by back-off
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use heddle_protocol::ids::Member;

use super::backoff::RECONNECT;

/// Why a connection is gone, or never was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// It was open and ended.
    Broke,
    /// The port refused it: nobody listens there.
    Refused,
    /// It could not be opened for another reason.
    Failed,
    /// The pserver answers but does not know this trainer (yet).
    NotMember,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting { until_ms: u64 },
    Opening,
    Open,
}

#[derive(Debug)]
struct Link {
    holder: Member,
    state: State,
    tries: u32,
    told_broken: bool,
    told_refused: bool,
    /// Requests to send, in order; ids that are gone or lie elsewhere by now are skipped.
    queue: VecDeque<u64>,
}

/// All connections of this client.
#[derive(Debug, Default)]
pub(crate) struct Links(BTreeMap<SocketAddr, Link>);

impl Links {
    /// Wants exactly these; new ones are due at once.
    pub(crate) fn want(&mut self, wanted: &BTreeMap<SocketAddr, Member>, now_ms: u64) {
        self.0.retain(|endpoint, _| wanted.contains_key(endpoint));
        for (&endpoint, &holder) in wanted {
            let link = self.0.entry(endpoint).or_insert_with(|| Link {
                holder,
                state: State::Waiting { until_ms: now_ms },
                tries: 0,
                told_broken: false,
                told_refused: false,
                queue: VecDeque::new(),
            });
            if link.holder != holder {
                // Another container at the same address: what was said of the old one says nothing of it.
                link.holder = holder;
                link.told_broken = false;
                link.told_refused = false;
                if let State::Waiting { until_ms } = &mut link.state {
                    *until_ms = now_ms;
                    link.tries = 0;
                }
            }
        }
    }

    pub(crate) fn wants(&self, endpoint: SocketAddr) -> bool {
        self.0.contains_key(&endpoint)
    }

    /// Containers with a connection that is lost and not open again, sorted.
    pub(crate) fn outages(&self) -> Vec<Member> {
        let lost = |link: &&Link| link.told_broken || link.told_refused;
        let mut members: Vec<Member> =
            self.0.values().filter(lost).map(|link| link.holder).collect();
        members.sort_unstable();
        members.dedup();
        members
    }

    pub(crate) fn endpoints(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.0.keys().copied()
    }

    /// The next connection to open, which then counts as being opened.
    pub(crate) fn next_due(&mut self, now_ms: u64) -> Option<SocketAddr> {
        let due =
            |link: &Link| matches!(link.state, State::Waiting { until_ms } if until_ms <= now_ms);
        let (&endpoint, link) = self.0.iter_mut().find(|(_, link)| due(link))?;
        link.state = State::Opening;
        Some(endpoint)
    }

    pub(crate) fn next_deadline(&self) -> Option<u64> {
        let until = |link: &Link| match link.state {
            State::Waiting { until_ms } => Some(until_ms),
            State::Opening | State::Open => None,
        };
        self.0.values().filter_map(until).min()
    }

    /// The connection is open; its queue starts anew.
    pub(crate) fn opened(&mut self, endpoint: SocketAddr) -> bool {
        let Some(link) = self.0.get_mut(&endpoint) else {
            return false;
        };
        link.state = State::Open;
        link.tries = 0;
        link.told_broken = false;
        link.told_refused = false;
        link.queue.clear();
        true
    }

    /// The connection is gone. Returns who is unreachable and whether the port refused, if that is news.
    pub(crate) fn closed(
        &mut self,
        endpoint: SocketAddr,
        how: Closed,
        now_ms: u64,
    ) -> Option<(Member, bool)> {
        let link = self.0.get_mut(&endpoint)?;
        link.state = State::Waiting { until_ms: now_ms + RECONNECT.wait_ms(link.tries) };
        link.tries = link.tries.saturating_add(1);
        link.queue.clear();
        let (news, refused) = match how {
            Closed::NotMember => (false, false),
            Closed::Refused => (!std::mem::replace(&mut link.told_refused, true), true),
            Closed::Broke | Closed::Failed => {
                (!std::mem::replace(&mut link.told_broken, true), false)
            }
        };
        news.then_some((link.holder, refused))
    }

    /// Puts a request at the end of an open connection's queue; a closed one takes all anew when it opens.
    pub(crate) fn push(&mut self, endpoint: SocketAddr, request: u64) {
        if let Some(link) = self.0.get_mut(&endpoint)
            && link.state == State::Open
        {
            link.queue.push_back(request);
        }
    }

    pub(crate) fn pop(&mut self, endpoint: SocketAddr) -> Option<u64> {
        self.0.get_mut(&endpoint)?.queue.pop_front()
    }

    pub(crate) fn has_queued(&self, endpoint: SocketAddr) -> bool {
        self.0.get(&endpoint).is_some_and(|link| !link.queue.is_empty())
    }
}
