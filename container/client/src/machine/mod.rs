//! The client without sockets. Requests of the training program and frames of shards go in; frames to send and [`ClientEvent`]s
//! come out. It has no clock: times are milliseconds of any monotonic clock, passed as arguments.
//!
//! ```text
//!  training program ── on(DataRequest) ──▶ ┌─────────┐ ─▶ next_frame(endpoint) ── shell ─▶ shard
//!                   ◀─ next_event ──────── │ Machine │ ◀─ frame(endpoint, …) ◀─── shell ── shard
//!                                          └─────────┘ ◀─ opened, closed, timer ── shell
//! ```
//!
//! Rules that hold here. The tests of this crate have the schedule that breaks without each:
//! - Replies of another epoch or phase are ignored. A rejected epoch never counts as an acknowledgement.
//! - A BSP step is *reached* when every shard has acknowledged the lane's `Done`, which is sent when every shard has
//!   acknowledged every part. An ASP step is reached when every shard has acknowledged every part.
//! - A take-over of a lane asks all shards first, which fences earlier hand-outs. A fenced sender drops the lane
//!   (`lanes`).
//! - All parts of a step enter their queues at once, so a barrier never splits a step. It goes at once, also while pulls
//!   wait: a pull may wait for another trainer that waits for the cut.
//! - SSP: the clock counts steps that every shard has acknowledged, never parts (`clock`).

mod backoff;
mod clock;
mod connections;
mod context;
mod event;
mod in_flight;
mod lanes;
mod parts;
mod pulls;
mod request;
mod takeover;
mod tasks;
#[cfg(test)]
mod tests;
pub(crate) mod unit;

use std::net::SocketAddr;

use heddle_protocol::control::{Phase, ShardPlace, TaskPosition};
use heddle_protocol::frame::{Header, Kind, Status};
use heddle_protocol::ids::{CutId, Epoch, Member, TaskId};

use crate::error::Fault;
use crate::layout::Layout;
pub use connections::Closed;
pub use event::ClientEvent;
pub use in_flight::{FrameCounters, RequestFrame};
pub use request::{DataRequest, PullAt, PullId, PullItem, StepPush};
pub use tasks::UNREACHED_STEPS_MAX;
pub use unit::{Era, Unit};

use backoff::{NOT_SERVED, RETRY};
use clock::{StepPull, TrainerClock};
use context::MachineContext;
use in_flight::{InFlight, RequestPurpose};
use lanes::RunningLanes;
use pulls::Pulls;
use tasks::Tasks;

/// The state machine of one trainer's client.
#[derive(Debug)]
pub struct ClientMachine {
    context: MachineContext,
    pulls: Pulls,
    lanes: RunningLanes,
    tasks: Tasks,
    clock: TrainerClock,
    /// The report of the last barrier, for repeats of its cut.
    at_barrier: Option<ClientEvent>,
    /// As last reported by [`ClientEvent::Outages`].
    outages: Vec<Member>,
}

impl ClientMachine {
    /// A client that has the tables and no work. It waits for [`DataRequest::Work`].
    #[must_use]
    pub fn new(layout: Layout) -> Self {
        Self::of(layout, false)
    }

    /// A machine; `shards_move`: whether shards can get other primaries during an epoch.
    #[must_use]
    pub fn of(layout: Layout, shards_move: bool) -> Self {
        Self {
            context: MachineContext::new(layout),
            pulls: Pulls::default(),
            lanes: RunningLanes::default(),
            tasks: Tasks::default(),
            clock: TrainerClock::new(shards_move),
            at_barrier: None,
            outages: Vec::new(),
        }
    }

    /// The current epoch and phase; none before the first [`DataRequest::Work`].
    #[must_use]
    pub fn era(&self) -> Option<Era> {
        self.context.era
    }

    /// The last cut whose barrier was sent; number 0 before the first.
    #[must_use]
    pub fn cut(&self) -> CutId {
        self.context.cut
    }

    /// Counters since the start.
    #[must_use]
    pub fn counters(&self) -> FrameCounters {
        self.context.requests.counters
    }

    /// Unfinished tasks with the first step that some shard has not acknowledged, by task.
    #[must_use]
    pub fn positions(&self) -> Vec<TaskPosition> {
        self.tasks.positions()
    }

    /// Takes a request.
    pub fn on(&mut self, request: DataRequest, now_ms: u64) {
        self.take(request, now_ms);
        self.settle_clock();
    }

    /// SSP: sends the clock if the last request or reply has changed it.
    fn settle_clock(&mut self) {
        if self.clock.is_on() {
            self.clock.settle(self.tasks.have_steps(), &mut self.context);
        }
    }

