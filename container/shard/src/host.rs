//! What one data thread owns: its shards, who may speak to them, and the cut that is open.
//!
//! The epoch, membership and barriers are common to all shards of a thread, since a trainer has one
//! connection to the thread; the rest of a frame is for its shard. Everything is answered in the
//! order of the effects that come out.
//!
//! A host is in one epoch. [`Host::hold`] moves it to the next, drops what waits and says which
//! shards must be brought ([`Host::install`]); until they are here it answers `NotReady`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use heddle_protocol::control::{CutAt, Phase, ShardState};
use heddle_protocol::frame::{Header, Kind, Status};
use heddle_protocol::ids::{CutId, Epoch, Incarnation, Member, PhaseNo, Role, ShardId, Step};

use crate::content::{ContentError, SnapshotGone};
use crate::cut::OpenCut;
use crate::effect::{Conn, Effect, Flow, Report};
use crate::shard::{Shard, Waiting};

/// Bytes of frames that a host holds back during a cut, before it stops reading the connections that
/// send them: some hundred parts, more than trainers have in flight in a cut's few milliseconds.
const HELD_BYTES_MAX: usize = 64 << 20;

/// The shards of one data thread.
#[derive(Default)]
pub struct Host {
    epoch: Epoch,
    phase: Option<Phase>,
    step: Step,
    shards: BTreeMap<ShardId, Shard>,
    /// Shards of this host that are being brought.
    missing: BTreeSet<ShardId>,
    conns: BTreeMap<Conn, Connection>,
    conns_made: u64,
    /// Trainers by slot.
    members: BTreeMap<u32, Incarnation>,
    /// The highest incarnation that was a member of a slot.
    known: BTreeMap<u32, Incarnation>,
    open: Option<OpenCut>,
    /// The highest cut heard of.
    heard: CutId,
    held_bytes: usize,
    refused: u64,
}

struct Connection {
    member: Member,
    /// Frames that wait for the end of a cut, or for the saver, and those that came after them.
    held: VecDeque<Waiting>,
}

/// A command that a host cannot follow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// It speaks of another epoch.
    #[error("in epoch {own}, told of epoch {told}")]
    Epoch {
        /// The host's.
        own: Epoch,
        /// The command's.
        told: Epoch,
    },
    /// The content of a shard does not fit.
    #[error(transparent)]
    Content(#[from] ContentError),
}

/// Connections and members.
impl Host {
    /// A host without shards, in no epoch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A trainer has proven who it is on a new connection; its older one is closed unread.
    ///
    /// # Errors
    /// `NotMember`: it has been superseded or has left; close the connection.
    pub fn connect(&mut self, member: Member, out: &mut Vec<Effect>) -> Result<Conn, Status> {
        let later = |incarnation: &Incarnation| *incarnation > member.incarnation;
        if member.slot.role != Role::Trainer || self.standing(member) == Err(Status::NotMember) {
            return Err(Status::NotMember);
        }
        let same_slot = |c: &&Conn| self.conns[c].member.slot == member.slot;
        let older: Vec<Conn> = self.conns.keys().filter(same_slot).copied().collect();
        if older
            .iter()
            .any(|conn| later(&self.conns[conn].member.incarnation))
        {
            return Err(Status::NotMember);
        }
        for conn in older {
            out.push(Effect::Close { conn });
            self.disconnect(conn);
        }
        self.conns_made += 1;
        let conn = Conn(self.conns_made);
        self.conns.insert(
            conn,
            Connection {
                member,
                held: VecDeque::new(),
            },
        );
        Ok(conn)
    }

    /// The connection is gone: what it waited for comes again on another.
    pub fn disconnect(&mut self, conn: Conn) {
        let Some(connection) = self.conns.remove(&conn) else {
            return;
        };
        self.held_bytes -= connection.held.iter().map(Waiting::bytes).sum::<usize>();
        for shard in self.shards.values_mut() {
            shard.disconnect(conn);
        }
    }

