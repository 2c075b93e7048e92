//! Which streams to backups a data thread has, and what wakes them. `peer_stream` serves one.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use heddle_channel::PeerTimeout;
use heddle_protocol::ids::Member;
use heddle_shard::Peer;
use tokio::sync::Notify;

/// The streams of a data thread; none without replicas.
pub(super) struct PeerStreams {
    own: Member,
    timeout: PeerTimeout,
    /// Each with what wakes it.
    streams: RefCell<BTreeMap<Peer, Rc<Notify>>>,
}

impl PeerStreams {
    pub(super) fn new(own: Member, timeout: PeerTimeout) -> Self {
        Self { own, timeout, streams: RefCell::default() }
    }

    /// The name that a stream proves, and when its connection closes.
    pub(super) fn identity(&self) -> (Member, PeerTimeout) {
        (self.own, self.timeout)
    }

    /// There are new entries.
    pub(super) fn wake(&self) {
        self.streams.borrow().values().for_each(|wake| wake.notify_one());
    }

    /// Whether this stream still has to exist.
    pub(super) fn is_wanted(&self, peer: Peer, wake: &Rc<Notify>) -> bool {
        self.streams.borrow().get(&peer).is_some_and(|own| Rc::ptr_eq(own, wake))
    }

    /// Wants exactly these streams. Returns the new ones, which have to be served.
    pub(super) fn want(&self, wanted: BTreeSet<Peer>) -> Vec<(Peer, Rc<Notify>)> {
        let mut streams = self.streams.borrow_mut();
        // Those that stay may have entries by a new view, and the others end.
        streams.values().for_each(|wake| wake.notify_one());
        streams.retain(|peer, _| wanted.contains(peer));
        let new: Vec<_> = wanted.into_iter().filter(|peer| !streams.contains_key(peer)).collect();
        let new = new.into_iter().map(|peer| (peer, Rc::new(Notify::new())));
        let new: Vec<_> = new.collect();
        streams.extend(new.iter().cloned());
        new
    }
}
