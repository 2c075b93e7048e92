//! The state of one data thread: its shards, the trainers that may send frames, and the open cut.
//!
//! The epoch, membership and barriers are common to all shards of a thread, since a trainer has one connection to the
//! thread. The shard handles the rest of a frame. Replies follow the order of the effects.
//!
//! The set is in one epoch. [`ShardSet::load`] moves it to the next, drops waiting frames and returns the shards that have
//! to be loaded ([`ShardSet::install`]). Until they are installed, frames for them get `NotReady`.

mod clocked_pulls;
mod clocks;
mod connections;
mod cuts;
mod error;
mod fills;
mod hand_over;
mod members;
mod replicas;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use heddle_protocol::control::{BeginPhase, LoadShards, LostShards, Phase, ShardState};
use heddle_protocol::frame::{Header, Kind, Status};
use heddle_protocol::ids::{CutId, Epoch, Member, PhaseNo, Role, ShardId, Step};
use heddle_protocol::mutation::Mutation;
use heddle_protocol::process_figures::{ProcessFigure, ProcessFigures};

use crate::cut::OpenCut;
use crate::effect::{Conn, Flow, ShardEffect};
use crate::frame::Frame;
use crate::replication::ReplicationLimits;
use crate::shard::Shard;
use clocked_pulls::{ClockedPulls, ServedShards};
use connections::TrainerConnections;
pub use error::ShardSetError;
use members::Members;
use replicas::Replicas;

/// The shards of one data thread.
pub struct ShardSet {
    epoch: Epoch,
    phase: Option<Phase>,
    step: Step,
    shards: BTreeMap<ShardId, Shard>,
    /// Shards of this set that are being loaded.
    missing: BTreeSet<ShardId>,
    /// The shards that went back alone in this epoch.
    lost: Option<LostShards>,
    connections: TrainerConnections,
    members: Members,
    clocked: ClockedPulls,
    open: Option<OpenCut>,
    /// The highest cut of a command.
    highest_cut: CutId,
    /// The highest cut of a command that ended one.
    ended_cut: CutId,
    refused: u64,
    replicas: Replicas,
    /// The thread, from 0.
    thread: u32,
    /// Of the replicas, in epochs that begin from now on.
    limits: ReplicationLimits,
}

impl ShardSet {
    /// An empty set of this pserver's thread (from 0), before its first epoch.
    #[must_use]
    pub fn new(own: Member, thread: u32) -> Self {
        Self {
            epoch: Epoch::default(),
            phase: None,
            step: Step(0),
            shards: BTreeMap::new(),
            missing: BTreeSet::new(),
            lost: None,
            connections: TrainerConnections::default(),
            members: Members::default(),
            clocked: ClockedPulls::default(),
            open: None,
            highest_cut: CutId::default(),
            ended_cut: CutId::default(),
            refused: 0,
            replicas: Replicas::new(own),
            thread,
            limits: ReplicationLimits::default(),
        }
    }

    /// The current epoch.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The highest cut of a command, or that a backup has taken with its primary.
    #[must_use]
    pub fn highest_cut(&self) -> CutId {
        self.highest_cut.max(self.replicas.followed_cut)
    }

    /// The state of each shard.
    #[must_use]
    pub fn states(&self) -> Vec<ShardState> {
        let state =
            |shard: &Shard| ShardState { replica: self.replica(shard.id()), ..shard.state() };
        self.shards.values().map(state).collect()
    }

    /// The current phase and the lowest number of job steps applied among the shards; none without shards.
    #[must_use]
    pub fn position(&self) -> Option<(PhaseNo, Step)> {
        let serving = self.shards.values().filter(|shard| self.serves(shard.id()));
        serving.map(|shard| (shard.phase(), shard.step())).min()
    }