    /// Exactly these trainers may speak from now on. Connections of those who no longer may are closed,
    /// and an open cut does not wait for them.
    pub fn members(&mut self, trainers: &[Member], out: &mut Vec<Effect>) {
        self.members.clear();
        for member in trainers
            .iter()
            .filter(|member| member.slot.role == Role::Trainer)
        {
            self.members.insert(member.slot.index, member.incarnation);
            let known = self.known.entry(member.slot.index).or_default();
            *known = (*known).max(member.incarnation);
        }
        let gone = |c: &&Conn| self.standing(self.conns[c].member) == Err(Status::NotMember);
        let gone: Vec<Conn> = self.conns.keys().filter(gone).copied().collect();
        for conn in gone {
            out.push(Effect::Close { conn });
            self.disconnect(conn);
        }
        let members = &self.members;
        if let Some(open) = &mut self.open {
            open.retain(|member| members.get(&member.slot.index) == Some(&member.incarnation));
        }
        self.snap_if_complete(out);
    }

    /// Whether a trainer may speak. One that is newer than all that was heard of it is told to wait: the
    /// list that names it is on its way.
    fn standing(&self, member: Member) -> Result<(), Status> {
        let slot = member.slot.index;
        if self.members.get(&slot) == Some(&member.incarnation) {
            return Ok(());
        }
        match self.known.get(&slot) {
            Some(&known) if member.incarnation <= known => Err(Status::NotMember),
            _ => Err(Status::NotReady),
        }
    }
}

/// Frames.
impl Host {
    /// Takes one whole frame: `keys` and `values` as the header announces (keys of eight bytes as
    /// pairs of words). When the answer is [`Flow::Wait`] nothing has happened.
    pub fn on_frame(
        &mut self,
        conn: Conn,
        header: &Header,
        keys: &[u32],
        values: &[f32],
        out: &mut Vec<Effect>,
    ) -> Flow {
        let Some(connection) = self.conns.get(&conn) else {
            return Flow::Taken;
        };
        let member = connection.member;
        if let Err(status) = self.standing(member) {
            return self.refuse(conn, header, status, out);
        }
        if header.kind.is_reply() {
            return self.refuse(conn, header, Status::Unsupported, out);
        }
        if header.epoch != self.epoch {
            return self.refuse(conn, header, Status::WrongEpoch, out);
        }
        if header.kind == Kind::Barrier {
            self.barrier(member, header, out);
            return Flow::Taken;
        }
        if !self.shards.contains_key(&header.shard) {
            let missing = self.missing.contains(&header.shard);
            let status = if missing {
                Status::NotReady
            } else {
                Status::WrongShard
            };
            return self.refuse(conn, header, status, out);
        }
        let changes = match header.kind {
            Kind::Push | Kind::PushPull | Kind::Clock | Kind::Done | Kind::TaskDone => true,
            Kind::Pull | Kind::Function | Kind::Query | Kind::Barrier => false,
            Kind::Values | Kind::Ack | Kind::Standing | Kind::Refused => false,
        };
        let behind = !self.conns[&conn].held.is_empty();
        let passed = self
            .open
            .as_ref()
            .is_some_and(|open| open.has_passed(member.slot));
        if changes && (behind || passed) {
            return self.keep_back(conn, header, keys, values);
        }
        let Some(shard) = self.shards.get_mut(&header.shard) else {
            return Flow::Taken;
        };
        match shard.on_frame(conn, header, keys, values, out) {
            Flow::Taken => Flow::Taken,
            // Kept here, so that pulls behind it go on.
            Flow::Wait => self.keep_back(conn, header, keys, values),
        }
    }

    /// The values of a range ([`crate::Rows::Range`]) whose turn to be sent has come, as they lie in the table.
    /// Nothing if the shard has moved on: whoever asked is superseded, or hears of a new epoch.
    #[must_use]
    pub fn range(&self, header: &Header) -> Option<&[f32]> {
        let shard = self.shards.get(&header.shard)?;
        (header.epoch == self.epoch).then(|| shard.range(header))?
    }

