//! One shard as a state machine: frames in, replies out.
//!
//! A frame is rejected for the first of: a phase that is not served, rows of another shard, a request that the dedup state
//! has seen, a gradient that is not finite. A pull of the next step is parked and blocks nothing; it is served when the
//! step is applied. The [`crate::ShardSet`] checks members, the epoch and barriers.

mod cuts;
mod fill;
mod follow;
mod phases;

pub(crate) use fill::{FillCursor, FillPiece};

use std::sync::Arc;

use heddle_protocol::control::{ReplicaState, ShardReport, ShardState, SparseTableSize};
use heddle_protocol::frame::{Header, Kind, PART_VALUES_MAX, Status, flags};
use heddle_protocol::ids::{PhaseNo, ShardId, Step, TableId, TaskId};
use heddle_protocol::metrics::CountedPhase;

use crate::ahead::AheadPushes;
use crate::asp;
use crate::bsp;
use crate::change::ShardChange;
use crate::config::ShardConfig;
use crate::content::{ContentError, SnapshotHead};
use crate::dedup::{DedupState, Seen};
use crate::effect::{Conn, Flow, LocalReport, ShardEffect};
use crate::frame::{Frame, values_reply};
use crate::lanes::StagedLanes;
use crate::memory::ShardMemory;
use crate::parked::ParkedPulls;
use crate::pass_end::PassEnd;
use crate::phase_progress::PhaseProgress;
use crate::step_count::StepCount;
use crate::table::{NoRoom, TableSlice};

/// A slice of the model: values, optimizer state, dedup state, snapshots.
pub struct Shard {
    id: ShardId,
    memory: ShardMemory,
    early_bytes_max: usize,
    waiting_bytes_max: usize,
    fill_values: usize,
    phase: PhaseNo,
    steps: StepCount,
    progress: PhaseProgress,
    parked: ParkedPulls,
    ahead: AheadPushes,
    /// The dedup state of a file or a snapshot, until the shard is given its phase.
    loaded: Option<DedupState>,
    full_reported: bool,
    /// BSP, on the shard that counts: the last phase that ended before this one.
    counted: Option<CountedPhase>,
    /// The end of a training pass that waits for the saver.
    pass_end: Option<PassEnd>,
    counts: FrameCounts,
    /// A replicated primary: what changed it since the set asked, and the number of effects before each change.
    changes: Option<Vec<(usize, Arc<ShardChange>)>>,
    /// A replicated primary in BSP: a refill begins after the next step.
    begins_fill: bool,
}

/// Frames since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FrameCounts {
    pub(crate) pushes: u64,
    pub(crate) refused: u64,
}

impl Shard {
    /// A shard with the initial values of its tables, which serves nothing yet.
    #[must_use]
    pub fn initial(config: &ShardConfig) -> Self {
        let mut shard = Self::new(config);
        shard.memory.initialise(config.seed);
        shard
    }

    /// A shard of zeros that serves nothing yet, to be filled from a file. Touches the memory for copies.
    #[must_use]
    pub fn new(config: &ShardConfig) -> Self {
        // Room for one part at least: a lane that is next in turn must not wait for its own turn.
        let early_bytes_max = config.early_bytes_max.max(4 * PART_VALUES_MAX);
        Self {
            id: config.shard,
            memory: ShardMemory::new(config),
            early_bytes_max,
            waiting_bytes_max: config.waiting_bytes_max,
            fill_values: config.fill_values,
            phase: PhaseNo(0),
            steps: StepCount::new(config.training_from),
            progress: PhaseProgress::Idle,
            parked: ParkedPulls::new(config.waiting_bytes_max),
            ahead: AheadPushes::new(early_bytes_max),
            loaded: None,
            full_reported: false,
            counted: None,
            pass_end: None,
            counts: FrameCounts::default(),
            changes: None,
            begins_fill: false,
        }
    }