    /// What it has counted since the start.
    #[must_use]
    pub fn figures(&self) -> ProcessFigures {
        let mut figures = self.clocked.figures();
        let (mut pushes, mut refused) = (0, self.refused);
        for counts in self.shards.values().map(Shard::counts) {
            pushes += counts.pushes;
            refused += counts.refused;
        }
        figures.set(ProcessFigure::Pushes, pushes);
        figures.set(ProcessFigure::FramesRefused, refused);
        figures
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
    /// and step of the command. The others are returned and have to be loaded. If the command names lost shards, these have to
    /// be loaded, and the others keep their state.
    ///
    /// # Errors
    /// The epoch is not later than the set's.
    pub fn load(
        &mut self,
        load: &LoadShards,
        shards: &[ShardId],
        out: &mut Vec<ShardEffect>,
    ) -> Result<Vec<ShardId>, ShardSetError> {
        let from = out.len();
        let &LoadShards { epoch, phase, step, shards: _, ref base, views: _, ref lost } = load;
        if epoch <= self.epoch {
            return Err(ShardSetError::Epoch { own: self.epoch, got: epoch });
        }
        // The ApplicationMaster sends the new epoch to the trainers of these frames.
        self.connections.drop_held();
        self.open = None;
        self.epoch = epoch;
        (self.phase, self.step) = (Some(phase), step);
        self.replicas.begin_epoch(load, shards, self.limits);
        self.clocked.begin(phase, self.replicas.copies.can_move());
        self.shards.retain(|id, _| shards.contains(id));
        if let Some(base) = base {
            self.highest_cut = self.highest_cut.max(base.cut);
        }
        self.lost.clone_from(lost);
        match lost {
            Some(lost) => {
                self.shards.retain(|id, _| !lost.shards.contains(id));
                self.shards.values_mut().for_each(|shard| shard.keep(phase, out));
            }
            None => self.return_to(load, out),
        }
        self.missing = shards.iter().filter(|id| !self.shards.contains_key(id)).copied().collect();
        self.record_changes();
        self.take_early_clocks(out);
        self.replicate(from, out);
        Ok(self.missing.iter().copied().collect())
    }

    /// Shards return to their snapshot of the base. Those that cannot are dropped.
    fn return_to(&mut self, load: &LoadShards, out: &mut Vec<ShardEffect>) {
        for shard in self.shards.values_mut() {
            shard.stop_serving(out);
        }
        match &load.base {
            Some(base) => self.shards.retain(|_, shard| shard.restore(base.cut)),
            None => self.shards.clear(),
        }
        // A snapshot that does not fit does not mean that the checkpoint's file is damaged.
        self.shards.retain(|_, shard| shard.resume(load.phase, load.step, out).is_ok());
    }

    /// Installs a loaded shard that [`Self::load`] returned.
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
        let from = out.len();
        shard.resume(phase, self.step, out)?;
        if let Some(lost) = &self.lost
            && !Mutation::LostShardsTakeAll.is_on()
        {
            shard.move_up(lost);
        }
        self.missing.remove(&shard.id());
        self.shards.insert(shard.id(), shard);
        self.record_changes();
        self.replicate(from, out);
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
        self.clocked.begin(phase, self.replicas.copies.can_move());
        self.abort_cut("the phase is over", out);
        let from = out.len();
        self.end_stops(out);
        let replicas = &self.replicas;
        // Backups begin the phase where the primary's stream has it.
        let serving = self.shards.values_mut().filter(|shard| replicas.is_primary(shard.id()));
        serving.for_each(|shard| shard.begin(phase, out));
        self.take_early_clocks(out);
        self.release(out);
        self.replicate(from, out);
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
        if member.slot.role == Role::Pserver {
            return Ok(self.replicas.connect(member, self.connections.number()));
        }
        if self.members.has_left(member) || older.iter().any(is_later) {
            return Err(Status::NotMember);
        }
        self.close_all(older, out);
        Ok(self.connections.open(member))
    }