    /// As [`Self::range`], of [`crate::Rows::Keys`]: put at the end of `out`.
    #[must_use]
    pub fn gather(&self, header: &Header, keys: &[u32], out: &mut Vec<f32>) -> Option<()> {
        let shard = self.shards.get(&header.shard)?;
        (header.epoch == self.epoch).then(|| shard.gather(header, keys, out))?
    }

    fn barrier(&mut self, member: Member, header: &Header, out: &mut Vec<Effect>) {
        let Some(open) = &mut self.open else { return };
        // A number is never used twice, not even by a later generation.
        if u64::from(open.cut.number) != header.clock {
            return;
        }
        open.pass(member);
        self.snap_if_complete(out);
    }

    fn keep_back(&mut self, conn: Conn, header: &Header, keys: &[u32], values: &[f32]) -> Flow {
        let Some(connection) = self.conns.get_mut(&conn) else {
            return Flow::Taken;
        };
        let waiting = Waiting::new(conn, header, keys, values);
        if self.held_bytes + waiting.bytes() > HELD_BYTES_MAX {
            return Flow::Wait;
        }
        self.held_bytes += waiting.bytes();
        connection.held.push_back(waiting);
        Flow::Taken
    }

    /// Takes up what was held back and need not be any more, in the order it came in.
    fn release(&mut self, out: &mut Vec<Effect>) {
        let waiting = |(conn, c): (&Conn, &Connection)| (!c.held.is_empty()).then_some(*conn);
        let conns: Vec<Conn> = self.conns.iter().filter_map(waiting).collect();
        for conn in conns {
            self.release_one(conn, out);
        }
    }

    fn release_one(&mut self, conn: Conn, out: &mut Vec<Effect>) {
        while let Some(connection) = self.conns.get_mut(&conn) {
            let slot = connection.member.slot;
            if self.open.as_ref().is_some_and(|open| open.has_passed(slot)) {
                return;
            }
            let Some(waiting) = connection.held.pop_front() else {
                return;
            };
            let Waiting {
                header,
                keys,
                values,
                ..
            } = &waiting;
            let Some(shard) = self.shards.get_mut(&header.shard) else {
                self.held_bytes -= waiting.bytes();
                let _ = self.refuse(conn, header, Status::NotReady, out);
                continue;
            };
            match shard.on_frame(conn, header, keys, values, out) {
                Flow::Taken => self.held_bytes -= waiting.bytes(),
                Flow::Wait => {
                    connection.held.push_front(waiting);
                    return;
                }
            }
        }
    }

    /// Goes on with what waits for the saver: call it when pieces of a snapshot were read.
    pub fn pump(&mut self, out: &mut Vec<Effect>) {
        for shard in self.shards.values_mut() {
            shard.pump(out);
        }
        self.release(out);
    }

    fn refuse(
        &mut self,
        conn: Conn,
        header: &Header,
        status: Status,
        out: &mut Vec<Effect>,
    ) -> Flow {
        self.refused += u64::from(status != Status::NotReady);
        out.push(Effect::Reply {
            conn,
            header: header.reply(Kind::Refused, status),
        });
        Flow::Taken
    }
}

/// Epochs and phases.
impl Host {
    /// The epoch that it is in.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Moves to a later epoch with exactly these shards, in this phase, after `step` job steps (BSP).
    /// Drops what is parked, staged and held, and every open cut. Shards return to their snapshot of
    /// `base` where it is still whole; the others are named and must be brought.
    ///
    /// # Errors
    /// The epoch is not later than the host's, or a snapshot does not fit the phase.
    pub fn hold(
        &mut self,
        epoch: Epoch,
        phase: Phase,
        step: Step,
        shards: &[ShardId],
        base: Option<CutId>,
        out: &mut Vec<Effect>,
    ) -> Result<Vec<ShardId>, HostError> {
        if epoch <= self.epoch {
            return Err(HostError::Epoch {
                own: self.epoch,
                told: epoch,
            });
        }
        for connection in self.conns.values_mut() {
            // Whoever sent these is told the new epoch by the ApplicationMaster.
            connection.held.clear();
        }
        self.held_bytes = 0;
        self.open = None;
        self.epoch = epoch;
        (self.phase, self.step) = (Some(phase), step);
        self.shards.retain(|id, _| shards.contains(id));
        for shard in self.shards.values_mut() {
            shard.stop_serving(out);
        }
        if let Some(base) = base {
            self.heard = self.heard.max(base);
            self.shards.retain(|_, shard| shard.restore(base));
        } else {
            self.shards.clear();
        }
        for shard in self.shards.values_mut() {
            shard.resume(phase, step, out)?;
        }
        self.missing = shards
            .iter()
            .filter(|id| !self.shards.contains_key(id))
            .copied()
            .collect();
        Ok(self.missing.iter().copied().collect())
    }