    fn take(&mut self, request: DataRequest, now_ms: u64) {
        if request.era().is_some_and(|era| self.context.era != Some(era)) {
            return;
        }
        let (pulls, context) = (&mut self.pulls, &mut self.context);
        match request {
            DataRequest::Work { epoch, phase, places } => self.work(epoch, phase, &places, now_ms),
            DataRequest::Barrier { cut, epoch } => self.barrier(cut, epoch),
            DataRequest::TakeOver { grant, .. } => self.lanes.take_over(grant, pulls, context),
            DataRequest::ReleaseLane { lane, .. } => {
                self.lanes.release(lane, pulls, context);
            }
            DataRequest::HoldTask { grant, .. } => {
                if !self.tasks.has_attempt(grant) {
                    self.release_task(grant.task);
                    self.tasks.hold(grant);
                }
            }
            DataRequest::ReleaseTask { task, .. } => self.release_task(task),
            DataRequest::EndTask { task, .. } => self.tasks.end(task, context),
            DataRequest::Pull { pull, at, items, .. } => self.pull(pull, at, items),
            DataRequest::PushStep { unit, push, .. } => {
                match (push.gradient.check(&context.layout), unit) {
                    (Err(error), _) => context.fault(error.into()),
                    (Ok(()), Unit::Task(task)) => {
                        self.tasks.push(task, push, &mut self.clock, context)
                    }
                    (Ok(()), Unit::Lane(lane)) => self.lanes.push(lane, push, context),
                }
            }
        }
    }

    fn pull(&mut self, pull: PullId, at: PullAt, items: Vec<PullItem>) {
        let number = match at {
            PullAt::Before(lane, step) if !self.lanes.may_pull(lane, step) => return,
            PullAt::Step(task, step) if self.clock.is_on() => {
                if self.tasks.holds(task) {
                    self.pull_step(StepPull { task, step, pull, items });
                }
                return;
            }
            PullAt::Now | PullAt::Before(..) | PullAt::Step(..) => None,
        };
        self.pulls.pull(pull, at, number, items, &mut self.context);
    }

    /// SSP: sends a pull with its number, once there is one.
    fn pull_step(&mut self, pull: StepPull) {
        let Some((number, pull)) = self.clock.number(pull) else {
            return;
        };
        let StepPull { task, step, pull, items } = pull;
        let at = PullAt::Step(task, step);
        self.pulls.pull(pull, at, Some(number), items, &mut self.context);
    }

    /// Drops a task with all that is in flight for it.
    fn release_task(&mut self, task: TaskId) {
        self.tasks.release(task, &mut self.context);
        self.pulls.drop_unit(Unit::Task(task));
        self.clock.released(task);
    }

    fn work(&mut self, epoch: Epoch, phase: Phase, places: &[ShardPlace], now_ms: u64) {
        let era = Era { epoch, phase: phase.no };
        if self.context.era.is_some_and(|known| era.epoch < known.epoch) {
            return;
        }
        if self.context.era != Some(era) {
            self.context.era = Some(era);
            self.context.requests.clear();
            self.pulls.clear();
            self.lanes.clear();
            self.tasks.clear();
            self.clock.begin(phase.sharing.staleness().is_some());
            self.context.events.push_back(ClientEvent::Begun { era });
        }
        self.context.requests.place(places, now_ms);
        self.clock.placed(&mut self.context);
        self.report_outages(now_ms);
    }

    fn barrier(&mut self, cut: CutId, epoch: Epoch) {
        if self.context.era.is_none_or(|era| era.epoch != epoch) || cut < self.context.cut {
            return;
        }
        if cut > self.context.cut {
            let mut header = Header::barrier(cut, epoch);
            header.phase = self.context.header(Kind::Barrier).phase;
            self.context.requests.send_barrier(header);
            self.context.cut = cut;
            self.at_barrier = Some(ClientEvent::AtBarrier { cut, epoch, tasks: self.positions() });
        }
        self.context.events.extend(self.at_barrier.clone());
    }

    /// A connection is open and authenticated: all its unanswered requests are queued in order.
    pub fn opened(&mut self, endpoint: SocketAddr, now_ms: u64) {
        let clock = self.clock.repeated(&self.context);
        self.context.requests.opened(endpoint, clock);
        self.report_outages(now_ms);
    }

    /// A probe has found the path of an open connection lost since this time, or whole.
    pub fn probed(&mut self, endpoint: SocketAddr, lost_since_ms: Option<u64>, now_ms: u64) {
        self.context.requests.connections.probed(endpoint, lost_since_ms);
        self.report_outages(now_ms);
    }

    /// Whether a request was sent to this endpoint and not answered.
    #[must_use]
    pub fn awaits(&self, endpoint: SocketAddr) -> bool {
        self.context.requests.awaits(endpoint)
    }