    /// The shard's id.
    #[must_use]
    pub fn id(&self) -> ShardId {
        self.id
    }

    /// Destination of a section's f32 while a file is loaded, before the shard serves a phase.
    pub fn section_mut(&mut self, section: usize) -> Option<&mut [f32]> {
        self.memory.section_mut(section)
    }

    /// Takes the head of a file, after its sections.
    ///
    /// # Errors
    /// The bytes are not a dedup state, or the rows of a sparse table are invalid.
    pub fn load_head(&mut self, head: &SnapshotHead) -> Result<(), ContentError> {
        let state = DedupState::decode(&head.dedup_state);
        let state = state.map_err(|source| ContentError::Dedup { shard: self.id, source })?;
        self.load_sparse_rows(&head.sparse_rows)?;
        self.loaded = Some(state);
        Ok(())
    }

    /// Takes the rows of sparse tables, whose sections are filled: `rows` is their number by table id.
    ///
    /// # Errors
    /// A position is of another shard or comes twice, or there is no room.
    pub fn load_sparse_rows(&mut self, rows: &[u32]) -> Result<(), ContentError> {
        self.memory.load_rows(self.id, rows)
    }

    /// Continues from another job's values, which are in the sections. The tables `plain` have no state of it. `applied` is
    /// its number of steps.
    pub fn continue_from(&mut self, plain: &[TableId], applied: u64) {
        self.memory.begin(plain);
        self.steps.restore(applied);
    }

    /// The values of a table's slice, row-major.
    #[must_use]
    pub fn table_values(&self, table: TableId) -> Option<&[f32]> {
        let table = self.memory.tables.get(table)?;
        Some(table.range(&self.memory.arena, 0, table.rows_len()))
    }

    /// The sizes of sparse tables; none for dense ones.
    #[must_use]
    pub fn sparse_tables(&self) -> Vec<SparseTableSize> {
        self.memory.tables.sparse_sizes()
    }

    /// The state that a new ApplicationMaster gets, without the role as a copy.
    #[must_use]
    pub fn state(&self) -> ShardState {
        let (tasks, done) = self.progress.tasks();
        let (shard, phase, step) = (self.id, self.phase, self.progress.step());
        let (ended, counted) = (self.progress.all_ended(), self.counted());
        let replica = ReplicaState::default();
        ShardState { shard, phase, step, ended, counted, tasks, done, replica }
    }

    /// ASP: how far the tasks of its phase are in the file that was loaded, until the shard is given its phase. `step`: the
    /// steps applied in training, of all phases together.
    #[must_use]
    pub fn loaded_state(&self) -> Option<ShardState> {
        let loaded = self.loaded.as_ref()?;
        let (tasks, done) = match &loaded.seen {
            Seen::Queue(tasks) => PhaseProgress::Queue(tasks.clone()).tasks(),
            Seen::Lanes(_) | Seen::ReadOnly => Default::default(),
        };
        let (shard, phase, step) = (self.id, loaded.phase, Step(loaded.steps));
        let (ended, counted, replica) = (false, None, ReplicaState::default());
        Some(ShardState { shard, phase, step, ended, counted, tasks, done, replica })
    }

    /// BSP: the last phase that has ended and what its records add up to, if this shard counts them.
    pub(crate) fn counted(&self) -> Option<CountedPhase> {
        let present = self.progress.sums().map(|sums| CountedPhase { phase: self.phase, sums });
        present.or(self.counted)
    }

    pub(crate) fn phase(&self) -> PhaseNo {
        self.phase
    }

    pub(crate) fn counts(&self) -> FrameCounts {
        self.counts
    }

    pub(crate) fn waiting_bytes_max(&self) -> usize {
        self.waiting_bytes_max
    }

    /// BSP: job steps applied in the phase.
    #[must_use]
    pub fn step(&self) -> Step {
        self.progress.step()
    }

