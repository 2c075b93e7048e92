//! The client without sockets: requests of the training program and frames of shards in, frames to send and
//! [`Event`]s out. No clock: times are milliseconds of any monotonic clock, handed in.
//!
//! ```text
//!  training program ── pull, push_step, take_over … ─▶ ┌─────────┐ ─▶ next_frame(endpoint) ── shell ─▶ shard
//!                   ◀─ next_event ──────────────────── │ Machine │ ◀─ frame(endpoint, …) ◀─── shell ── shard
//!  agent ── work, barrier ───────────────────────────▶ └─────────┘ ◀─ opened, closed, timer ── shell
//! ```
//!
//! Rules that hold here, each with the schedule that breaks without it in the tests of this crate:
//! - An answer of another epoch or phase is nothing; a refused epoch never counts as acknowledged.
//! - A BSP step is *reached* when every shard has acknowledged the lane's `Done`, which goes out when every shard
//!   has acknowledged every part. An ASP step is reached when every shard has acknowledged every part.
//! - Whoever takes a lane over asks all shards first, which fences earlier hand-outs; a sender that is fenced drops the
//!   lane (`lane.rs`).
//! - All parts of a step enter their queues at once, so a barrier can always follow and never splits one.

mod backoff;
mod event;
mod in_flight;
mod lane;
mod links;
mod pull;
mod push;
mod task;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use heddle_protocol::control::{Phase, ShardPlace, TaskPosition};
use heddle_protocol::frame::{Header, Kind, Status};
use heddle_protocol::ids::{CutId, Epoch, HandOut, Lane, Member, ShardId, TaskId};

use crate::error::Fault;
use crate::layout::Layout;
pub use event::{Era, Event, PullAt, PullId, PullItem, StepPush, Unit};
pub use in_flight::{Counters, Frame};
pub use links::Closed;
pub use task::UNREACHED_STEPS_MAX;

use backoff::{NOT_SERVED, RETRY};
use in_flight::{InFlight, Purpose, RequestQueue};

/// The state machine. See the module's page.
#[derive(Debug)]
pub struct Machine {
    layout: Layout,
    era: Option<Era>,
    requests: RequestQueue,
    pulls: BTreeMap<PullId, pull::PullState>,
    lanes: BTreeMap<Lane, lane::LaneState>,
    /// Of the same lanes: under which hand-out each is run.
    hand_outs: BTreeMap<Lane, HandOut>,
    tasks: BTreeMap<TaskId, task::HeldTask>,
    /// The last cut whose barrier was sent, and what was said then, in case it is asked for again.
    cut: CutId,
    at_barrier: Option<Event>,
    events: VecDeque<Event>,
    /// As last told by [`Event::Outages`].
    outages: Vec<Member>,
}

impl Machine {
    /// A client that knows the tables and nothing else: it waits for [`Machine::work`].
    #[must_use]
    pub fn new(layout: Layout) -> Self {
        Self {
            layout,
            era: None,
            requests: RequestQueue::default(),
            pulls: BTreeMap::new(),
            lanes: BTreeMap::new(),
            hand_outs: BTreeMap::new(),
            tasks: BTreeMap::new(),
            cut: CutId::default(),
            at_barrier: None,
            events: VecDeque::new(),
            outages: Vec::new(),
        }
    }

    /// The epoch and phase it works in; none before the first [`Machine::work`].
    #[must_use]
    pub fn era(&self) -> Option<Era> {
        self.era
    }

    /// The last cut whose barrier was sent; number 0 before the first.
    #[must_use]
    pub fn cut(&self) -> CutId {
        self.cut
    }