    /// The connection is closed. Its trainer sends the waiting frames again on another one.
    pub fn disconnect(&mut self, conn: Conn, out: &mut Vec<ShardEffect>) {
        if let Some(member) = self.connections.close(conn) {
            for shard in self.shards.values_mut() {
                shard.disconnect(conn);
            }
            self.clocked.disconnect(conn, member);
            self.release_clocked(out);
        } else {
            self.replicas.close(conn);
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
        let from = out.len();
        self.members.set(trainers);
        let left = self.connections.list(|member| self.members.has_left(member));
        self.close_all(left, out);
        self.clocked.retain(|member| !self.members.has_left(member));
        self.take_early_clocks(out);
        self.release_clocked(out);
        if let Some(open) = &mut self.open {
            open.retain(|member| self.members.contains(*member));
        }
        self.snap_if_complete(out);
        self.replicate(from, out);
    }

    /// Whether frames of a trainer's connection wait for the end of a cut, for the saver or for backups.
    #[must_use]
    pub fn has_held(&self, conn: Conn) -> bool {
        self.connections.has_held(conn)
    }

    /// Takes one whole frame. Nothing has happened if the result is [`Flow::Wait`].
    pub fn on_frame(&mut self, frame: &Frame<'_>, out: &mut Vec<ShardEffect>) -> Flow {
        let from = out.len();
        let flow = self.take_frame(frame, out);
        self.replicate(from, out);
        flow
    }

    fn take_frame(&mut self, frame: &Frame<'_>, out: &mut Vec<ShardEffect>) -> Flow {
        let header = &frame.header;
        let Some(member) = self.connections.member(frame.conn) else {
            return self.on_peer_frame(frame, out);
        };
        if header.kind == Kind::Clock && self.is_early(member, header) {
            self.clocked.keep_early(frame);
            return Flow::Taken;
        }
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
        match self.replicas.admit(&frame.header) {
            Ok(Flow::Taken) => {}
            Ok(Flow::Wait) => return Flow::Wait,
            Err(status) => return self.refuse(frame, status, out),
        }
        if !self.clocked.concerns(&frame.header) {
            return match self.shards.get_mut(&frame.header.shard) {
                Some(shard) => shard.on_frame(frame, out),
                None => self.refuse(frame, Status::NotReady, out),
            };
        }
        let bytes_max = self.waiting_bytes_max();
        let served = ServedShards { shards: &mut self.shards, copies: &self.replicas.copies };
        match self.clocked.on_frame(member, frame, bytes_max, served, out) {
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
        self.connections.hold_frame(frame, bytes_max)
    }

    /// Bytes of frames that may be held, and of pulls that may wait.
    fn waiting_bytes_max(&self) -> usize {
        let add = |sum: usize, shard: &Shard| sum.saturating_add(shard.waiting_bytes_max());
        self.shards.values().fold(0, add)
    }

    /// Whether the epoch or phase of a frame, or the list with its trainer, is on its way.
    fn is_early(&self, member: Member, header: &Header) -> bool {
        let phase = || self.phase.is_none_or(|phase| header.phase > phase.no);
        self.members.check(member) == Err(Status::NotReady)
            || header.epoch > self.epoch
            || (header.epoch == self.epoch && phase())
    }

    /// SSP: takes the clocks that were early.
    fn take_early_clocks(&mut self, out: &mut Vec<ShardEffect>) {
        for clock in self.clocked.take_early().into_values() {
            // A clock never waits for the saver.
            let _taken = self.take_frame(&clock.frame(), out);
        }
    }

    /// SSP: serves the pulls that do not have to wait any more.
    fn release_clocked(&mut self, out: &mut Vec<ShardEffect>) {
        let served = ServedShards { shards: &mut self.shards, copies: &self.replicas.copies };
        self.clocked.release(served, out);
    }

    /// Handles held frames that do not have to wait any more, in the order in which they came.
    fn release(&mut self, out: &mut Vec<ShardEffect>) {
        for conn in self.connections.with_held() {
            self.release_one(conn, out);
        }
        self.release_clocked(out);
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
        let from = out.len();
        self.pump_shards(out);
        self.replicate(from, out);
    }

    fn pump_shards(&mut self, out: &mut Vec<ShardEffect>) {
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
}
