//! SSP: frames with clocks, and the pulls that wait for them.
//!
//! The rule is in [`super::clocks`]. Clocks and waiting pulls are those of the data thread, not of a shard: a trainer sends one
//! clock to each thread. A pull that waits blocks nothing behind it. A cut does not hold it: its trainer may be unable to
//! finish a step, and so its own clock, before the pull is answered.
//!
//! While a shard stops for a hand-over, its pulls wait too: trainers with the new map send their clocks to the old primary as
//! long as it serves any shard, and these count steps that it lacks.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use heddle_protocol::control::Phase;
use heddle_protocol::frame::{Header, Kind, Status, flags};
use heddle_protocol::ids::{Member, PhaseNo, ShardId, Step};
use heddle_protocol::mutation::Mutation;
use heddle_protocol::process_figures::{ProcessFigure, ProcessFigures};

use super::clocks::{Clocks, FallingClock};
use crate::effect::{Conn, Flow, ShardEffect};
use crate::frame::{Frame, WaitingFrame};
use crate::replication::Replication;
use crate::shard::Shard;

/// Clocks and the pulls that wait for them.
#[derive(Default)]
pub(super) struct ClockedPulls {
    phase: PhaseNo,
    clocks: Clocks,
    waiting: VecDeque<WaitingPull>,
    waiting_bytes: usize,
    /// The last clock of each connection that came before its epoch, its phase or the list with its trainer.
    early: BTreeMap<Conn, WaitingFrame>,
    figures: ProcessFigures,
    now: Duration,
}

struct WaitingPull {
    member: Member,
    frame: WaitingFrame,
    since: Duration,
}

/// What decides about a pull besides clocks.
pub(super) struct ServedShards<'s> {
    pub(super) shards: &'s mut BTreeMap<ShardId, Shard>,
    pub(super) copies: &'s Replication,
}

impl ServedShards<'_> {
    fn is_stopped(&self, shard: ShardId) -> bool {
        self.copies.is_stopped(shard) && !Mutation::StoppedShardIsPulled.is_on()
    }
}

impl ClockedPulls {
    /// A new epoch or phase begins. Drops all clocks and waiting pulls: their trainers get a new epoch or phase.
    pub(super) fn begin(&mut self, phase: Phase, shards_move: bool) {
        self.phase = phase.no;
        self.clocks.begin(phase.sharing, shards_move);
        self.waiting.clear();
        self.waiting_bytes = 0;
    }

    /// The time of what happens next.
    pub(super) fn advance(&mut self, now: Duration) {
        self.now = now;
    }

    /// The time of the last [`Self::advance`].
    pub(super) fn now(&self) -> Duration {
        self.now
    }

    /// What it counts of granted pulls.
    pub(super) fn figures(&self) -> ProcessFigures {
        self.figures
    }

    /// Keeps a clock for what is on its way from the ApplicationMaster. It is not sent again, and a promoted copy may wait for
    /// it.
    pub(super) fn keep_early(&mut self, clock: &Frame<'_>) {
        self.early.insert(clock.conn, clock.to_waiting());
    }

    /// The clocks that were kept.
    pub(super) fn take_early(&mut self) -> BTreeMap<Conn, WaitingFrame> {
        std::mem::take(&mut self.early)
    }

    /// Whether [`Self::on_frame`] takes the frame.
    pub(super) fn concerns(&self, header: &Header) -> bool {
        match header.kind {
            Kind::Pull => self.clocks.are_on() && !header.has(flags::FREE),
            Kind::Clock | Kind::ClockQuery => true,
            _ => false,
        }
    }

    /// Takes a clock, a question for the lowest one, or a pull. At most `bytes_max` bytes of pulls wait.
    ///
    /// # Errors
    /// Why it is refused. Nothing has happened.
    pub(super) fn on_frame(
        &mut self,
        member: Member,
        frame: &Frame<'_>,
        bytes_max: usize,
        served: ServedShards<'_>,
        out: &mut Vec<ShardEffect>,
    ) -> Result<(), Status> {
        let header = &frame.header;
        match header.kind {
            Kind::Clock => {
                self.check(header)?;
                let (clock, has_task) = (header.step.0, !header.has(flags::EMPTY));
                let set = self.clocks.set(member, clock, has_task);
                set.map_err(|FallingClock| Status::Stale)?;
                self.release(served, out);
            }
            Kind::ClockQuery => {
                self.check(header)?;
                if self.clocks.are_incomplete() {
                    return Err(Status::NotReady);
                }
                let mut reply = header.reply(Kind::Progress, Status::Ok);
                reply.step = Step(self.clocks.start());
                out.push(ShardEffect::Reply { conn: frame.conn, header: reply });
            }
            // A pull of another phase is refused by the shard.
            _ if header.phase != self.phase
                || (!served.is_stopped(header.shard) && self.grant(member, frame, None)) =>
            {
                serve(frame, served.shards, out);
            }
            _ => {
                let pull = WaitingPull { member, frame: frame.to_waiting(), since: self.now };
                if self.waiting_bytes + pull.frame.bytes() > bytes_max {
                    return Err(Status::Later);
                }
                self.waiting_bytes += pull.frame.bytes();
                self.waiting.push_back(pull);
            }
        }
        Ok(())
    }

