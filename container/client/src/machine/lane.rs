//! BSP: the lanes that this client runs.
//!
//! ```text
//!              standings                        all parts acknowledged          all Done acknowledged
//! Asking ───────────────────▶ Computing ─▶ Staging ──────────────────▶ Ending ───────────────────────▶ Computing, Ended
//!   ▲ ▲  └─▶ Completing ────────▲  push_step                                            Reached
//!   │ └─ Unsure ◀─┘ (a moment later)
//!   └── a pull is refused as stale: somebody else went on
//!
//! any state ──▶ dropped, `Event::LaneFenced`: a shard was asked by a later hand-out
//! ```
//!
//! Whoever takes a lane over asks every shard where the lane stands. A shard without the lane's `Done` of a step proves
//! that nobody left that step's state if no other shard has it either: computing again is exact. A shard that has
//! it proves that every shard holds the whole gradient: then the `Done`s that are missing are all that is
//! left to send.
//!
//! The answers are of different moments, so a predecessor that still runs must not change the lane between them: every
//! query, push and `Done` carries the number of the hand-out, and a shard that was asked by a higher one refuses it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use heddle_protocol::control::LaneGrant;
use heddle_protocol::frame::{Header, Kind, flags};
use heddle_protocol::ids::{HandOut, Lane, ShardId, Step};

use super::in_flight::Purpose;
use super::task::UNREACHED_STEPS_MAX;
use super::{Era, Event, Machine, StepPush, Unit};
use crate::error::RequestError;
use crate::gradient::{Gradient, Payload};

/// Standings that do not fit together yet: ask again after this long. Shards catch up with each other within a
/// round trip of the other lanes.
const ASK_AGAIN_MS: u64 = 5;

/// Where a lane stands on one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaneStatus {
    /// Job steps that the shard has applied.
    step: Step,
    /// The lane's gradient of that step is there wholly.
    staged: bool,
    /// The lane's `Done` of that step was heard.
    done: bool,
    /// The lane has ended.
    ended: bool,
    /// Records behind the gradient that is staged.
    rows: u32,
}

/// What follows from the standings of all shards.
#[derive(Clone, Debug, PartialEq, Eq)]
enum LanePlan {
    /// Nobody left the state before this step.
    Compute(Step),
    /// These shards lack a `Done`; then the lane goes on at `next`, or has ended.
    Complete { missing: Vec<ShardId>, next: Option<Step> },
    /// All shards know that the lane has ended.
    Ended,
    /// A predecessor's frames are still on their way, or a shard has yet to catch up.
    Unsure,
}

/// A lane that is run here.
#[derive(Debug)]
pub(crate) enum LaneState {
    /// Shards were asked.
    Asking { standings: BTreeMap<ShardId, LaneStatus> },
    /// To be asked again.
    Unsure { until_ms: u64 },
    /// A predecessor's `Done`s are being completed.
    Completing { missing: usize, next: Option<Step> },
    /// The training program computes this step.
    Computing { step: Step },
    /// Parts are out.
    Staging(Box<Pushed>),
    /// `Done`s are out.
    Ending(Box<Pushed>),
    /// Nothing more comes.
    Ended,
}

/// A step that is under way.
#[derive(Debug)]
pub(crate) struct Pushed {
    step: Step,
    rows: u32,
    end: bool,
    gradient: Arc<Gradient>,
    /// Answers that are still to come.
    missing: usize,
    /// Steps that follow, pushed already. They go out one by one, each when the one before is reached: no shard
    /// could tell else whether it lacks a step.
    next: VecDeque<StepPush>,
}

impl Pushed {
    /// The last step pushed, and whether the lane ends with it.
    fn last(&self) -> (Step, bool) {
        self.next.back().map_or((self.step, self.end), |push| (push.step, push.end))
    }
}

impl LaneState {
    pub(crate) fn deadline(&self) -> Option<u64> {
        match self {
            Self::Unsure { until_ms } => Some(*until_ms),
            _ => None,
        }
    }
}

