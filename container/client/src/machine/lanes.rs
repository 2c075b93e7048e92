//! BSP: the lanes that this client runs.
//!
//! ```text
//!              statuses                         all parts acknowledged          all Done acknowledged
//! Asking ───────────────────▶ Computing ─▶ Staging ──────────────────▶ Ending ───────────────────────▶ Computing, Ended
//!   ▲ ▲  └─▶ Completing ────────▲  PushStep                                             Reached
//!   │ └─ Unsure ◀─┘ (ASK_AGAIN_MS later)
//!   └── a pull is rejected as stale: another trainer has completed the step
//!
//! any state ──▶ dropped, `ClientEvent::LaneFenced`: a later hand-out has asked a shard
//! ```
//!
//! A take-over asks every shard for the lane's status; [`super::takeover`] decides what follows. The replies are of
//! different moments, so a predecessor that still runs must not change the lane between them. Every query, push and
//! `Done` therefore carries the number of the hand-out, and a shard that a higher one has asked rejects it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use heddle_protocol::control::LaneGrant;
use heddle_protocol::frame::{Header, Kind, flags};
use heddle_protocol::ids::{HandOut, Lane, ShardId, Step};
use heddle_protocol::metrics::LossSum;

use super::context::MachineContext;
use super::event::ClientEvent;
use super::in_flight::RequestPurpose;
use super::pulls::Pulls;
use super::request::StepPush;
use super::takeover::{self, LaneContinuation, LaneStatus};
use super::tasks::UNREACHED_STEPS_MAX;
use super::unit::Unit;
use crate::error::RequestError;
use crate::gradient::{Gradient, Payload};

/// Statuses that do not match yet: ask again after this time. Shards catch up with each other within a round trip of the
/// other lanes.
const ASK_AGAIN_MS: u64 = 5;

/// All lanes that run here.
#[derive(Debug, Default)]
pub(super) struct RunningLanes(BTreeMap<Lane, LaneRun>);

#[derive(Debug)]
struct LaneRun {
    /// The hand-out under which the lane runs here.
    hand_out: HandOut,
    state: LaneState,
}

#[derive(Debug)]
enum LaneState {
    /// The shards were asked.
    Asking { statuses: BTreeMap<ShardId, LaneStatus> },
    /// To be asked again.
    Unsure { until_ms: u64 },
    /// Missing `Done`s of a predecessor are in flight.
    Completing { missing: usize, next: Option<Step> },
    /// The training program computes this step.
    Computing { step: Step },
    /// Parts are in flight.
    Staging(Box<PushedStep>),
    /// `Done`s are in flight.
    Ending(Box<PushedStep>),
    /// The lane has ended.
    Ended,
}

/// A step in flight.
#[derive(Debug)]
struct PushedStep {
    step: Step,
    rows: u32,
    loss: LossSum,
    end: bool,
    gradient: Arc<Gradient>,
    /// Acknowledgements to come.
    missing: usize,
    /// Steps that were pushed after this one. Each is sent when the previous one is reached: otherwise no shard could
    /// detect that it lacks a step.
    next: VecDeque<StepPush>,
}

impl PushedStep {
    /// The last pushed step, and whether the lane ends with it.
    fn last(&self) -> (Step, bool) {
        self.next.back().map_or((self.step, self.end), |push| (push.step, push.end))
    }
}

impl LaneState {
    fn deadline(&self) -> Option<u64> {
        match self {
            Self::Unsure { until_ms } => Some(*until_ms),
            _ => None,
        }
    }
}

/// The header of a frame that a shard may reject for its hand-out.
fn header(context: &MachineContext, lane: Lane, hand_out: HandOut, kind: Kind) -> Header {
    let mut header = context.header(kind);
    header.unit = lane.0;
    header.hand_out = hand_out;
    header
}

impl LaneRun {
    /// The `Done` of a step of this many records with these losses.
    fn done(
        &self,
        lane: Lane,
        step: Step,
        rows: u32,
        loss: LossSum,
        context: &MachineContext,
    ) -> Header {
        let header = header(context, lane, self.hand_out, Kind::Done);
        Header { step, rows, loss, ..header }
    }