    /// BSP: the step that its lanes push.
    #[must_use]
    pub fn lane_step(&self) -> Option<Step> {
        self.progress.lanes().map(StagedLanes::step)
    }

    pub(crate) fn progress(&self) -> &PhaseProgress {
        &self.progress
    }

    /// Whether frames are served: not between a loaded state and its phase, nor while the end of a pass waits.
    pub(crate) fn is_serving(&self) -> bool {
        !matches!(self.progress, PhaseProgress::Idle)
    }

    /// Takes a frame of this shard and epoch from a member.
    pub(crate) fn on_frame(&mut self, frame: &Frame<'_>, out: &mut Vec<ShardEffect>) -> Flow {
        let header = &frame.header;
        if matches!(self.progress, PhaseProgress::Idle) || header.phase > self.phase {
            self.refuse(frame, Status::NotReady, out);
            return Flow::Taken;
        }
        if header.phase < self.phase {
            self.refuse(frame, Status::WrongPhase, out);
            return Flow::Taken;
        }
        let changes = header.kind.is_held_by_cuts();
        if changes && self.memory.snapshots.is_last_open() {
            self.refuse(frame, Status::NotReady, out);
            return Flow::Taken;
        }
        match header.kind {
            Kind::Pull => self.pull(frame, out),
            Kind::Push => return self.push(frame, out),
            Kind::Done => self.done(frame, out),
            Kind::TaskDone => self.task_done(frame, out),
            Kind::Query => self.query(frame, out),
            // The shard set handles barriers and clocks; replies are never sent to a shard.
            Kind::Barrier | Kind::Clock | Kind::ClockQuery => {
                self.refuse(frame, Status::Unsupported, out);
            }
            Kind::Values
            | Kind::Ack
            | Kind::Progress
            | Kind::Refused
            | Kind::Entry
            | Kind::Begun
            | Kind::FillBegin
            | Kind::FillChunk
            | Kind::FillEnd
            | Kind::TermBegun
            | Kind::Followed
            | Kind::Position => {
                self.refuse(frame, Status::Unsupported, out);
            }
        }
        Flow::Taken
    }

    /// Continues a step, or the end of a pass, that had to wait for the saver.
    pub(crate) fn pump(&mut self, out: &mut Vec<ShardEffect>) {
        self.end_pass();
        let PhaseProgress::Lanes(lanes) = &mut self.progress else {
            return;
        };
        match lanes.apply(&mut self.memory, &self.steps) {
            Ok(true) => self.step_applied(out),
            Ok(false) => {}
            Err(no_room) => self.report_full(no_room, out),
        }
    }

    /// A sparse table has no room: the job fails, and the step is not applied. Reported once.
    fn report_full(&mut self, no_room: NoRoom, out: &mut Vec<ShardEffect>) {
        if no_room == NoRoom::Rows && !std::mem::replace(&mut self.full_reported, true) {
            let (table, rows) = self.memory.tables.fullest();
            let report = LocalReport::TableFull { shard: self.id, table, rows };
            out.push(ShardEffect::Local(report));
        }
    }

    /// The values of a range, when they can be written to the socket. None if they are of another step.
    pub(crate) fn range(&self, header: &Header) -> Option<&[f32]> {
        let table = self.serving(header)?;
        let first = header.start.checked_sub(table.rows.start)? as usize;
        Some(table.range(&self.memory.arena, first, header.count as usize))
    }

    /// As [`Self::range`], for rows by key: appends the values to `out`.
    pub(crate) fn gather(&self, header: &Header, keys: &[u32], out: &mut Vec<f32>) -> Option<()> {
        self.serving(header)?.gather(&self.memory.arena, keys, out);
        Some(())
    }

    fn serving(&self, header: &Header) -> Option<&TableSlice> {
        if let (Some(lanes), false) = (self.progress.lanes(), header.has(flags::FREE))
            && (lanes.step() != header.step || lanes.is_applying())
        {
            return None;
        }
        self.memory.tables.get(header.table)
    }

