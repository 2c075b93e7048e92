//! The state of one data thread: its shards, the trainers that may send frames, and the open cut.
//!
//! The epoch, membership and barriers are common to all shards of a thread, since a trainer has one connection to the
//! thread. The shard handles the rest of a frame. Replies follow the order of the effects.
//!
//! The set is in one epoch. [`ShardSet::hold`] moves it to the next, drops waiting frames and returns the shards that have
//! to be loaded ([`ShardSet::install`]). Until they are installed, frames for them get `NotReady`.

mod clocked_pulls;
mod clocks;
mod connections;
mod error;
mod members;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use heddle_protocol::control::{
    BeginPhase, CutAt, EndCut, GrantedPulls, LoadShards, Phase, ShardState, TakeCut,
};
use heddle_protocol::frame::{Header, Kind, Status};
use heddle_protocol::ids::{CutId, Epoch, Member, PhaseNo, Role, ShardId, Step};
use heddle_protocol::mutation::Mutation;

use crate::content::{SnapshotGone, SnapshotHead};
use crate::cut::{self, OpenCut};
use crate::effect::{Conn, Flow, ShardEffect};
use crate::frame::Frame;
use crate::shard::Shard;
use clocked_pulls::ClockedPulls;
use connections::TrainerConnections;
pub use error::ShardSetError;
use members::Members;

/// The shards of one data thread.
#[derive(Default)]
pub struct ShardSet {
    epoch: Epoch,
    phase: Option<Phase>,
    step: Step,
    shards: BTreeMap<ShardId, Shard>,
    /// Shards of this set that are being loaded.
    missing: BTreeSet<ShardId>,
    connections: TrainerConnections,
    members: Members,
    clocked: ClockedPulls,
    open: Option<OpenCut>,
    /// The highest cut of a command.
    highest_cut: CutId,
    refused: u64,
}

impl ShardSet {
    /// A set without shards, in no epoch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The current epoch.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The highest cut of a command.
    #[must_use]
    pub fn highest_cut(&self) -> CutId {
        self.highest_cut
    }

    /// The state of each shard.
    #[must_use]
    pub fn states(&self) -> Vec<ShardState> {
        self.shards.values().map(Shard::state).collect()
    }

    /// The current phase and the lowest number of job steps applied among the shards; none without shards.
    #[must_use]
    pub fn position(&self) -> Option<(PhaseNo, Step)> {
        self.shards.values().map(|shard| (shard.phase(), shard.step())).min()
    }