    /// A connection closed or could not be opened. The machine asks for another try later.
    pub fn closed(&mut self, endpoint: SocketAddr, how: Closed, now_ms: u64) {
        if let Some((member, refused)) = self.context.requests.closed(endpoint, how, now_ms) {
            self.context.events.push_back(ClientEvent::Unreachable { member, refused });
        }
        self.report_outages(now_ms);
    }

    /// The next connection to open now, if any.
    pub fn next_connect(&mut self, now_ms: u64) -> Option<SocketAddr> {
        self.context.requests.connections.next_to_open(now_ms)
    }

    /// Whether a connection to this endpoint is still needed.
    #[must_use]
    pub fn wants(&self, endpoint: SocketAddr) -> bool {
        self.context.requests.connections.wants(endpoint)
    }

    /// The pserver's container at this address, if a connection to it is wanted.
    #[must_use]
    pub fn holder(&self, endpoint: SocketAddr) -> Option<Member> {
        self.context.requests.connections.holder(endpoint)
    }

    /// Whether [`ClientMachine::next_frame`] may return a frame. The queue may contain dropped requests only.
    #[must_use]
    pub fn has_frames(&self, endpoint: SocketAddr) -> bool {
        self.context.requests.connections.has_queued(endpoint)
    }

    /// The next frame to write to this connection, which must be open.
    pub fn next_frame(&mut self, endpoint: SocketAddr) -> Option<RequestFrame> {
        self.context.requests.next_frame(endpoint)
    }

    /// The next event for the training program.
    pub fn next_event(&mut self) -> Option<ClientEvent> {
        self.context.events.pop_front()
    }

    /// When [`ClientMachine::timer`] or [`ClientMachine::next_connect`] is due, ms.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        [self.context.requests.next_deadline(), self.lanes.next_deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Time has passed.
    pub fn timer(&mut self, now_ms: u64) {
        self.context.requests.timer(now_ms);
        self.lanes.timer(now_ms, &mut self.pulls, &mut self.context);
    }

    /// The destination of a reply's values, before the reply is passed to [`ClientMachine::frame`]. None: the values belong to no
    /// request any more; discard them.
    pub fn destination(&mut self, endpoint: SocketAddr, reply: &Header) -> Option<&mut [f32]> {
        if !self.is_current(reply) {
            return None;
        }
        let InFlight { purpose: RequestPurpose::Pull { pull, item, values }, .. } =
            self.context.requests.find(endpoint, reply)?
        else {
            return None;
        };
        let fits = reply.kind == Kind::Values
            && reply.key_bytes == 0
            && reply.value_bytes as usize == values.len() * 4;
        if !fits {
            return None;
        }
        self.pulls.values(*pull, *item, values.clone())
    }

    /// A whole reply has arrived. Its values, if any, are where [`ClientMachine::destination`] pointed.
    pub fn frame(&mut self, endpoint: SocketAddr, reply: &Header, now_ms: u64) {
        self.take_reply(endpoint, reply, now_ms);
        self.settle_clock();
    }

    fn take_reply(&mut self, endpoint: SocketAddr, reply: &Header, now_ms: u64) {
        let current = self.is_current(reply);
        let requests = &mut self.context.requests;
        let found = if current { requests.find(endpoint, reply) } else { None };
        let Some(request) = found else {
            requests.counters.dropped += 1;
            return;
        };
        let (asked, unit) = (request.header, request.unit);
        if !fits(&request.purpose, reply) {
            requests.take(asked.request);
            let (asked, got) = (asked.kind, reply.kind);
            return self.context.fault(Fault::Answer { shard: reply.shard, asked, got });
        }
        let is_push = matches!(asked.kind, Kind::Push | Kind::Done | Kind::TaskDone);
        match (reply.kind, reply.status) {
            (_, Status::NotFinite) if is_push => {
                if let Some(unit) = unit {
                    let (step, table, shard) = (asked.step, asked.table, asked.shard);
                    self.context.events.push_back(ClientEvent::NotFinite {
                        unit,
                        step,
                        table,
                        shard,
                    });
                }
                self.answered(asked.request, reply, now_ms);
            }
            // A shard beyond a step has all of it, from this trainer or another one.
            (Kind::Refused, Status::Stale | Status::Already | Status::Ok) if is_push => {
                self.answered(asked.request, reply, now_ms)
            }
            (Kind::Refused, status) => self.refused(&asked, unit, status, now_ms),
            _ => self.answered(asked.request, reply, now_ms),
        }
    }

    /// [`ClientMachine::destination`] and [`ClientMachine::frame`] in one, for values that are in memory already.
    pub fn frame_with(
        &mut self,
        endpoint: SocketAddr,
        reply: &Header,
        values: &[f32],
        now_ms: u64,
    ) {
        if let Some(destination) = self.destination(endpoint, reply)
            && destination.len() == values.len()
        {
            destination.copy_from_slice(values);
        }
        self.frame(endpoint, reply, now_ms);
    }