    /// Counters since the start.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.requests.counters
    }

    // ---- from the ApplicationMaster ----

    /// Where shards are, in which epoch and phase. Another epoch or phase drops all that is under way
    /// and says [`Event::Begun`]; the same with another map only moves connections. An epoch below the known one
    /// is a zombie's and is ignored.
    pub fn work(&mut self, epoch: Epoch, phase: Phase, places: &[ShardPlace], now_ms: u64) {
        let era = Era { epoch, phase: phase.no };
        if self.era.is_some_and(|known| era.epoch < known.epoch) {
            return;
        }
        if self.era != Some(era) {
            self.era = Some(era);
            self.requests.clear();
            self.pulls.clear();
            self.lanes.clear();
            self.hand_outs.clear();
            self.tasks.clear();
            self.events.push_back(Event::Begun { era });
        }
        self.requests.place(places, now_ms);
        self.tell_outages();
    }

    /// Sends the barrier of a cut down every connection, behind the steps that were pushed before, and answers with
    /// [`Event::AtBarrier`]. The same cut again gets the same answer; a lower one, or one of another
    /// epoch, is ignored.
    pub fn barrier(&mut self, cut: CutId, epoch: Epoch) {
        let Some(era) = self.era.filter(|era| era.epoch == epoch) else {
            return;
        };
        if cut > self.cut {
            let mut header = Header::barrier(cut, era.epoch);
            header.phase = era.phase;
            self.requests.barrier(header);
            self.cut = cut;
            self.at_barrier = Some(Event::AtBarrier { cut, epoch, tasks: self.positions() });
        } else if cut < self.cut {
            return;
        }
        self.events.extend(self.at_barrier.clone());
    }

    /// Unfinished tasks with the first step not acknowledged by every shard, by task.
    #[must_use]
    pub fn positions(&self) -> Vec<TaskPosition> {
        self.tasks.iter().map(|(&task, state)| state.position(task)).collect()
    }

    // ---- from the shell ----

    /// A connection is open (and authenticated): all its unanswered requests go down it in order.
    pub fn opened(&mut self, endpoint: SocketAddr) {
        self.requests.opened(endpoint);
        self.tell_outages();
    }

    /// A connection is gone or could not be opened; another try comes by itself.
    pub fn closed(&mut self, endpoint: SocketAddr, how: Closed, now_ms: u64) {
        if let Some((member, refused)) = self.requests.closed(endpoint, how, now_ms) {
            self.events.push_back(Event::Unreachable { member, refused });
        }
        self.tell_outages();
    }

    /// The next connection to open now, if any.
    pub fn next_connect(&mut self, now_ms: u64) -> Option<SocketAddr> {
        self.requests.links.next_due(now_ms)
    }

    /// Whether a connection to this endpoint is still of use.
    #[must_use]
    pub fn wants(&self, endpoint: SocketAddr) -> bool {
        self.requests.links.wants(endpoint)
    }

    /// Whether [`Machine::next_frame`] may have one. (It may also turn out that it was withdrawn.)
    #[must_use]
    pub fn has_frames(&self, endpoint: SocketAddr) -> bool {
        self.requests.links.has_queued(endpoint)
    }

    /// The next frame to write to this connection, which must be open.
    pub fn next_frame(&mut self, endpoint: SocketAddr) -> Option<Frame> {
        self.requests.next_frame(endpoint)
    }

    /// What the training program is to be told next.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Machine::timer`] is due, ms; also when a connection is due to be opened.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        let lanes = self.lanes.values().filter_map(lane::LaneState::deadline).min();
        [self.requests.next_deadline(), lanes].into_iter().flatten().min()
    }

    /// Time has passed.
    pub fn timer(&mut self, now_ms: u64) {
        self.requests.timer(now_ms);
        self.ask_lanes_again(now_ms);
    }

    /// Where the values of this reply are to be written, before it is handed to [`Machine::frame`]. None: they
    /// belong to nothing (any more) and are to be read and thrown away.
    pub fn destination(&mut self, endpoint: SocketAddr, reply: &Header) -> Option<&mut [f32]> {
        if !self.is_current(reply) {
            return None;
        }
        let InFlight { purpose: Purpose::Pull { pull, item, values }, .. } =
            self.requests.find(endpoint, reply)?
        else {
            return None;
        };
        let fits = reply.kind == Kind::Values
            && reply.key_bytes == 0
            && reply.value_bytes as usize == values.len() * 4;
        if !fits {
            return None;
        }
        self.pulls.get_mut(pull)?.values(*item, values.clone())
    }

    /// A reply has arrived whole; its values, if any, are where [`Machine::destination`] said.
    pub fn frame(&mut self, endpoint: SocketAddr, reply: &Header, now_ms: u64) {
        let found = if self.is_current(reply) { self.requests.find(endpoint, reply) } else { None };
        let Some(request) = found else {
            self.requests.counters.dropped += 1;
            return;
        };
        let asked = request.header;
        let id = asked.request;
        let fits = match (&request.purpose, reply.kind) {
            (Purpose::Pull { values, .. }, Kind::Values) => {
                reply.key_bytes == 0 && reply.value_bytes as usize == values.len() * 4
            }
            (Purpose::Push | Purpose::Done | Purpose::TaskDone, Kind::Ack) => {
                reply.payload_bytes() == 0
            }
            (Purpose::Query, Kind::Standing) => reply.payload_bytes() == 0,
            (_, Kind::Refused) => reply.payload_bytes() == 0,
            _ => false,
        };
        if !fits {
            self.requests.take(id);
            self.fault(Fault::Answer { shard: asked.shard, asked: asked.kind, got: reply.kind });
            return;
        }
        let is_push = matches!(asked.kind, Kind::Push | Kind::Done | Kind::TaskDone);
        match (reply.kind, reply.status) {
            (_, Status::NotFinite) if is_push => {
                if let Some(unit) = request.unit {
                    let (step, table, shard) = (asked.step, asked.table, asked.shard);
                    self.events.push_back(Event::NotFinite { unit, step, table, shard });
                }
                self.answered(id, reply, now_ms);
            }
            // A shard that stands beyond a step has all of it: of this lane or task, from somebody.
            (Kind::Refused, Status::Stale | Status::Already | Status::Ok) if is_push => {
                self.answered(id, reply, now_ms)
            }
            (Kind::Refused, status) => self.refused(id, &asked, status, now_ms),
            _ => self.answered(id, reply, now_ms),
        }
    }

    /// [`Machine::destination`] and [`Machine::frame`] in one, for those who have the values at hand.
    pub fn frame_with(
        &mut self,
        endpoint: SocketAddr,
        reply: &Header,
        values: &[f32],
        now_ms: u64,
    ) {
        if let Some(place) = self.destination(endpoint, reply)
            && place.len() == values.len()
        {
            place.copy_from_slice(values);
        }
        self.frame(endpoint, reply, now_ms);
    }

    // ---- inside ----

    fn tell_outages(&mut self) {
        let members = self.requests.links.outages();
        if members != self.outages {
            self.outages.clone_from(&members);
            self.events.push_back(Event::Outages { members });
        }
    }

    fn is_current(&self, reply: &Header) -> bool {
        self.era.is_some_and(|era| reply.epoch == era.epoch && reply.phase == era.phase)
    }

    fn answered(&mut self, id: u64, reply: &Header, now_ms: u64) {
        let Some(request) = self.requests.take(id) else {
            return;
        };
        match (&request.purpose, request.unit) {
            (Purpose::Pull { pull, .. }, _) => self.pulled(*pull),
            (Purpose::Query, Some(Unit::Lane(lane))) => self.standing(lane, reply, now_ms),
            (Purpose::Push | Purpose::Done, Some(Unit::Lane(lane))) => self.lane_acknowledged(lane),
            (Purpose::Push, Some(Unit::Task(task))) => {
                self.part_acknowledged(task, request.header.step)
            }
            (Purpose::TaskDone, Some(Unit::Task(task))) => self.task_done_acknowledged(task),
            _ => {}
        }
    }

    fn refused(&mut self, id: u64, asked: &Header, status: Status, now_ms: u64) {
        let unit = self.requests.find_unit(id);
        match status {
            // A shard in another epoch or phase is behind, or we are: then the ApplicationMaster says so soon
            // and all this is dropped.
            Status::NotReady
            | Status::NotMember
            | Status::WrongEpoch
            | Status::WrongPhase
            | Status::WrongShard => self.requests.postpone(id, NOT_SERVED, now_ms),
            Status::Later => self.requests.postpone(id, RETRY, now_ms),
            // A shard that stands a step behind the others takes the part when it has caught up.
            Status::OutOfOrder
                if matches!(unit, Some(Unit::Lane(_))) || self.requests.has_earlier(id) =>
            {
                self.requests.postpone(id, RETRY, now_ms);
            }
            Status::Stale if matches!(unit, Some(Unit::Lane(_))) => {
                self.requests.take(id);
                if let Some(Unit::Lane(lane)) = unit {
                    self.ask_lane(lane);
                }
            }
            Status::Fenced => match unit {
                Some(Unit::Lane(lane)) => self.lane_fenced(lane),
                _ => self.refused_for_good(id, asked, status),
            },
            // A shard that went to another epoch between the request and its turn: we hear of it soon.
            Status::Stale if asked.kind == Kind::Pull => self.requests.postpone(id, RETRY, now_ms),
            Status::Ok
            | Status::Already
            | Status::Stale
            | Status::OutOfOrder
            | Status::BadRange
            | Status::BadLength
            | Status::NotFinite
            | Status::Unsupported => self.refused_for_good(id, asked, status),
        }
    }

    fn refused_for_good(&mut self, id: u64, asked: &Header, status: Status) {
        self.requests.take(id);
        self.fault(Fault::Refused {
            shard: asked.shard,
            kind: asked.kind,
            step: asked.step,
            status,
        });
    }

    fn fault(&mut self, fault: Fault) {
        self.events.push_back(Event::Fault(fault));
    }

    fn header(&self, era: Era, kind: Kind) -> Header {
        let mut header = Header::new(kind, era.epoch);
        header.phase = era.phase;
        header
    }

    fn shards(&self) -> impl Iterator<Item = ShardId> + use<> {
        (0..self.layout.shards()).map(ShardId)
    }

    /// Whether a request of the training program belongs to what is going on.
    fn is_now(&self, era: Era) -> bool {
        self.era == Some(era)
    }
}