    /// Brings a shard that [`Self::hold`] named, with its content.
    ///
    /// # Errors
    /// The epoch has passed, or the content does not fit the phase and step.
    pub fn install(
        &mut self,
        epoch: Epoch,
        mut shard: Shard,
        out: &mut Vec<Effect>,
    ) -> Result<(), HostError> {
        let (Some(phase), true) = (self.phase, epoch == self.epoch) else {
            return Err(HostError::Epoch {
                own: self.epoch,
                told: epoch,
            });
        };
        shard.resume(phase, self.step, out)?;
        self.missing.remove(&shard.id());
        self.shards.insert(shard.id(), shard);
        Ok(())
    }

    /// Whether every shard is here.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.missing.is_empty()
    }

    /// Serves a later phase from its start. Repeating it changes nothing.
    ///
    /// # Errors
    /// The epoch is not the host's.
    pub fn begin(
        &mut self,
        epoch: Epoch,
        phase: Phase,
        out: &mut Vec<Effect>,
    ) -> Result<(), HostError> {
        if epoch != self.epoch {
            return Err(HostError::Epoch {
                own: self.epoch,
                told: epoch,
            });
        }
        if self.phase.is_some_and(|own| own.no >= phase.no) {
            return Ok(());
        }
        (self.phase, self.step) = (Some(phase), Step(0));
        self.let_go("the phase is over", out);
        for shard in self.shards.values_mut() {
            shard.begin(phase, out);
        }
        self.release(out);
        Ok(())
    }
}

/// Cuts.
impl Host {
    /// Takes a cut, or prepares to. One that was open is given up; one heard of before is not taken again.
    ///
    /// # Errors
    /// The epoch is not the host's.
    pub fn cut(
        &mut self,
        cut: CutId,
        epoch: Epoch,
        phase: PhaseNo,
        at: &CutAt,
        now: Duration,
        out: &mut Vec<Effect>,
    ) -> Result<(), HostError> {
        if epoch != self.epoch {
            return Err(HostError::Epoch {
                own: self.epoch,
                told: epoch,
            });
        }
        if cut <= self.heard {
            return Ok(());
        }
        self.heard = cut;
        self.let_go(&format!("cut {cut} takes its place"), out);
        if self.phase.is_none_or(|own| own.no != phase) || !self.missing.is_empty() {
            return self.refuse_cut(cut, "not in the phase of the cut", out);
        }
        match at {
            CutAt::Steps(step) => {
                if self.shards.values().any(Shard::takes_pushes_at_once) {
                    return self.refuse_cut(cut, "no job steps in this phase", out);
                }
                for shard in self.shards.values_mut() {
                    if shard.has_lanes() {
                        shard.arm(cut, *step, out);
                    } else {
                        shard.snap(cut, out);
                    }
                }
            }
            CutAt::Barriers(set) => {
                if self.shards.values().any(Shard::has_lanes) {
                    return self.refuse_cut(cut, "lanes are cut by job steps", out);
                }
                // Who has left since the set was drawn up does not count.
                let set = set
                    .iter()
                    .filter(|member| self.standing(**member) != Err(Status::NotMember));
                self.open = Some(OpenCut::new(cut, set.copied(), now));
                self.snap_if_complete(out);
                // Held for the cut before this one: it comes before the barrier of this one.
                self.release(out);
            }
        }
        Ok(())
    }

