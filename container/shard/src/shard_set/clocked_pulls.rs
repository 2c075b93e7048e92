//! SSP: frames with clocks, and the pulls that wait for them.
//!
//! The rule is in [`super::clocks`]. Clocks and waiting pulls are those of the data thread, not of a shard: a trainer sends one
//! clock to each thread. A pull that waits blocks nothing behind it. A cut does not hold it: its trainer may be unable to
//! finish a step, and so its own clock, before the pull is answered.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use heddle_protocol::control::{GrantedPulls, Phase};
use heddle_protocol::frame::{Header, Kind, Status, flags};
use heddle_protocol::ids::{Member, PhaseNo, ShardId, Step};

use super::clocks::{Clocks, FallingClock};
use crate::effect::{Conn, Flow, ShardEffect};
use crate::frame::{Frame, WaitingFrame};
use crate::shard::Shard;

/// Clocks and the pulls that wait for them.
#[derive(Default)]
pub(super) struct ClockedPulls {
    phase: PhaseNo,
    clocks: Clocks,
    waiting: VecDeque<WaitingPull>,
    waiting_bytes: usize,
    granted: GrantedPulls,
    now: Duration,
}

struct WaitingPull {
    frame: WaitingFrame,
    since: Duration,
}

impl ClockedPulls {
    /// A new epoch or phase begins. Drops all clocks and waiting pulls: their trainers get a new epoch or phase.
    pub(super) fn begin(&mut self, phase: Phase) {
        self.phase = phase.no;
        self.clocks.begin(phase.sharing);
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

    /// Pulls granted since the start.
    pub(super) fn granted(&self) -> &GrantedPulls {
        &self.granted
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
        shards: &mut BTreeMap<ShardId, Shard>,
        out: &mut Vec<ShardEffect>,
    ) -> Result<(), Status> {
        let header = &frame.header;
        match header.kind {
            Kind::Clock => {
                self.check(header)?;
                let (clock, has_task) = (header.step.0, !header.has(flags::EMPTY));
                let set = self.clocks.set(frame.conn, member, clock, has_task);
                set.map_err(|FallingClock| Status::Stale)?;
                self.release(shards, out);
            }
            Kind::ClockQuery => {
                self.check(header)?;
                let mut reply = header.reply(Kind::Progress, Status::Ok);
                reply.step = Step(self.clocks.start());
                out.push(ShardEffect::Reply { conn: frame.conn, header: reply });
            }
            // A pull of another phase is refused by the shard.
            _ if header.phase != self.phase || self.grant(frame, None) => serve(frame, shards, out),
            _ => {
                let pull = WaitingPull { frame: frame.to_waiting(), since: self.now };
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
    pub(super) fn release(
        &mut self,
        shards: &mut BTreeMap<ShardId, Shard>,
        out: &mut Vec<ShardEffect>,
    ) {
        for _ in 0..self.waiting.len() {
            let Some(pull) = self.waiting.pop_front() else { return };
            let frame = pull.frame.frame();
            if self.grant(&frame, Some(pull.since)) {
                serve(&frame, shards, out);
                self.waiting_bytes -= pull.frame.bytes();
            } else {
                self.waiting.push_back(pull);
            }
        }
    }

    /// Whether a pull is granted now, which is counted. `since`: when it began to wait.
    fn grant(&mut self, frame: &Frame<'_>, since: Option<Duration>) -> bool {
        let Some(gap) = self.clocks.gap(frame.conn, frame.header.step.0) else {
            return false;
        };
        let waited = since.map(|since| self.now.saturating_sub(since).as_micros());
        self.granted.grant(gap, waited.map(|us| u64::try_from(us).unwrap_or(u64::MAX)));
        true
    }

    /// The connection is closed: its trainer is not counted, and its pulls are dropped. Other pulls may be granted
    /// afterwards.
    pub(super) fn disconnect(&mut self, conn: Conn) {
        self.clocks.remove(conn);
        self.waiting.retain(|pull| pull.frame.conn != conn);
        self.waiting_bytes = self.waiting.iter().map(|pull| pull.frame.bytes()).sum();
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
