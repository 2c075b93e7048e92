//! One copy of a shard: its role, the number of its last change, and the changes that a backup may still need.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use heddle_protocol::control::{BackupPlace, ReplicaState, ReplicationLag, ShardView};
use heddle_protocol::frame::Header;
use heddle_protocol::ids::{Member, Term, ViewVersion};
use heddle_protocol::mutation::Mutation;

use super::backup_stream::{Alignment, BackupStream};
use super::incoming_fill::IncomingFill;
use super::outgoing_fill::OutgoingFill;
use crate::change::ShardChange;
use crate::effect::ShardEffect;
use crate::frame::Frame;

/// A copy.
pub(crate) struct ShardReplica {
    view: ShardView,
    pub(crate) role: CopyRole,
    /// Of the last change.
    number: u64,
    /// All in-sync copies have the changes up to this one.
    committed: u64,
    /// The last changes; the newest has `number`.
    tail: VecDeque<Arc<ShardChange>>,
    tail_bytes: usize,
    /// Why the copy follows no more.
    useless: Option<Useless>,
    /// Answers that waited for backups when the copy stopped to serve.
    unanswered: VecDeque<ShardEffect>,
    /// It was deposed without a change of its own since its promotion.
    stood: bool,
    /// A view has ordered to fill it, and none has it in the in-sync set yet.
    pub(super) filling: Option<IncomingFill>,
}

/// Why a copy cannot follow a primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Useless {
    /// A change did not fit.
    Unfit,
    /// It went on by itself when another copy served already. Its content is right, since its answers were not given.
    OwnChanges,
}

/// What a copy does.
pub(crate) enum CopyRole {
    /// Serves trainers.
    Primary(Box<Serving>),
    /// Follows the primary.
    Backup,
    /// Served in a lower term. Keeps its content until a view leaves it out.
    Deposed,
}

/// The state of a primary.
#[derive(Default)]
pub(crate) struct Serving {
    pub(crate) followers: BTreeMap<Member, BackupStream>,
    /// Answers, and the change that each waits for.
    held: VecDeque<(u64, ShardEffect)>,
    /// A loss of the primary before began the term, at the change with this number: other copies of the set may have fewer
    /// changes, or others.
    pub(super) began: Option<u64>,
}

impl ShardReplica {
    /// The copy at the beginning of an epoch.
    pub(crate) fn new(own: Member, view: ShardView) -> Self {
        let mut copy = Self {
            role: CopyRole::Backup,
            number: 0,
            committed: 0,
            tail: VecDeque::new(),
            tail_bytes: 0,
            useless: None,
            unanswered: VecDeque::new(),
            stood: false,
            filling: None,
            view,
        };
        if copy.view.primary == own {
            copy.serve(None);
        }
        copy
    }

    pub(crate) fn view(&self) -> &ShardView {
        &self.view
    }

