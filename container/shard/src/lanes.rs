//! BSP on one shard: gradients of a step are staged, summed in lane order, and applied together.
//!
//! Floating-point sums depend on their order, so a step's gradients are added lane by lane, in any order of arrival. There
//! is one accumulator per table. The lowest lane whose gradient is incomplete (the *front*) is added as its parts arrive.
//! Lanes above the front wait in a bounded buffer. When it is full they get `Later`, which blocks no lane: the front is
//! always accepted. A step is applied when every lane is done, and never before. A dead trainer's lane can therefore be
//! computed again from the same values, and its staged parts are exact for every successor.
//!
//! A lane moves to another trainer by a hand-out with a higher number, and the successor asks all shards for its status.
//! **Asking fences**: from then on this shard rejects pushes and `Done`s of lower numbers. Otherwise the successor would
//! join replies of different moments: it sees the lane unstaged here and done on another shard, because the old trainer
//! continued in between, and completes the lane as empty although its gradient is here by now. The number is valid for the
//! phase and the epoch, which frames carry; it is not part of a checkpoint.

use heddle_protocol::frame::{Header, Status, flags};
use heddle_protocol::ids::{HandOut, Part, Step};
use heddle_protocol::metrics::{LossSum, RecordSums};
use heddle_protocol::mutation::Mutation;

use crate::dedup::SeenLanes;
use crate::memory::ShardMemory;
use crate::step_count::StepCount;
use crate::step_sums::StepSums;
use crate::table::{NoRoom, SummedGradient, TableSlice, Target};
use crate::tables::CheckedGradient;

/// Values that are applied between two checks of the snapshots' room: 64 KiB, which stay in cache.
const APPLY_VALUES: usize = 16 * 1024;

/// The lanes of a phase and the step that is being staged.
pub(crate) struct StagedLanes {
    /// Job steps applied; also the number of the step that is being staged.
    step: Step,
    lanes: Vec<Lane>,
    /// The lowest lane whose gradient of this step is not completely in the sums.
    front: usize,
    /// By table.
    sums: Vec<StepSums>,
    early_bytes: usize,
    early_bytes_max: usize,
    /// All lanes are done: the next table, and the place of the next row among its sums.
    applying: Option<(usize, usize)>,
    /// Of each lane, over the applied steps; none on shards that do not count them.
    totals: Vec<RecordSums>,
}

/// A part of a step's gradient.
#[derive(Clone, Copy)]
pub(crate) struct StepPart {
    pub(crate) lane: u32,
    pub(crate) part: Part,
    /// Whether it is the step's last.
    pub(crate) last: bool,
    /// The step's records.
    pub(crate) rows: u32,
    /// Their losses.
    pub(crate) loss: LossSum,
}

impl StepPart {
    pub(crate) fn of(header: &Header) -> Self {
        Self {
            lane: header.unit,
            part: header.part,
            last: header.has(flags::LAST),
            rows: header.rows,
            loss: header.loss,
        }
    }
}

#[derive(Default)]
struct Lane {
    /// The highest hand-out that has asked for the status.
    asked: HandOut,
    /// The data of the lane ended with an earlier step.
    ended: bool,
    /// The data of the lane ends with this step.
    ends_here: bool,
    /// The next part.
    next: Part,
    /// All parts of this step have come.
    staged: bool,
    /// The `Done` has come: all shards have the gradient.
    done: bool,
    /// Records behind this step's gradient.
    rows: u32,
    /// Their losses.
    loss: LossSum,
    /// A part got `Later`, so later parts may arrive before it.
    deferred: bool,
    /// Parts that wait for lower lanes.
    early: Vec<Early>,
}

struct Early {
    table: usize,
    rows: EarlyRows,
    sums: Vec<f32>,
}

enum EarlyRows {
    Range { first: usize, count: usize },
    Keys(Vec<u32>),
    Positions(Vec<[u32; 2]>),
}