    /// The cut is over: its snapshot is kept for a rollback if it was committed, else forgotten.
    pub fn cut_end(&mut self, cut: CutId, committed: bool, out: &mut Vec<Effect>) {
        self.heard = self.heard.max(cut);
        if self.open.as_ref().is_some_and(|open| open.cut == cut) {
            self.open = None;
        }
        for shard in self.shards.values_mut() {
            shard.end_cut(cut, committed);
        }
        self.pump(out);
    }

    /// When [`Self::tick`] has something to do.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        self.open.as_ref().map(|open| open.deadline)
    }

    /// Lets go of a cut that holds frames back for too long.
    pub fn tick(&mut self, now: Duration, out: &mut Vec<Effect>) {
        if let Some(open) = self.open.as_ref().filter(|open| now >= open.deadline) {
            let reason = format!("waited too long for the barrier of {}", open.missing());
            self.let_go(&reason, out);
            self.release(out);
        }
    }

    /// Fills `out` with a piece of the snapshot of `cut`; see [`crate::ShardConfig::sections`] for the order.
    /// Pieces come in order; all but the last of a section are a multiple of 256 f32. Call
    /// [`Self::pump`] afterwards.
    ///
    /// # Errors
    /// The cut is over.
    pub fn save(
        &mut self,
        shard: ShardId,
        cut: CutId,
        section: usize,
        at: usize,
        out: &mut [f32],
    ) -> Result<(), SnapshotGone> {
        let gone = SnapshotGone { shard, cut };
        self.shards
            .get_mut(&shard)
            .ok_or(gone)?
            .save(cut, section, at, out)
    }

    /// The once-only memory of the snapshot of `cut`, as a file keeps it.
    ///
    /// # Errors
    /// The cut is over.
    pub fn snapshot_memory(&self, shard: ShardId, cut: CutId) -> Result<Vec<u8>, SnapshotGone> {
        let gone = SnapshotGone { shard, cut };
        self.shards.get(&shard).ok_or(gone)?.snapshot_memory(cut)
    }

    fn snap_if_complete(&mut self, out: &mut Vec<Effect>) {
        if let Some(open) = self.open.take_if(|open| open.is_complete()) {
            for shard in self.shards.values_mut() {
                shard.snap(open.cut, out);
            }
            self.release(out);
        }
    }

    /// Gives up what is open. Whoever calls this releases what was held.
    fn let_go(&mut self, reason: &str, out: &mut Vec<Effect>) {
        let barriers = self.open.take().map(|open| open.cut);
        for (&shard, machine) in &mut self.shards {
            if let Some(cut) = machine.disarm().or(barriers) {
                let reason = reason.to_owned();
                out.push(Effect::Report(Report::LetGo { shard, cut, reason }));
            }
        }
    }

    fn refuse_cut(
        &mut self,
        cut: CutId,
        reason: &str,
        out: &mut Vec<Effect>,
    ) -> Result<(), HostError> {
        for &shard in self.shards.keys().chain(&self.missing) {
            let reason = reason.to_owned();
            out.push(Effect::Report(Report::LetGo { shard, cut, reason }));
        }
        self.release(out);
        Ok(())
    }
}

/// What it says of itself.
impl Host {
    /// The highest cut heard of.
    #[must_use]
    pub fn heard(&self) -> CutId {
        self.heard
    }

    /// Where each shard stands.
    #[must_use]
    pub fn states(&self) -> Vec<ShardState> {
        self.shards.values().map(Shard::state).collect()
    }

    /// The phase served and the lowest number of job steps applied among the shards; nothing without shards.
    #[must_use]
    pub fn position(&self) -> Option<(PhaseNo, Step)> {
        self.shards
            .values()
            .map(|shard| (shard.phase(), shard.step()))
            .min()
    }

    /// Push frames applied or staged, and frames refused, so far.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        let add = |(pushes, refused), shard: &Shard| {
            let counts = shard.counts();
            (pushes + counts.pushes, refused + counts.refused)
        };
        self.shards.values().fold((0, self.refused), add)
    }

    /// A shard, for reading.
    #[must_use]
    pub fn shard(&self, shard: ShardId) -> Option<&Shard> {
        self.shards.get(&shard)
    }
}