    fn pull(&mut self, frame: &Frame<'_>, out: &mut Vec<ShardEffect>) {
        let header = &frame.header;
        if !frame.values.is_empty() {
            return self.refuse(frame, Status::BadLength, out);
        }
        let bytes = match self.memory.tables.check_pull(header, frame.keys) {
            Ok(bytes) => bytes,
            Err(status) => return self.refuse(frame, status, out),
        };
        if let (Some(lanes), false) = (self.progress.lanes(), header.has(flags::FREE)) {
            let (at, applying) = (lanes.step(), lanes.is_applying());
            if header.step < at || (applying && header.step == at) {
                return self.refuse(frame, Status::Stale, out);
            }
            // A lane that is done with this step here may be further on other shards, and pull ahead. A pull of a step that
            // is never reached is answered at the end of the phase.
            if header.step > at {
                if !self.parked.park(frame) {
                    self.refuse(frame, Status::Later, out);
                }
                return;
            }
        }
        out.push(values_reply(frame.conn, header, bytes, frame.keys.into()));
    }

    fn query(&mut self, frame: &Frame<'_>, out: &mut Vec<ShardEffect>) {
        let header = &frame.header;
        let mut reply = header.reply(Kind::Progress, Status::Ok);
        match &mut self.progress {
            PhaseProgress::Lanes(lanes) => {
                if let Err(status) = lanes.ask(header.unit, header.hand_out) {
                    return self.refuse(frame, status, out);
                }
                // A trainer with only the `Done` left to send needs the number of records and their losses.
                let Some(status) = lanes.status(header.unit, reply) else {
                    return self.refuse(frame, Status::BadRange, out);
                };
                reply = status;
                // Every question, also a repeated one: a primary that was superseded cannot answer it.
                self.record(frame, out);
            }
            PhaseProgress::Queue(tasks) => {
                let task = TaskId(header.unit);
                let next = tasks.next_part(task);
                (reply.step, reply.part) = (next.step, next.part);
                reply.flags = if tasks.is_done(task) { flags::DONE } else { 0 };
            }
            PhaseProgress::ReadOnly | PhaseProgress::Idle => {
                return self.refuse(frame, Status::Unsupported, out);
            }
        }
        out.push(ShardEffect::Reply { conn: frame.conn, header: reply });
    }

    fn push(&mut self, frame: &Frame<'_>, out: &mut Vec<ShardEffect>) -> Flow {
        let memory = &mut self.memory;
        let status = match &mut self.progress {
            PhaseProgress::Lanes(lanes) => {
                bsp::stage(lanes, &mut self.ahead, &memory.tables, frame)
            }
            PhaseProgress::Queue(tasks) => {
                match asp::apply(tasks, &mut self.steps, memory, frame) {
                    Ok(status) => Some(status),
                    Err(no_room) => {
                        self.report_full(no_room, out);
                        return Flow::Wait;
                    }
                }
            }
            PhaseProgress::ReadOnly | PhaseProgress::Idle => Some(Status::Unsupported),
        };
        if let Some(status) = status {
            // A part with NaN counts as applied: it is recorded and left out.
            if matches!(status, Status::Ok | Status::NotFinite) {
                self.counts.pushes += 1;
                self.record(frame, out);
            }
            self.acknowledge(frame, status, out);
        }
        Flow::Taken
    }

    fn done(&mut self, frame: &Frame<'_>, out: &mut Vec<ShardEffect>) {
        let header = &frame.header;
        let PhaseProgress::Lanes(lanes) = &mut self.progress else {
            return self.refuse(frame, Status::Unsupported, out);
        };
        if let Err(status) = lanes.admit(header.unit, header.hand_out) {
            return self.refuse(frame, status, out);
        }
        let status = match header.step.cmp(&lanes.step()) {
            std::cmp::Ordering::Less => Status::Already,
            std::cmp::Ordering::Greater => Status::OutOfOrder,
            std::cmp::Ordering::Equal => lanes.done(self.memory.tables.all(), header),
        };
        if status == Status::Ok {
            self.record(frame, out);
        }
        self.acknowledge(frame, status, out);
        self.pump(out);
    }