fn plan(standings: &BTreeMap<ShardId, LaneStatus>) -> LanePlan {
    let lacks_end: Vec<_> =
        standings.iter().filter(|(_, s)| !s.ended).map(|(&id, s)| (id, *s)).collect();
    if lacks_end.is_empty() {
        return LanePlan::Ended;
    }
    if lacks_end.len() < standings.len() {
        // The lane's last `Done` was heard by some. A shard that still holds the one before it has to catch up first.
        if lacks_end.iter().any(|(_, s)| s.done) {
            return LanePlan::Unsure;
        }
        return LanePlan::Complete {
            missing: lacks_end.into_iter().map(|(id, _)| id).collect(),
            next: None,
        };
    }
    // The step whose `Done` each shard hears next.
    let next_of = |s: &LaneStatus| if s.done { s.step.next() } else { s.step };
    let low = lacks_end.iter().map(|(_, s)| next_of(s)).min().unwrap_or_default();
    let high = lacks_end.iter().map(|(_, s)| next_of(s)).max().unwrap_or_default();
    if low == high {
        return LanePlan::Compute(low);
    }
    let behind: Vec<_> = lacks_end.iter().filter(|(_, s)| next_of(s) == low).collect();
    if high == low.next() && behind.iter().all(|(_, s)| s.step == low) {
        LanePlan::Complete {
            missing: behind.into_iter().map(|(id, _)| *id).collect(),
            next: Some(high),
        }
    } else {
        LanePlan::Unsure
    }
}

impl Machine {
    /// Runs a lane from now on: shards are asked where it stands, then [`Event::Compute`] or [`Event::Ended`] tells.
    /// A lane that is run here already, under this hand-out or a later one, stays as it is.
    pub fn take_over(&mut self, era: Era, grant: LaneGrant) {
        let LaneGrant { lane, hand_out } = grant;
        let known = self.hand_outs.get(&lane);
        if self.is_now(era) && known.is_none_or(|known| *known < hand_out) {
            self.hand_outs.insert(lane, hand_out);
            self.ask_lane(lane);
        }
    }

    /// Runs a lane no more, wherever it stands.
    pub fn give_up(&mut self, era: Era, lane: Lane) {
        if self.is_now(era) {
            self.drop_lane(lane);
        }
    }

    /// A shard was asked by a later hand-out of the lane: it is not ours any more.
    pub(crate) fn lane_fenced(&mut self, lane: Lane) {
        if let Some(hand_out) = self.drop_lane(lane) {
            let grant = LaneGrant { lane, hand_out };
            self.events.push_back(Event::LaneFenced { grant });
        }
    }

    /// Forgets the lane and all that is under way for it. Tells under which hand-out it was run.
    fn drop_lane(&mut self, lane: Lane) -> Option<HandOut> {
        self.lanes.remove(&lane)?;
        self.requests.forget(Unit::Lane(lane));
        self.forget_pulls(Unit::Lane(lane));
        self.hand_outs.remove(&lane)
    }

    /// The header of a frame that a shard may refuse for its hand-out.
    fn lane_header(&self, era: Era, lane: Lane, kind: Kind) -> Header {
        let mut header = self.header(era, kind);
        header.unit = lane.0;
        header.hand_out = self.hand_out(lane);
        header
    }

    /// The hand-out under which a lane is run here; 0 for others.
    pub(crate) fn hand_out(&self, lane: Lane) -> HandOut {
        self.hand_outs.get(&lane).copied().unwrap_or_default()
    }

    /// Hands over the gradient of a step, whole; answered by [`Event::Reached`]. A wrong one is answered by
    /// [`Event::Fault`]; one of another era, or of a step that is not the unit's next, by nothing: the work was
    /// taken back while it was computed.
    ///
    /// Several steps of a unit may be under way, at most [`super::UNREACHED_STEPS_MAX`]. BSP: a step that is pushed before
    /// the one before it is reached waits here.
    pub fn push_step(&mut self, era: Era, unit: Unit, push: StepPush) {
        if !self.is_now(era) {
            return;
        }
        if let Err(error) = push.gradient.check(&self.layout) {
            return self.fault(error.into());
        }
        match unit {
            Unit::Task(task) => self.push_task(era, task, push),
            Unit::Lane(lane) => self.push_lane(era, lane, push),
        }
    }