    fn start_step(
        &mut self,
        lane: Lane,
        push: StepPush,
        next: VecDeque<StepPush>,
        context: &mut MachineContext,
    ) {
        let StepPush { step, gradient, rows, loss, end } = push;
        let gradient = Arc::new(gradient);
        let empty = rows == 0 && gradient.tables.iter().all(|part| part.rows.is_empty());
        let mut pushed = Box::new(PushedStep { step, rows, loss, end, gradient, missing: 0, next });
        if empty {
            // There is nothing to stage, so the `Done` can follow at once.
            self.send_dones(lane, &mut pushed, flags::EMPTY, context);
            self.state = LaneState::Ending(pushed);
        } else {
            let header = header(context, lane, self.hand_out, Kind::Push);
            let header = Header { step, rows, loss, ..header };
            pushed.missing = context.send_parts(header, Unit::Lane(lane), &pushed.gradient);
            self.state = LaneState::Staging(pushed);
        }
    }

    fn send_dones(
        &self,
        lane: Lane,
        pushed: &mut PushedStep,
        flags: u16,
        context: &mut MachineContext,
    ) {
        let mut header = self.done(lane, pushed.step, pushed.rows, pushed.loss, context);
        header.flags = flags | if pushed.end { flags::END } else { 0 };
        context.send_to_all(header, &RequestPurpose::Done, Unit::Lane(lane));
        pushed.missing = context.shard_count();
    }

    /// The last reply of a state has come.
    fn advance(&mut self, lane: Lane, context: &mut MachineContext) {
        match std::mem::replace(&mut self.state, LaneState::Ended) {
            LaneState::Staging(mut pushed) => {
                self.send_dones(lane, &mut pushed, 0, context);
                self.state = LaneState::Ending(pushed);
            }
            LaneState::Ending(pushed) => {
                let PushedStep { step, end, gradient, mut next, .. } = *pushed;
                context.events.push_back(ClientEvent::Reached {
                    unit: Unit::Lane(lane),
                    step,
                    cut: context.cut,
                    gradient: Arc::try_unwrap(gradient).unwrap_or_default(),
                });
                if end {
                    context.events.push_back(ClientEvent::Ended { lane });
                } else if let Some(push) = next.pop_front() {
                    self.start_step(lane, push, next, context);
                } else {
                    self.state = LaneState::Computing { step: step.next() };
                }
            }
            LaneState::Completing { next, .. } => self.proceed(lane, next, context),
            other => {
                debug_assert!(false, "no frame is in flight in {other:?}");
                self.state = other;
            }
        }
    }

    fn proceed(&mut self, lane: Lane, next: Option<Step>, context: &mut MachineContext) {
        if let Some(step) = next {
            self.state = LaneState::Computing { step };
            context.events.push_back(ClientEvent::Compute { lane, step });
        } else {
            self.state = LaneState::Ended;
            context.events.push_back(ClientEvent::Ended { lane });
        }
    }

    /// Drops the lane's work in flight and asks every shard for the lane's status.
    fn ask(&mut self, lane: Lane, pulls: &mut Pulls, context: &mut MachineContext) {
        context.requests.drop_unit(Unit::Lane(lane));
        pulls.drop_unit(Unit::Lane(lane));
        self.state = LaneState::Asking { statuses: BTreeMap::new() };
        let header = header(context, lane, self.hand_out, Kind::Query);
        context.send_to_all(header, &RequestPurpose::Query, Unit::Lane(lane));
    }
}

impl RunningLanes {
    /// See [`super::DataRequest::TakeOver`].
    pub(super) fn take_over(
        &mut self,
        grant: LaneGrant,
        pulls: &mut Pulls,
        context: &mut MachineContext,
    ) {
        let LaneGrant { lane, hand_out } = grant;
        if self.0.get(&lane).is_some_and(|run| run.hand_out >= hand_out) {
            return;
        }
        let run = self.0.entry(lane).or_insert(LaneRun { hand_out, state: LaneState::Ended });
        run.hand_out = hand_out;
        run.ask(lane, pulls, context);
    }

    /// Drops the lane and its work in flight. Returns its hand-out.
    pub(super) fn release(
        &mut self,
        lane: Lane,
        pulls: &mut Pulls,
        context: &mut MachineContext,
    ) -> Option<HandOut> {
        let run = self.0.remove(&lane)?;
        context.requests.drop_unit(Unit::Lane(lane));
        pulls.drop_unit(Unit::Lane(lane));
        Some(run.hand_out)
    }

    /// A later hand-out of the lane has asked a shard: the lane belongs to another trainer.
    pub(super) fn fenced(&mut self, lane: Lane, pulls: &mut Pulls, context: &mut MachineContext) {
        let hand_out = self.release(lane, pulls, context);
        debug_assert!(hand_out.is_some(), "a lane is dropped together with its frames");
        if let Some(hand_out) = hand_out {
            let grant = LaneGrant { lane, hand_out };
            context.events.push_back(ClientEvent::LaneFenced { grant });
        }
    }