    fn report_outages(&mut self, now_ms: u64) {
        let outages = self.context.requests.connections.outages();
        if !outages.keys().eq(self.outages.iter()) {
            self.outages = outages.keys().copied().collect();
            let for_ms = |(member, since): (Member, u64)| (member, now_ms.saturating_sub(since));
            let members = outages.into_iter().map(for_ms).collect();
            self.context.events.push_back(ClientEvent::Outages { members });
        }
    }

    fn is_current(&self, reply: &Header) -> bool {
        self.context.era.is_some_and(|era| reply.epoch == era.epoch && reply.phase == era.phase)
    }

    fn answered(&mut self, id: u64, reply: &Header, now_ms: u64) {
        let context = &mut self.context;
        let Some(InFlight { header, payload, purpose, unit, .. }) = context.requests.take(id)
        else {
            return;
        };
        // What the last frame shares with its step or pull goes back to the caller whole.
        drop(payload);
        match (&purpose, unit) {
            (RequestPurpose::Pull { pull, .. }, _) => self.pulls.answered(*pull, context),
            (RequestPurpose::Query, Some(Unit::Lane(lane))) => {
                self.lanes.status(lane, reply, now_ms, context)
            }
            (RequestPurpose::Push | RequestPurpose::Done, Some(Unit::Lane(lane))) => {
                self.lanes.acknowledged(lane, context)
            }
            (RequestPurpose::Push, Some(Unit::Task(task))) => {
                self.tasks.part_acknowledged(task, header.step, &mut self.clock, context)
            }
            (RequestPurpose::TaskDone, Some(Unit::Task(task))) => {
                self.tasks.end_acknowledged(task, context)
            }
            (RequestPurpose::ClockQuery { asked }, _) => {
                for pull in self.clock.answered(*asked, reply.step.0, context) {
                    self.pull_step(pull);
                }
            }
            (purpose, unit) => debug_assert!(false, "{purpose:?} is never sent for {unit:?}"),
        }
    }

    fn refused(&mut self, asked: &Header, unit: Option<Unit>, status: Status, now_ms: u64) {
        let id = asked.request;
        let requests = &mut self.context.requests;
        match (status, unit) {
            // The shard is behind, or this client is: then the ApplicationMaster's command drops all this soon.
            (
                Status::NotReady
                | Status::NotMember
                | Status::WrongEpoch
                | Status::WrongPhase
                | Status::WrongShard,
                _,
            ) => requests.postpone(id, NOT_SERVED, now_ms),
            (Status::Later, _) => requests.postpone(id, RETRY, now_ms),
            // A shard that is a step behind the others takes the part when it has caught up.
            (Status::OutOfOrder, Some(Unit::Lane(_))) => requests.postpone(id, RETRY, now_ms),
            (Status::OutOfOrder, _) if requests.has_earlier(id) => {
                requests.postpone(id, RETRY, now_ms)
            }
            (Status::Stale, Some(Unit::Lane(lane))) => {
                requests.take(id);
                self.lanes.ask(lane, &mut self.pulls, &mut self.context);
            }
            (Status::Fenced, Some(Unit::Lane(lane))) => {
                self.lanes.fenced(lane, &mut self.pulls, &mut self.context)
            }
            // The shard moved to another epoch after it took the request. The command follows soon.
            (Status::Stale, _) if asked.kind == Kind::Pull => requests.postpone(id, RETRY, now_ms),
            (
                Status::Ok
                | Status::Already
                | Status::Stale
                | Status::Fenced
                | Status::OutOfOrder
                | Status::BadRange
                | Status::BadLength
                | Status::NotFinite
                | Status::Unsupported
                // Between pservers only.
                | Status::WrongTerm,
                _,
            ) => {
                requests.take(id);
                let (shard, kind, step) = (asked.shard, asked.kind, asked.step);
                self.context.fault(Fault::Refused { shard, kind, step, status });
            }
        }
    }
}

/// Whether a reply has the kind and length that its request calls for.
fn fits(purpose: &RequestPurpose, reply: &Header) -> bool {
    match (purpose, reply.kind) {
        (RequestPurpose::Pull { values, .. }, Kind::Values) => {
            reply.key_bytes == 0 && reply.value_bytes as usize == values.len() * 4
        }
        (RequestPurpose::Push | RequestPurpose::Done | RequestPurpose::TaskDone, Kind::Ack)
        | (RequestPurpose::Query | RequestPurpose::ClockQuery { .. }, Kind::Progress)
        | (_, Kind::Refused) => reply.payload_bytes() == 0,
        _ => false,
    }
}