    /// Whether a pull before this step makes sense: the lane computes it, or the one before is under way.
    pub(crate) fn lane_may_pull(&self, lane: Lane, step: Step) -> bool {
        match self.lanes.get(&lane) {
            Some(LaneState::Computing { step: now }) => *now == step,
            Some(LaneState::Staging(pushed) | LaneState::Ending(pushed)) => {
                let (last, end) = pushed.last();
                !end && last.next() == step
            }
            _ => false,
        }
    }

    fn push_lane(&mut self, era: Era, lane: Lane, push: StepPush) {
        match self.lanes.get_mut(&lane) {
            Some(LaneState::Computing { step }) if *step == push.step => {
                self.start_step(era, lane, push, VecDeque::new())
            }
            Some(LaneState::Staging(pushed) | LaneState::Ending(pushed))
                if pushed.last().0.next() == push.step =>
            {
                if pushed.last().1 {
                    self.fault(RequestError::LaneEnded(lane).into());
                } else if pushed.next.len() + 1 >= UNREACHED_STEPS_MAX {
                    self.fault(RequestError::TooManySteps(Unit::Lane(lane)).into());
                } else {
                    pushed.next.push_back(push);
                }
            }
            Some(LaneState::Ended) => self.fault(RequestError::LaneEnded(lane).into()),
            _ => {}
        }
    }

    fn start_step(&mut self, era: Era, lane: Lane, push: StepPush, next: VecDeque<StepPush>) {
        let StepPush { step, gradient, rows, end } = push;
        let gradient = Arc::new(gradient);
        let empty = rows == 0 && gradient.tables.iter().all(|part| part.rows.is_empty());
        let mut pushed = Box::new(Pushed { step, rows, end, gradient, missing: 0, next });
        if empty {
            // Nothing to stage, so the end of the step can be said at once.
            self.send_dones(era, lane, &mut pushed, flags::EMPTY);
            self.lanes.insert(lane, LaneState::Ending(pushed));
        } else {
            pushed.missing = self.send_parts(era, Unit::Lane(lane), step, &pushed.gradient, rows);
            self.lanes.insert(lane, LaneState::Staging(pushed));
        }
    }

    fn send_dones(&mut self, era: Era, lane: Lane, pushed: &mut Pushed, flags: u16) {
        let mut header = self.done(era, lane, pushed.step, pushed.rows);
        header.flags = flags | if pushed.end { flags::END } else { 0 };
        for shard in self.shards() {
            header.shard = shard;
            self.requests.ask(header, Payload::none(), Purpose::Done, Some(Unit::Lane(lane)));
        }
        pushed.missing = self.layout.shards() as usize;
    }

    fn done(&self, era: Era, lane: Lane, step: Step, rows: u32) -> Header {
        let mut header = self.lane_header(era, lane, Kind::Done);
        header.step = step;
        header.rows = rows;
        header
    }

    /// A part or a `Done` of the lane was acknowledged.
    pub(crate) fn lane_acknowledged(&mut self, lane: Lane) {
        let (Some(era), Some(state)) = (self.era, self.lanes.get_mut(&lane)) else {
            return;
        };
        match state {
            LaneState::Staging(pushed) | LaneState::Ending(pushed) if pushed.missing > 1 => {
                pushed.missing -= 1
            }
            LaneState::Completing { missing, .. } if *missing > 1 => *missing -= 1,
            LaneState::Staging(_) | LaneState::Ending(_) | LaneState::Completing { .. } => {
                self.advance(era, lane)
            }
            // What belongs to these states was dropped when they began.
            LaneState::Asking { .. }
            | LaneState::Unsure { .. }
            | LaneState::Computing { .. }
            | LaneState::Ended => {}
        }
    }