impl StagedLanes {
    pub(crate) fn new(seen: SeenLanes, tables: usize, early_bytes_max: usize) -> Self {
        let SeenLanes { step, ended, totals } = seen;
        let lane = |ended| Lane { ended, ..Lane::default() };
        let mut lanes = Self {
            step,
            lanes: ended.into_iter().map(lane).collect(),
            totals,
            front: 0,
            sums: (0..tables).map(|_| StepSums::default()).collect(),
            early_bytes: 0,
            early_bytes_max,
            applying: None,
        };
        lanes.front = lanes.first_open(0);
        lanes
    }

    pub(crate) fn step(&self) -> Step {
        self.step
    }

    /// Whether a step is partially applied: the values are of no step.
    pub(crate) fn is_applying(&self) -> bool {
        self.applying.is_some()
    }

    /// Whether all lanes have ended: the phase is over.
    pub(crate) fn all_ended(&self) -> bool {
        self.lanes.iter().all(|lane| lane.ended)
    }

    /// Whether nothing of the step has come yet: the state is that of the steps that are applied.
    pub(crate) fn is_unstaged(&self) -> bool {
        let none = |lane: &Lane| lane.next == Part(0) && !lane.staged && !lane.done;
        self.applying.is_none() && self.lanes.iter().all(|lane| lane.ended || none(lane))
    }