    fn check(&self, header: &Header) -> Result<(), Status> {
        match header.phase.cmp(&self.phase) {
            std::cmp::Ordering::Less => Err(Status::WrongPhase),
            std::cmp::Ordering::Greater => Err(Status::NotReady),
            std::cmp::Ordering::Equal if self.clocks.are_on() => Ok(()),
            std::cmp::Ordering::Equal => Err(Status::Unsupported),
        }
    }

    /// Serves the waiting pulls that the clocks grant by now, in the order in which they came.
    pub(super) fn release(&mut self, served: ServedShards<'_>, out: &mut Vec<ShardEffect>) {
        for _ in 0..self.waiting.len() {
            let Some(pull) = self.waiting.pop_front() else { return };
            let frame = pull.frame.frame();
            if !served.is_stopped(frame.header.shard)
                && self.grant(pull.member, &frame, Some(pull.since))
            {
                serve(&frame, served.shards, out);
                self.waiting_bytes -= pull.frame.bytes();
            } else {
                self.waiting.push_back(pull);
            }
        }
    }

    /// Whether a pull is granted now, which is counted. `since`: when it began to wait.
    fn grant(&mut self, member: Member, frame: &Frame<'_>, since: Option<Duration>) -> bool {
        let Some(gap) = self.clocks.gap(member, frame.header.step.0) else {
            return false;
        };
        self.figures.observe(ProcessFigure::PullGaps, gap);
        self.figures.raise(ProcessFigure::PullGapMax, gap);
        if let Some(since) = since {
            let us = self.now.saturating_sub(since).as_micros();
            self.figures.add(ProcessFigure::PullsWaited, 1);
            self.figures.add(ProcessFigure::PullWait, u64::try_from(us).unwrap_or(u64::MAX));
        }
        true
    }

    /// The connection is closed: where shards cannot move, its trainer is not counted. Its pulls are dropped. Other pulls may be
    /// granted afterwards.
    pub(super) fn disconnect(&mut self, conn: Conn, member: Member) {
        self.clocks.disconnect(member);
        self.early.remove(&conn);
        self.keep_waiting(|frame| frame.conn != conn);
    }

    /// Drops the pulls that do not wait any more.
    fn keep_waiting(&mut self, mut stays: impl FnMut(&WaitingFrame) -> bool) {
        self.waiting.retain(|pull| stays(&pull.frame));
        self.waiting_bytes = self.waiting.iter().map(|pull| pull.frame.bytes()).sum();
    }

    /// A copy here serves from now on. These are the members.
    pub(super) fn promoted(&mut self, members: impl Iterator<Item = Member>) {
        self.clocks.promoted(members);
    }

    /// Another copy serves the shard: its pulls are sent there.
    pub(super) fn stop_serving(&mut self, shard: ShardId, out: &mut Vec<ShardEffect>) {
        self.keep_waiting(|frame| {
            let stays = frame.header.shard != shard;
            if !stays {
                out.push(frame.frame().refusal(Status::WrongShard));
            }
            stays
        });
    }

    /// Trainers have left.
    pub(super) fn retain(&mut self, is_member: impl Fn(Member) -> bool) {
        self.clocks.retain(is_member);
    }
}

fn serve(frame: &Frame<'_>, shards: &mut BTreeMap<ShardId, Shard>, out: &mut Vec<ShardEffect>) {
    match shards.get_mut(&frame.header.shard) {
        Some(shard) => {
            let flow = shard.on_frame(frame, out);
            debug_assert_eq!(flow, Flow::Taken, "a pull never waits for the saver");
        }
        None => out.push(frame.refusal(Status::NotReady)),
    }
}