    fn task_done(&mut self, frame: &Frame<'_>, out: &mut Vec<ShardEffect>) {
        let status = match &mut self.progress {
            PhaseProgress::Queue(tasks) => match tasks.finish(TaskId(frame.header.unit)) {
                true => Status::Ok,
                false => Status::Already,
            },
            PhaseProgress::Lanes(_) | PhaseProgress::ReadOnly | PhaseProgress::Idle => {
                Status::Unsupported
            }
        };
        if status == Status::Ok {
            self.record(frame, out);
        }
        self.acknowledge(frame, status, out);
    }

    /// A step was applied: the cut that waits for it is taken before anything else happens.
    fn step_applied(&mut self, out: &mut Vec<ShardEffect>) {
        self.steps.applied();
        self.take_armed(out);
        for pull in self.parked.take(self.step()) {
            let bytes = self.memory.tables.check_pull(&pull.frame().header, pull.frame().keys);
            debug_assert!(bytes.is_ok(), "the pull was checked before it was parked");
            if let Ok(bytes) = bytes {
                let (conn, header) = (pull.frame().conn, pull.frame().header);
                out.push(values_reply(conn, &header, bytes, pull.into_keys()));
            }
        }
        self.begin_wanted_fill(out);
        for waiting in self.ahead.take_all() {
            let flow = self.push(&waiting.frame(), out);
            debug_assert_eq!(flow, Flow::Taken, "staging never waits for the saver");
        }
        self.report_end(out);
    }

    pub(crate) fn report_end(&self, out: &mut Vec<ShardEffect>) {
        if self.progress.all_ended() {
            let (shard, phase, step) = (self.id, self.phase, self.progress.step());
            let sums = self.progress.sums();
            out.push(ShardEffect::Report(ShardReport::PhaseEnded { shard, phase, step, sums }));
        }
    }

    /// A frame has changed the shard: the backups get it.
    fn record(&mut self, frame: &Frame<'_>, out: &[ShardEffect]) {
        if let Some(changes) = &mut self.changes {
            changes.push((out.len(), Arc::new(ShardChange::of(frame))));
        }
    }

    /// Answers a request that changes the shard.
    fn acknowledge(&mut self, frame: &Frame<'_>, status: Status, out: &mut Vec<ShardEffect>) {
        match status {
            Status::Ok | Status::Already => out.push(frame.acknowledgement(status)),
            _ => self.refuse(frame, status, out),
        }
    }

    fn refuse(&mut self, frame: &Frame<'_>, status: Status, out: &mut Vec<ShardEffect>) {
        // A frame that has to come again later is not an error.
        self.counts.refused += u64::from(!matches!(status, Status::Later | Status::NotReady));
        out.push(frame.refusal(status));
    }

    pub(crate) fn refuse_waiting(&mut self, status: Status, out: &mut Vec<ShardEffect>) {
        for pull in self.parked.take_all() {
            self.refuse(&pull.frame(), status, out);
        }
        for waiting in self.ahead.take_all() {
            self.refuse(&waiting.frame(), status, out);
        }
    }

    /// Drops the waiting frames of a closed connection: the trainer sends them again on the next one.
    pub(crate) fn disconnect(&mut self, conn: Conn) {
        self.parked.disconnect(conn);
        self.ahead.disconnect(conn);
    }
}

#[cfg(test)]
impl Shard {
    /// Bytes of copies for snapshots.
    pub(crate) fn copy_bytes(&self) -> usize {
        self.memory.arena.copy_bytes()
    }
}