    /// Another trainer may have completed the step: asks for the lane's status.
    pub(super) fn ask(&mut self, lane: Lane, pulls: &mut Pulls, context: &mut MachineContext) {
        let run = self.0.get_mut(&lane);
        debug_assert!(run.is_some(), "a lane is dropped together with its frames");
        if let Some(run) = run {
            run.ask(lane, pulls, context);
        }
    }

    /// Whether a pull before this step is valid: the lane computes the step, or the previous one is in flight.
    pub(super) fn may_pull(&self, lane: Lane, step: Step) -> bool {
        match self.0.get(&lane).map(|run| &run.state) {
            Some(LaneState::Computing { step: now }) => *now == step,
            Some(LaneState::Staging(pushed) | LaneState::Ending(pushed)) => {
                let (last, end) = pushed.last();
                !end && last.next() == step
            }
            _ => false,
        }
    }

    /// Takes a checked gradient.
    pub(super) fn push(&mut self, lane: Lane, push: StepPush, context: &mut MachineContext) {
        let Some(run) = self.0.get_mut(&lane) else { return };
        match &mut run.state {
            LaneState::Computing { step } if *step == push.step => {
                run.start_step(lane, push, VecDeque::new(), context)
            }
            LaneState::Staging(pushed) | LaneState::Ending(pushed)
                if pushed.last().0.next() == push.step =>
            {
                if pushed.last().1 {
                    context.fault(RequestError::LaneEnded(lane).into());
                } else if pushed.next.len() + 1 >= UNREACHED_STEPS_MAX {
                    context.fault(RequestError::TooManySteps(Unit::Lane(lane)).into());
                } else {
                    pushed.next.push_back(push);
                }
            }
            LaneState::Ended => context.fault(RequestError::LaneEnded(lane).into()),
            _ => {}
        }
    }

    /// A shard has acknowledged a part or a `Done` of the lane.
    pub(super) fn acknowledged(&mut self, lane: Lane, context: &mut MachineContext) {
        let Some(run) = self.0.get_mut(&lane) else {
            debug_assert!(false, "a lane is dropped together with its frames");
            return;
        };
        match &mut run.state {
            LaneState::Staging(pushed) | LaneState::Ending(pushed) if pushed.missing > 1 => {
                pushed.missing -= 1
            }
            LaneState::Completing { missing, .. } if *missing > 1 => *missing -= 1,
            _ => run.advance(lane, context),
        }
    }

    /// The earliest time at which a lane is asked again.
    pub(super) fn next_deadline(&self) -> Option<u64> {
        self.0.values().filter_map(|run| run.state.deadline()).min()
    }

    /// Asks for the status of lanes whose wait is over.
    pub(super) fn timer(&mut self, now_ms: u64, pulls: &mut Pulls, context: &mut MachineContext) {
        for (&lane, run) in &mut self.0 {
            if run.state.deadline().is_some_and(|until_ms| until_ms <= now_ms) {
                run.ask(lane, pulls, context);
            }
        }
    }

    /// A shard has reported the lane's status.
    pub(super) fn status(
        &mut self,
        lane: Lane,
        reply: &Header,
        now_ms: u64,
        context: &mut MachineContext,
    ) {
        let Some(LaneRun { state: LaneState::Asking { statuses }, .. }) = self.0.get_mut(&lane)
        else {
            debug_assert!(false, "queries are in flight in one state only");
            return;
        };
        statuses.insert(reply.shard, LaneStatus::of(reply));
        if statuses.len() < context.shard_count() {
            return;
        }
        let statuses = std::mem::take(statuses);
        let Some(run) = self.0.get_mut(&lane) else { return };
        match takeover::continuation(&statuses) {
            LaneContinuation::Compute(step) => run.proceed(lane, Some(step), context),
            LaneContinuation::Ended => run.proceed(lane, None, context),
            LaneContinuation::Unsure => {
                run.state = LaneState::Unsure { until_ms: now_ms + ASK_AGAIN_MS }
            }
            LaneContinuation::Complete { missing, next } => {
                run.state = LaneState::Completing { missing: missing.len(), next };
                for shard in missing {
                    let status = statuses[&shard];
                    let (rows, loss) = (status.rows, status.loss);
                    let mut header = run.done(lane, status.step, rows, loss, context);
                    header.shard = shard;
                    header.flags = if next.is_none() { flags::END } else { 0 }
                        | if status.staged { 0 } else { flags::EMPTY };
                    context.requests.send(
                        header,
                        Payload::none(),
                        RequestPurpose::Done,
                        Some(Unit::Lane(lane)),
                    );
                }
            }
        }
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