    /// The highest hand-out of each lane that has asked for its status.
    pub(crate) fn asked(&self) -> impl Iterator<Item = HandOut> + '_ {
        self.lanes.iter().map(|lane| lane.asked)
    }

    /// Takes the hand-outs of [`Self::asked`] of another copy; false if their number is wrong.
    pub(crate) fn set_asked(&mut self, asked: &[HandOut]) -> bool {
        self.lanes.iter_mut().zip(asked).for_each(|(lane, asked)| lane.asked = *asked);
        self.lanes.len() == asked.len()
    }

    pub(crate) fn seen(&self) -> SeenLanes {
        let ended = self.lanes.iter().map(|lane| lane.ended).collect();
        SeenLanes { step: self.step, ended, totals: self.totals.clone() }
    }

    /// What the applied steps of all lanes add up to; none where this shard does not count.
    pub(crate) fn sums(&self) -> Option<RecordSums> {
        (!self.totals.is_empty()).then(|| RecordSums::over(&self.totals))
    }

    /// Whether frames of the next step can come: the lane is done with this one.
    pub(crate) fn may_be_ahead(&self, lane: u32) -> bool {
        self.lane(lane).is_some_and(|lane| lane.done && !lane.ends_here)
    }

    /// A trainer asks for the lane's status: lower hand-outs are fenced from now on.
    ///
    /// # Errors
    /// A higher one has asked before, or the lane does not exist.
    pub(crate) fn ask(&mut self, lane: u32, hand_out: HandOut) -> Result<(), Status> {
        self.admit(lane, hand_out)?;
        if let Some(lane) = self.lanes.get_mut(lane as usize) {
            lane.asked = hand_out;
        }
        Ok(())
    }

    /// Whether a frame of this hand-out may change the lane.
    ///
    /// # Errors
    /// A higher hand-out has asked, or the lane does not exist.
    pub(crate) fn admit(&self, lane: u32, hand_out: HandOut) -> Result<(), Status> {
        let lane = self.lane(lane).ok_or(Status::BadRange)?;
        if hand_out < lane.asked && !Mutation::AnyHandOut.is_on() {
            return Err(Status::Fenced);
        }
        Ok(())
    }

    /// Records that a part of this lane got `Later`.
    pub(crate) fn defer(&mut self, lane: u32) {
        if let Some(lane) = self.lanes.get_mut(lane as usize) {
            lane.deferred = true;
        }
    }

    /// Whether the part `part` of this step is the lane's next.
    ///
    /// # Errors
    /// The status of the reply, if it is not.
    pub(crate) fn check_part(&self, lane: u32, part: Part) -> Result<(), Status> {
        let lane = self.lane(lane).ok_or(Status::BadRange)?;
        if lane.ended {
            return Err(Status::OutOfOrder);
        }
        if Mutation::NoOnceOnlyMemory.is_on()
            && self.applying.is_none()
            && !lane.done
            && part <= lane.next
        {
            return Ok(());
        }
        if lane.staged || part < lane.next {
            return Err(Status::Already);
        }
        match (part == lane.next, lane.deferred) {
            (true, _) => Ok(()),
            (false, true) => Err(Status::Later),
            (false, false) => Err(Status::OutOfOrder),
        }
    }

    /// Takes the part that [`Self::check_part`] accepted. A gradient that is left out (NaN) still counts as staged.
    pub(crate) fn push(
        &mut self,
        tables: &[TableSlice],
        StepPart { lane, part, last, rows, loss }: StepPart,
        gradient: CheckedGradient<'_>,
    ) -> Status {
        let index = lane as usize;
        debug_assert!(index < self.lanes.len(), "the part was accepted");
        // With `NoOnceOnlyMemory` a repeat may come to a lane below the front: it is added again.
        if index > self.front {
            if let Some((table, target, sums)) = gradient {
                let early = Early::new(table, target, sums);
                if self.early_bytes + early.bytes() > self.early_bytes_max {
                    self.lanes[index].deferred = true;
                    return Status::Later;
                }
                self.early_bytes += early.bytes();
                self.lanes[index].early.push(early);
            }
        } else if let Some((table, target, sums)) = gradient {
            self.sums[table].add(&tables[table], target, sums);
        }
        let lane = &mut self.lanes[index];
        lane.deferred = false;
        (lane.rows, lane.loss) = (rows, loss);
        lane.next = lane.next.max(part.next());
        if last {
            lane.staged = true;
            self.advance(tables);
        }
        Status::Ok
    }

    /// As [`Self::push`], for a change that a primary accepted: its own buffer had room for the part.
    pub(crate) fn follow(
        &mut self,
        tables: &[TableSlice],
        part: StepPart,
        gradient: CheckedGradient<'_>,
    ) -> Status {
        let own = std::mem::replace(&mut self.early_bytes_max, usize::MAX);
        let status = self.push(tables, part, gradient);
        self.early_bytes_max = own;
        status
    }

    /// Takes a `Done`: all shards have this lane's gradient of this step.
    pub(crate) fn done(&mut self, tables: &[TableSlice], header: &Header) -> Status {
        let Some(lane) = self.lanes.get_mut(header.unit as usize) else {
            return Status::BadRange;
        };
        if lane.ended {
            return Status::OutOfOrder;
        }
        if lane.done {
            return Status::Already;
        }
        if header.has(flags::EMPTY) {
            if lane.next != Part(0) && !lane.staged {
                return Status::OutOfOrder;
            }
            lane.staged = true;
        }
        if !lane.staged {
            return Status::OutOfOrder;
        }
        lane.done = true;
        (lane.rows, lane.loss) = (header.rows, header.loss);
        lane.ends_here = header.has(flags::END);
        self.advance(tables);
        if self.lanes.iter().all(|lane| lane.done || lane.ended) {
            for (sums, table) in self.sums.iter_mut().zip(tables) {
                sums.seal(table.cols);
            }
            self.applying = Some((0, 0));
        }
        Status::Ok
    }

    /// The lane's status as a `Progress` has it: the next part, flags, and records and losses of the step as far as they are
    /// known.
    pub(crate) fn status(&self, lane: u32, reply: Header) -> Option<Header> {
        let lane = self.lane(lane)?;
        let mut status = 0;
        for (set, flag) in [
            (lane.staged, flags::STAGED),
            (lane.done, flags::DONE),
            (lane.ended || lane.ends_here, flags::END),
        ] {
            status |= if set { flag } else { 0 };
        }
        let Lane { next, rows, loss, .. } = *lane;
        Some(Header { step: self.step, part: next, flags: status, rows, loss, ..reply })
    }

    /// Applies the step if all lanes are done with it, as far as the snapshots have room, and moves to the next step. False
    /// if some lane is not done.
    ///
    /// # Errors
    /// [`NoRoom::Copies`]: call again after the saver has read more.
    pub(crate) fn apply(
        &mut self,
        memory: &mut ShardMemory,
        steps: &StepCount,
    ) -> Result<bool, NoRoom> {
        let Some((mut table, mut row)) = self.applying else {
            return Ok(false);
        };
        let records: u64 = self.lanes.iter().map(|lane| u64::from(lane.rows)).sum();
        let ShardMemory { tables, arena, snapshots } = memory;
        while let Some(slice) = tables.all_mut().get_mut(table) {
            let snapshot_rows = snapshots.rows_of(table);
            let cols = slice.cols;
            let sums = &mut self.sums[table];
            // A gradient of no records cannot be averaged; a sum can be added.
            let skip = records == 0 && slice.rule.needs_records();
            let rule = slice.rule.at(steps.next());
            let rows_max = (APPLY_VALUES / cols).max(1);
            let mut apply = |target: Target<'_>, sums: &[f32]| {
                if skip {
                    return Ok(());
                }
                let gradient = SummedGradient { sums, records };
                slice.apply(arena, snapshot_rows, &rule, target, gradient)
            };
            loop {
                match sums.take(cols, row, rows_max, &mut apply) {
                    Ok(Some(next)) => row = next,
                    Ok(None) => break,
                    Err(full) => {
                        self.applying = Some((table, row));
                        return Err(full);
                    }
                }
            }
            sums.clear();
            (table, row) = (table + 1, 0);
        }
        self.applying = None;
        self.step = self.step.next();
        for (total, lane) in self.totals.iter_mut().zip(&self.lanes).filter(|(_, lane)| lane.done) {
            total.add(lane.rows, lane.loss);
        }
        for lane in &mut self.lanes {
            *lane = Lane {
                asked: lane.asked,
                ended: lane.ended || lane.ends_here,
                deferred: lane.deferred,
                ..Lane::default()
            };
        }
        self.front = self.first_open(0);
        Ok(true)
    }

    /// Adds waiting parts, lane by lane, up to the first lane whose gradient is incomplete.
    fn advance(&mut self, tables: &[TableSlice]) {
        loop {
            let front = self.first_open(self.front);
            // The new front may have waiting parts, complete or not.
            for index in self.front..(front + 1).min(self.lanes.len()) {
                for early in std::mem::take(&mut self.lanes[index].early) {
                    self.early_bytes -= early.bytes();
                    self.sums[early.table].add(&tables[early.table], early.target(), &early.sums);
                }
            }
            if front == self.front {
                return;
            }
            self.front = front;
        }
    }

    fn first_open(&self, from: usize) -> usize {
        let open = |lane: &Lane| !lane.ended && !lane.staged;
        self.lanes[from..].iter().position(open).map_or(self.lanes.len(), |offset| from + offset)
    }

    fn lane(&self, lane: u32) -> Option<&Lane> {
        self.lanes.get(lane as usize)
    }
}

impl Early {
    fn new(table: usize, target: Target<'_>, sums: &[f32]) -> Self {
        let rows = match target {
            Target::Rows { first, count } => EarlyRows::Range { first, count },
            Target::Keys(keys) => EarlyRows::Keys(keys.to_vec()),
            Target::Positions(positions) => EarlyRows::Positions(positions.to_vec()),
        };
        Self { table, rows, sums: sums.to_vec() }
    }

    fn bytes(&self) -> usize {
        let keys = match &self.rows {
            EarlyRows::Range { .. } => 0,
            EarlyRows::Keys(keys) => keys.len(),
            EarlyRows::Positions(positions) => 2 * positions.len(),
        };
        4 * (keys + self.sums.len())
    }

    fn target(&self) -> Target<'_> {
        match &self.rows {
            EarlyRows::Range { first, count } => Target::Rows { first: *first, count: *count },
            EarlyRows::Keys(keys) => Target::Keys(keys),
            EarlyRows::Positions(positions) => Target::Positions(positions),
        }
    }
}