    /// Push frames applied or staged, and frames rejected, since the start.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        let add = |(pushes, refused), shard: &Shard| {
            (pushes + shard.counts().pushes, refused + shard.counts().refused)
        };
        self.shards.values().fold((0, self.refused), add)
    }

    /// SSP: pulls granted since the start.
    #[must_use]
    pub fn granted(&self) -> &GrantedPulls {
        self.clocked.granted()
    }

    /// Its shards.
    pub fn shards(&self) -> impl Iterator<Item = &Shard> {
        self.shards.values()
    }

    /// The time of the frames and commands that follow, since any fixed moment: pulls that wait are measured by it.
    pub fn advance(&mut self, now: Duration) {
        self.clocked.advance(now);
    }

    /// A shard, for reading.
    #[must_use]
    pub fn shard(&self, shard: ShardId) -> Option<&Shard> {
        self.shards.get(&shard)
    }

    /// Whether every shard is installed.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.missing.is_empty()
    }

    /// Moves to a later epoch with exactly `shards`, which are this thread's part of the command's. Drops parked, staged
    /// and held frames, and every open cut. Shards return to their snapshot of the base if it is complete and at the phase
    /// and step of the command. The others are returned and have to be loaded.
    ///
    /// # Errors
    /// The epoch is not later than the set's.
    pub fn hold(
        &mut self,
        load: &LoadShards,
        shards: &[ShardId],
        out: &mut Vec<ShardEffect>,
    ) -> Result<Vec<ShardId>, ShardSetError> {
        let &LoadShards { epoch, phase, step, shards: _, ref base } = load;
        if epoch <= self.epoch {
            return Err(ShardSetError::Epoch { own: self.epoch, got: epoch });
        }
        // The ApplicationMaster sends the new epoch to the trainers of these frames.
        self.connections.drop_held();
        self.open = None;
        self.epoch = epoch;
        (self.phase, self.step) = (Some(phase), step);
        self.clocked.begin(phase);
        self.shards.retain(|id, _| shards.contains(id));
        for shard in self.shards.values_mut() {
            shard.stop_serving(out);
        }
        if let Some(base) = base {
            self.highest_cut = self.highest_cut.max(base.cut);
            self.shards.retain(|_, shard| shard.restore(base.cut));
        } else {
            self.shards.clear();
        }
        // A snapshot that does not fit does not mean that the checkpoint's file is damaged.
        self.shards.retain(|_, shard| shard.resume(phase, step, out).is_ok());
        self.missing = shards.iter().filter(|id| !self.shards.contains_key(id)).copied().collect();
        Ok(self.missing.iter().copied().collect())
    }

    /// Installs a loaded shard that [`Self::hold`] returned.
    ///
    /// # Errors
    /// The epoch is over, or the content does not fit the phase and step.
    pub fn install(
        &mut self,
        epoch: Epoch,
        mut shard: Shard,
        out: &mut Vec<ShardEffect>,
    ) -> Result<(), ShardSetError> {
        let (Some(phase), true) = (self.phase, epoch == self.epoch) else {
            return Err(ShardSetError::Epoch { own: self.epoch, got: epoch });
        };
        shard.resume(phase, self.step, out)?;
        self.missing.remove(&shard.id());
        self.shards.insert(shard.id(), shard);
        Ok(())
    }

    /// Serves a later phase from its start. Repeating it changes nothing.
    ///
    /// # Errors
    /// The epoch is not the set's.
    pub fn begin(
        &mut self,
        begin: BeginPhase,
        out: &mut Vec<ShardEffect>,
    ) -> Result<(), ShardSetError> {
        let BeginPhase { epoch, phase } = begin;
        self.check_epoch(epoch)?;
        if self.phase.is_some_and(|own| own.no >= phase.no) {
            return Ok(());
        }
        (self.phase, self.step) = (Some(phase), Step(0));
        self.clocked.begin(phase);
        self.abort_cut("the phase is over", out);
        for shard in self.shards.values_mut() {
            shard.begin(phase, out);
        }
        self.release(out);
        Ok(())
    }

    fn check_epoch(&self, epoch: Epoch) -> Result<(), ShardSetError> {
        if epoch == self.epoch {
            Ok(())
        } else {
            Err(ShardSetError::Epoch { own: self.epoch, got: epoch })
        }
    }

    /// Opens a connection of an authenticated trainer. Its older connection is closed unread.
    ///
    /// # Errors
    /// `NotMember`: the trainer is superseded or has left; close the connection.
    pub fn connect(&mut self, member: Member, out: &mut Vec<ShardEffect>) -> Result<Conn, Status> {
        let older = self.connections.of_slot(member.slot);
        let is_later = |(_, other): &(Conn, Member)| other.incarnation > member.incarnation;
        if member.slot.role != Role::Trainer
            || self.members.has_left(member)
            || older.iter().any(is_later)
        {
            return Err(Status::NotMember);
        }
        self.close_all(older, out);
        Ok(self.connections.open(member))
    }

    /// The connection is closed. Its trainer sends the waiting frames again on another one.
    pub fn disconnect(&mut self, conn: Conn, out: &mut Vec<ShardEffect>) {
        if self.connections.close(conn) {
            for shard in self.shards.values_mut() {
                shard.disconnect(conn);
            }
            self.clocked.disconnect(conn);
            self.clocked.release(&mut self.shards, out);
        }
    }

    fn close_all(&mut self, connections: Vec<(Conn, Member)>, out: &mut Vec<ShardEffect>) {
        for (conn, _) in connections {
            out.push(ShardEffect::Close { conn });
            self.disconnect(conn, out);
        }
    }

    /// Accepts frames of exactly these trainers from now on. Connections of removed trainers are closed, and an open cut
    /// does not wait for them.
    pub fn members(&mut self, trainers: &[Member], out: &mut Vec<ShardEffect>) {
        self.members.set(trainers);
        let left = self.connections.list(|member| self.members.has_left(member));
        self.close_all(left, out);
        self.clocked.retain(|member| !self.members.has_left(member));
        if let Some(open) = &mut self.open {
            open.retain(|member| self.members.contains(*member));
        }
        self.snap_if_complete(out);
    }

    /// Takes one whole frame. Nothing has happened if the result is [`Flow::Wait`].
    pub fn on_frame(&mut self, frame: &Frame<'_>, out: &mut Vec<ShardEffect>) -> Flow {
        let header = &frame.header;
        let Some(member) = self.connections.member(frame.conn) else {
            return Flow::Taken;
        };
        if let Err(status) = self.members.check(member) {
            return self.refuse(frame, status, out);
        }
        if header.kind.is_reply() {
            return self.refuse(frame, Status::Unsupported, out);
        }
        if header.epoch != self.epoch && !Mutation::AnyEpoch.is_on() {
            return self.refuse(frame, Status::WrongEpoch, out);
        }
        if header.kind == Kind::Barrier {
            self.barrier(member, header, out);
            return Flow::Taken;
        }
        // A clock is for the data thread.
        if header.kind != Kind::Clock && !self.shards.contains_key(&header.shard) {
            let missing = self.missing.contains(&header.shard);
            let status = if missing { Status::NotReady } else { Status::WrongShard };
            return self.refuse(frame, status, out);
        }
        let passed = self.open.as_ref().is_some_and(|open| open.has_passed(member.slot));
        let waits = passed || self.connections.has_held(frame.conn);
        if waits && header.kind.is_held_by_cuts() {
            return self.hold_frame(frame);
        }
        match self.handle(member, frame, out) {
            Flow::Taken => Flow::Taken,
            // Held here, so that pulls after it are served.
            Flow::Wait => self.hold_frame(frame),
        }
    }

    /// Handles a frame that no cut holds.
    fn handle(&mut self, member: Member, frame: &Frame<'_>, out: &mut Vec<ShardEffect>) -> Flow {
        if !self.clocked.concerns(&frame.header) {
            return match self.shards.get_mut(&frame.header.shard) {
                Some(shard) => shard.on_frame(frame, out),
                None => self.refuse(frame, Status::NotReady, out),
            };
        }
        let bytes_max = self.waiting_bytes_max();
        match self.clocked.on_frame(member, frame, bytes_max, &mut self.shards, out) {
            Ok(()) => Flow::Taken,
            Err(status) => self.refuse(frame, status, out),
        }
    }

    fn barrier(&mut self, member: Member, header: &Header, out: &mut Vec<ShardEffect>) {
        if self.open.as_mut().is_some_and(|open| open.pass(member, header.cut)) {
            self.snap_if_complete(out);
        }
    }

    fn hold_frame(&mut self, frame: &Frame<'_>) -> Flow {
        let bytes_max = self.waiting_bytes_max();
        self.connections.hold(frame, bytes_max)
    }

    /// Bytes of frames that may be held, and of pulls that may wait.
    fn waiting_bytes_max(&self) -> usize {
        let add = |sum: usize, shard: &Shard| sum.saturating_add(shard.waiting_bytes_max());
        self.shards.values().fold(0, add)
    }

    /// Handles held frames that do not have to wait any more, in the order in which they came.
    fn release(&mut self, out: &mut Vec<ShardEffect>) {
        for conn in self.connections.with_held() {
            self.release_one(conn, out);
        }
    }

    fn release_one(&mut self, conn: Conn, out: &mut Vec<ShardEffect>) {
        let Some(member) = self.connections.member(conn) else { return };
        if self.open.as_ref().is_some_and(|open| open.has_passed(member.slot)) {
            return;
        }
        while let Some(waiting) = self.connections.pop(conn) {
            let frame = waiting.frame();
            if self.handle(member, &frame, out) == Flow::Wait {
                return self.connections.put_back(waiting);
            }
        }
    }

    /// Continues what waits for the saver. Call it after pieces of a snapshot were read.
    pub fn pump(&mut self, out: &mut Vec<ShardEffect>) {
        for shard in self.shards.values_mut() {
            shard.pump(out);
        }
        self.release(out);
    }

    fn refuse(&mut self, frame: &Frame<'_>, status: Status, out: &mut Vec<ShardEffect>) -> Flow {
        self.refused += u64::from(!matches!(status, Status::NotReady | Status::Later));
        out.push(frame.refusal(status));
        Flow::Taken
    }

    /// The values of a range ([`crate::PulledRows::Range`]), as they are in the table, when they can be written. None if the shard
    /// has moved on: the trainer is superseded, or gets a new epoch soon.
    #[must_use]
    pub fn range(&self, header: &Header) -> Option<&[f32]> {
        let shard = self.shards.get(&header.shard)?;
        (header.epoch == self.epoch).then(|| shard.range(header))?
    }

    /// As [`Self::range`], for [`crate::PulledRows::Keys`]: appends the values to `out`.
    #[must_use]
    pub fn gather(&self, header: &Header, keys: &[u32], out: &mut Vec<f32>) -> Option<()> {
        let shard = self.shards.get(&header.shard)?;
        (header.epoch == self.epoch).then(|| shard.gather(header, keys, out))?
    }

    /// Takes a cut, or prepares it. An open cut is aborted; an earlier cut is not taken again.
    ///
    /// # Errors
    /// The epoch is not the set's.
    pub fn cut(
        &mut self,
        command: &TakeCut,
        now: Duration,
        out: &mut Vec<ShardEffect>,
    ) -> Result<(), ShardSetError> {
        let TakeCut { cut, epoch, phase, at, staging: _ } = command;
        let (cut, epoch, phase) = (*cut, *epoch, *phase);
        self.check_epoch(epoch)?;
        if cut <= self.highest_cut {
            return Ok(());
        }
        self.highest_cut = cut;
        self.abort_cut(&format!("superseded by cut {cut}"), out);
        let refusal = match self.phase {
            Some(own) if own.no == phase && self.missing.is_empty() => {
                cut::refusal(at, self.shards.values())
            }
            _ => Some("the shard is not in the phase of the cut"),
        };
        if let Some(reason) = refusal {
            let shards = self.shards.keys().chain(&self.missing);
            out.extend(shards.map(|&shard| cut::aborted(shard, cut, reason)));
            self.release(out);
            return Ok(());
        }
        match at {
            CutAt::Steps(step) => self.cut_at_step(cut, *step, out),
            CutAt::Barriers(set) => {
                // Trainers that have left since the command do not count.
                let set = set.iter().filter(|member| !self.members.has_left(**member));
                self.open = Some(OpenCut::new(cut, set.copied(), now));
                self.snap_if_complete(out);
                // Frames held for the previous cut come before the barrier of this one.
                self.release(out);
            }
        }
        Ok(())
    }

    fn cut_at_step(&mut self, cut: CutId, step: Step, out: &mut Vec<ShardEffect>) {
        for shard in self.shards.values_mut() {
            if shard.progress().lanes().is_some() {
                shard.arm(cut, step, out);
            } else {
                shard.snap(cut, out);
            }
        }
    }

    /// The cut is over. A committed snapshot is kept for a rollback; any other is dropped.
    pub fn cut_end(&mut self, end: EndCut, out: &mut Vec<ShardEffect>) {
        let EndCut { cut, committed } = end;
        self.highest_cut = self.highest_cut.max(cut);
        self.open.take_if(|open| open.cut == cut);
        for shard in self.shards.values_mut() {
            shard.end_cut(cut, committed);
        }
        self.pump(out);
    }

    /// When [`Self::tick`] is due.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        self.open.as_ref().map(|open| open.deadline)
    }

    /// Aborts a cut that has held frames for too long.
    pub fn tick(&mut self, now: Duration, out: &mut Vec<ShardEffect>) {
        if let Some(open) = self.open.as_ref().filter(|open| now >= open.deadline) {
            let reason = format!("waited too long for the barrier of {}", open.missing());
            self.abort_cut(&reason, out);
            self.release(out);
        }
    }

    fn snap_if_complete(&mut self, out: &mut Vec<ShardEffect>) {
        if let Some(open) = self.open.take_if(|open| open.is_complete()) {
            for shard in self.shards.values_mut() {
                shard.snap(open.cut, out);
            }
            self.release(out);
        }
    }

    /// Aborts the open or armed cut. The caller releases held frames.
    fn abort_cut(&mut self, reason: &str, out: &mut Vec<ShardEffect>) {
        let barriers = self.open.take().map(|open| open.cut);
        for (&id, shard) in &mut self.shards {
            if let Some(cut) = shard.disarm().or(barriers) {
                out.push(cut::aborted(id, cut, reason));
            }
        }
    }

    /// Fills `out` with a piece of the snapshot of `cut`; [`crate::ShardConfig::sections`] has the order. Pieces come in
    /// order; all but the last of a section are a multiple of 256 f32. Call [`Self::pump`] afterwards.
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
        self.shards.get_mut(&shard).ok_or(gone)?.save(cut, section, at, out)
    }

    /// The head of the snapshot of `cut`.
    ///
    /// # Errors
    /// The cut is over.
    pub fn snapshot_head(&self, shard: ShardId, cut: CutId) -> Result<SnapshotHead, SnapshotGone> {
        let gone = SnapshotGone { shard, cut };
        self.shards.get(&shard).ok_or(gone)?.snapshot_head(cut)
    }
}