    /// The last answer of a state came.
    fn advance(&mut self, era: Era, lane: Lane) {
        match self.lanes.remove(&lane) {
            Some(LaneState::Staging(mut pushed)) => {
                self.send_dones(era, lane, &mut pushed, 0);
                self.lanes.insert(lane, LaneState::Ending(pushed));
            }
            Some(LaneState::Ending(pushed)) => {
                let Pushed { step, end, gradient, mut next, .. } = *pushed;
                self.events.push_back(Event::Reached {
                    unit: Unit::Lane(lane),
                    step,
                    cut: self.cut,
                    gradient: Arc::try_unwrap(gradient).unwrap_or_default(),
                });
                if end {
                    self.events.push_back(Event::Ended { lane });
                    self.lanes.insert(lane, LaneState::Ended);
                } else if let Some(push) = next.pop_front() {
                    self.start_step(era, lane, push, next);
                } else {
                    self.lanes.insert(lane, LaneState::Computing { step: step.next() });
                }
            }
            Some(LaneState::Completing { next, .. }) => self.go_on(lane, next),
            // `lane_acknowledged` comes here with these three alone.
            other => self.lanes.extend(other.map(|state| (lane, state))),
        }
    }

    fn go_on(&mut self, lane: Lane, next: Option<Step>) {
        if let Some(step) = next {
            self.lanes.insert(lane, LaneState::Computing { step });
            self.events.push_back(Event::Compute { lane, step });
        } else {
            self.lanes.insert(lane, LaneState::Ended);
            self.events.push_back(Event::Ended { lane });
        }
    }

    /// Drops what is under way for the lane and asks every shard where it stands.
    pub(crate) fn ask_lane(&mut self, lane: Lane) {
        let Some(era) = self.era else {
            return;
        };
        self.requests.forget(Unit::Lane(lane));
        self.forget_pulls(Unit::Lane(lane));
        self.lanes.insert(lane, LaneState::Asking { standings: BTreeMap::new() });
        let mut header = self.lane_header(era, lane, Kind::Query);
        for shard in self.shards() {
            header.shard = shard;
            self.requests.ask(header, Payload::none(), Purpose::Query, Some(Unit::Lane(lane)));
        }
    }

    pub(crate) fn ask_lanes_again(&mut self, now_ms: u64) {
        let due = |state: &LaneState| state.deadline().is_some_and(|until_ms| until_ms <= now_ms);
        let due: Vec<_> =
            self.lanes.iter().filter(|(_, state)| due(state)).map(|(&lane, _)| lane).collect();
        for lane in due {
            self.ask_lane(lane);
        }
    }

    /// A shard said where the lane stands.
    pub(crate) fn standing(&mut self, lane: Lane, reply: &Header, now_ms: u64) {
        let (Some(era), Some(LaneState::Asking { standings })) =
            (self.era, self.lanes.get_mut(&lane))
        else {
            return;
        };
        let standing = LaneStatus {
            step: reply.step,
            staged: reply.has(flags::STAGED),
            done: reply.has(flags::DONE),
            ended: reply.has(flags::END),
            rows: reply.rows,
        };
        standings.insert(reply.shard, standing);
        if standings.len() < self.layout.shards() as usize {
            return;
        }
        let standings = std::mem::take(standings);
        match plan(&standings) {
            LanePlan::Compute(step) => self.go_on(lane, Some(step)),
            LanePlan::Ended => self.go_on(lane, None),
            LanePlan::Unsure => {
                self.lanes.insert(lane, LaneState::Unsure { until_ms: now_ms + ASK_AGAIN_MS });
            }
            LanePlan::Complete { missing, next } => {
                self.lanes.insert(lane, LaneState::Completing { missing: missing.len(), next });
                for shard in missing {
                    let standing = standings[&shard];
                    let mut header = self.done(era, lane, standing.step, standing.rows);
                    header.shard = shard;
                    header.flags = if next.is_none() { flags::END } else { 0 }
                        | if standing.staged { 0 } else { flags::EMPTY };
                    self.requests.ask(
                        header,
                        Payload::none(),
                        Purpose::Done,
                        Some(Unit::Lane(lane)),
                    );
                }
            }
        }
    }
}