    pub(crate) fn term(&self) -> Term {
        self.view.term
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn committed(&self) -> u64 {
        self.committed
    }

    pub(crate) fn tail_bytes(&self) -> usize {
        self.tail_bytes
    }

    pub(crate) fn is_primary(&self) -> bool {
        matches!(self.role, CopyRole::Primary(_))
    }

    /// Whether it is a primary with others to stream to.
    pub(super) fn streams(&self) -> bool {
        self.serving().is_some_and(|serving| !serving.followers.is_empty())
    }

    /// Whether it serves alone and holds back no answers.
    pub(super) fn is_alone(&self) -> bool {
        self.serving().is_some_and(|own| own.followers.is_empty() && own.held.is_empty())
    }

    pub(crate) fn is_useless(&self) -> bool {
        self.useless.is_some()
    }

    pub(crate) fn set_useless(&mut self, why: Useless) {
        self.useless.get_or_insert(why);
    }

    /// Answers that will not be given, since the copy does not serve any more.
    pub(crate) fn take_unanswered(&mut self) -> VecDeque<ShardEffect> {
        std::mem::take(&mut self.unanswered)
    }

    pub(crate) fn state(&self, whole: bool) -> ReplicaState {
        let (term, version) = self.view.order();
        let is_filled = self.filling.as_ref().is_none_or(IncomingFill::is_whole);
        let (primary, whole) = (self.is_primary(), whole && !self.is_useless() && is_filled);
        ReplicaState { term, version, primary, number: self.number, whole }
    }

    /// Whether nothing more has to wait for changes up to `number`.
    pub(crate) fn has_committed(&self, number: u64) -> bool {
        !self.is_primary() || self.committed >= number
    }

    pub(crate) fn serving_mut(&mut self) -> Option<&mut Serving> {
        match &mut self.role {
            CopyRole::Primary(serving) => Some(serving),
            CopyRole::Backup | CopyRole::Deposed => None,
        }
    }

    pub(crate) fn serving(&self) -> Option<&Serving> {
        match &self.role {
            CopyRole::Primary(serving) => Some(serving),
            CopyRole::Backup | CopyRole::Deposed => None,
        }
    }

    /// A view orders to fill the copy: what it has does not count any more.
    pub(crate) fn fill(&mut self, order: ViewVersion) {
        self.role = CopyRole::Backup;
        (self.number, self.committed, self.useless) = (0, 0, None);
        self.tail.clear();
        self.tail_bytes = 0;
        self.filling = Some(IncomingFill::new(order));
    }

    /// How far the slowest in-sync backup is behind, of a copy that streams.
    pub(crate) fn lag(&self, now: Duration) -> Option<ReplicationLag> {
        let serving = self.serving().filter(|_| self.streams())?;
        let in_sync = serving.followers.values().filter(|follower| follower.in_sync);
        let lags = in_sync.map(|follower| {
            let entries = self.number.saturating_sub(follower.acknowledged);
            let owed = follower.owes_since.filter(|_| entries > 0);
            let owed = owed.map_or(Duration::ZERO, |since| now.saturating_sub(since));
            let bytes = if entries > 0 { self.tail_bytes as u64 } else { 0 };
            ReplicationLag { entries, bytes, ms: owed.as_millis() as u64 }
        });
        Some(lags.reduce(ReplicationLag::max).unwrap_or_default())
    }

    /// The number of the refill that fills the copy.
    pub(crate) fn fill_order(&self) -> Option<ViewVersion> {
        self.filling.as_ref().map(|filling| filling.name.order)
    }

    /// The copy is in the in-sync set.
    pub(crate) fn settle(&mut self) {
        self.filling = None;
    }

    /// Starts at this number: the state of a refill has all changes up to it.
    pub(super) fn start_at(&mut self, number: u64) {
        (self.number, self.committed, self.useless) = (number, 0, None);
        self.tail.clear();
        self.tail_bytes = 0;
    }

    /// Takes a later view. Returns whether this copy becomes the primary by it; one that a change did not fit does not serve.
    pub(crate) fn take_view(&mut self, own: Member, view: ShardView) -> bool {
        debug_assert!(view.order() > self.view.order(), "views are ordered");
        let begins = view.term > self.view.term;
        self.view = view;
        let (is_primary, was_primary) = (self.view.primary == own, self.is_primary());
        if was_primary && !is_primary {
            self.depose();
        }
        let stays = is_primary && was_primary;
        if let Some(number) = self.view.began_at.filter(|_| begins && !stays) {
            self.continue_from(own, number);
        }
        match (is_primary, was_primary) {
            (true, true) => {
                self.set_followers();
                if begins {
                    // Another copy served in between, and nothing that it has was acknowledged without this one.
                    self.followers_differ();
                }
            }
            (true, false) if self.useless == Some(Useless::Unfit) => self.role = CopyRole::Deposed,
            (true, false) => {
                let number = self.number;
                let is_there = self.view.began_at == Some(number);
                self.serve(Some(number).filter(|_| !is_there));
                if self.useless.take_if(|why| *why == Useless::OwnChanges).is_some() {
                    self.followers_differ();
                }
            }
            (false, _) => self.give_way(own),
        }
        if self.is_primary() && !self.streams() {
            // Changes are not counted from now on: a copy that was left out, and lacks the view, has fewer.
            self.number += 1;
            self.all_have(self.number);
        }
        is_primary && !was_primary
    }

    /// All copies of the set have the changes up to this one.
    pub(super) fn all_have(&mut self, number: u64) {
        self.committed = self.committed.max(number);
        self.trim(number);
    }

    /// Backups that lack changes owe an acknowledgement from now on.
    pub(crate) fn owe(&mut self, now: Duration) {
        let number = self.number;
        if let Some(serving) = self.serving_mut() {
            let behind = serving.followers.values_mut().filter(|one| one.follows());
            let owes = |one: &&mut BackupStream| one.acknowledged < number || one.is_awaited();
            behind.filter(owes).for_each(|one| one.owes(now));
        }
    }

    /// Other copies of the set have other changes under the same numbers: they leave it.
    fn followers_differ(&mut self) {
        let followers = self.serving_mut().into_iter().flat_map(|it| it.followers.values_mut());
        for follower in followers.filter(|one| one.in_sync) {
            follower.lost = true;
            follower.owes(Duration::ZERO);
        }
    }

    /// Stops serving. Held answers are never sent: the new primary answers the repeated requests.
    pub(crate) fn depose(&mut self) {
        if let CopyRole::Primary(serving) = &mut self.role {
            self.stood = serving.began == Some(self.number);
            let held = std::mem::take(&mut serving.held);
            self.unanswered.extend(held.into_iter().map(|(_, answer)| answer));
            self.role = CopyRole::Deposed;
        }
    }

    /// Another copy of the set was promoted instead: a primary that has made no change of its own is its backup, and has what
    /// both had before, or less. Any other copy cannot follow it.
    fn give_way(&mut self, own: Member) {
        if matches!(self.role, CopyRole::Deposed) && self.view.in_sync.contains(&own) {
            self.role = CopyRole::Backup;
            if !self.stood {
                self.set_useless(Useless::OwnChanges);
            }
        }
    }

    /// `began`: where the term began, if other copies of the set may be elsewhere.
    fn serve(&mut self, began: Option<u64>) {
        let began = began.filter(|_| !Mutation::SurvivorsAreNotAligned.is_on());
        self.role = CopyRole::Primary(Box::new(Serving { began, ..Serving::default() }));
        self.set_followers();
    }

    /// Whether the copy was promoted, and does not know yet what the other copies of the set have.
    pub(crate) fn is_aligning(&self) -> bool {
        let serving = self.serving().filter(|serving| serving.began.is_some());
        serving.is_some_and(|serving| serving.followers.values().any(BackupStream::is_awaited))
    }

    /// Follows the view: whom to wait for, and where to stream.
    fn set_followers(&mut self) {
        let (view, committed) = (&self.view, self.committed);
        let CopyRole::Primary(serving) = &mut self.role else { return };
        let is_backup = |member: &Member| view.backups.iter().any(|place| place.member == *member);
        let may_differ = serving.began.is_some();
        let new = |place: BackupPlace| {
            let mut follower = BackupStream::new(place, committed);
            if may_differ && view.in_sync.contains(&place.member) {
                follower.alignment = Alignment::Unknown;
            }
            follower
        };
        serving.followers.retain(|member, _| is_backup(member));
        for place in view.backups.iter().filter(|place| place.member != view.primary) {
            let in_sync = view.in_sync.contains(&place.member);
            let follower = serving.followers.entry(place.member);
            // What is committed is on every in-sync copy.
            let follower = follower.or_insert_with(|| new(*place));
            follower.set_place(*place);
            follower.in_sync = in_sync;
            let order = place.fill.map(|order| order.version).filter(|_| !in_sync);
            if order != follower.fill.as_ref().map(|fill| fill.name.order) {
                if order.is_some() {
                    *follower = BackupStream::new(*place, committed);
                }
                follower.fill = order.map(|order| Box::new(OutgoingFill::new(order)));
            }
        }
        // A member of the set without a place cannot acknowledge: the primary waits for it all the same.
        let places = |member: &&Member| **member != view.primary && !is_backup(member);
        for member in view.in_sync.iter().filter(places) {
            let none = std::net::SocketAddr::from(([0, 0, 0, 0], 0));
            let place = BackupPlace { member: *member, endpoint: none, fill: None };
            let mut follower = BackupStream::new(place, committed);
            follower.in_sync = true;
            serving.followers.insert(*member, follower);
        }
        self.commit();
    }

    /// Gives a change of the primary the next number.
    pub(crate) fn append(&mut self, change: Arc<ShardChange>, now: Duration) {
        debug_assert!(self.is_primary(), "only a primary changes a shard by itself");
        self.number += 1;
        self.tail_bytes += change.bytes();
        self.tail.push_back(change);
        if let Some(serving) = self.serving_mut() {
            let follow = serving.followers.values_mut().filter(|follower| follower.follows());
            follow.for_each(|follower| follower.owes(now));
        }
        self.commit();
    }

    /// Refills that wait for the state of the shard begin with this one, which is that of now.
    pub(crate) fn begin_fills(&mut self, state: &ShardChange, now: Duration) {
        let number = self.number;
        let followers = self.serving_mut().into_iter().flat_map(|it| it.followers.values_mut());
        for follower in followers {
            if follower.fill.as_mut().is_some_and(|fill| fill.begin(number, state)) {
                (follower.acknowledged, follower.sent) = (number, number);
                (follower.lost, follower.owes_since) = (false, Some(now));
            }
        }
    }

    /// Holds an answer until the backups have the entries of now. Drops it if this copy does not serve.
    pub(crate) fn gate(&mut self, effect: ShardEffect) -> Option<ShardEffect> {
        let (number, committed) = (self.number, self.committed);
        let serving = self.serving_mut()?;
        if committed >= number && serving.held.is_empty() {
            return Some(effect);
        }
        serving.held.push_back((number, effect));
        None
    }

    pub(crate) fn release(&mut self, out: &mut Vec<ShardEffect>) {
        let committed = self.committed;
        let Some(serving) = self.serving_mut() else { return };
        while serving.held.front().is_some_and(|(number, _)| *number <= committed) {
            out.extend(serving.held.pop_front().map(|(_, effect)| effect));
        }
    }

    /// Counts what all in-sync backups have, and drops changes that no backup needs.
    pub(crate) fn commit(&mut self) {
        let number = self.number;
        let Some(serving) = self.serving() else { return };
        let in_sync = serving.followers.values().filter(|follower| follower.counts());
        let committed = in_sync.map(|follower| follower.acknowledged).min().unwrap_or(number);
        let needed = serving.followers.values().filter(|follower| follower.follows());
        let needed = needed.map(|follower| follower.acknowledged).min().unwrap_or(number);
        debug_assert!(committed <= number, "a backup has no more than its primary");
        self.committed = self.committed.max(committed);
        self.trim(needed);
    }

    /// Drops changes up to this number.
    fn trim(&mut self, number: u64) {
        while self.first() <= number
            && let Some(change) = self.tail.pop_front()
        {
            self.tail_bytes -= change.bytes();
        }
    }

    /// Number of the oldest change of the tail; one above the last if it is empty.
    fn first(&self) -> u64 {
        self.number + 1 - self.tail.len() as u64
    }

    /// The change with this number, if the tail has it.
    pub(crate) fn change(&self, number: u64) -> Option<Arc<ShardChange>> {
        let at = number.checked_sub(self.first())?;
        self.tail.get(usize::try_from(at).ok()?).cloned()
    }

    /// A backup has applied the entry. With one backup no other copy could need it.
    pub(crate) fn followed(&mut self, entry: &Header, change: &Frame<'_>) {
        debug_assert_eq!(entry.request, self.number + 1, "entries come in order");
        self.number = entry.request;
        self.committed = self.committed.max(entry.start.min(self.number));
        if self.view.backups.len() > 1 {
            let change = Arc::new(ShardChange::of(change));
            self.tail_bytes += change.bytes();
            self.tail.push_back(change);
        }
        self.trim(self.committed);
    }

    /// Drops the oldest change of the tail.
    pub(super) fn drop_oldest(&mut self) {
        self.trim(self.first());
    }
}
