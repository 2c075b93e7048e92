//! One shard as a state machine: frames go in, replies come out.
//!
//! What a frame is refused for, in this order: a phase that is not served, rows that are not here,
//! what the once-only memory has seen, a gradient that is not finite. A pull of the step that comes
//! next is parked and stops nothing; it is served when the step is applied. Who may send frames, the
//! epoch, and barriers are the host's.

mod cuts;
mod frames;
mod phases;
mod pushes;

use std::collections::VecDeque;

use heddle_protocol::control::{ShardState, TaskPosition};
use heddle_protocol::frame::{Header, PART_VALUES_MAX};
use heddle_protocol::ids::{CutId, PhaseNo, ShardId, Step, TableId, TaskAttempt, TaskId};
use heddle_protocol::spec::TableSpec;
use heddle_protocol::task_set::TaskSet;

use crate::arena::Arena;
use crate::content::{ContentError, Section};
use crate::dedup::DedupState;
use crate::effect::Conn;
use crate::lanes::Lanes;
use crate::table::Table;
use crate::task_progress::{NextPart, TaskProgress};

/// Bytes of pulls that a shard keeps for later steps: hundreds of thousands of ranges, or the keys of a
/// thousand full frames.
const PARKED_BYTES_MAX: usize = 256 << 20;

/// What a parked pull takes.
fn parked_bytes(keys: &[u32]) -> usize {
    size_of_val(keys) + size_of::<(Conn, Header, Box<[u32]>)>()
}

/// What a shard has to know of its job.
#[derive(Clone, Debug)]
pub struct ShardConfig {
    /// Which shard.
    pub shard: ShardId,
    /// Shards of the job.
    pub shards: u32,
    /// All tables of the job, in the order of their ids.
    pub tables: Vec<TableSpec>,
    /// Bytes of copies that snapshots of this shard may take (its part of `checkpoint.memory`).
    pub copy_bytes_max: usize,
    /// BSP: bytes of gradients that may wait for lower lanes.
    pub early_bytes_max: usize,
    /// Bytes of pulls that may wait for their step here, and of frames that the host may hold back for this shard in a
    /// cut: so many each.
    pub waiting_bytes_max: usize,
}

impl ShardConfig {
    /// Bytes of the tables' slices with their optimizer state, without copies.
    #[must_use]
    pub fn table_bytes(&self) -> usize {
        let end = layout(self).last().map_or(0, Table::end);
        end * 4
    }

    /// What a file of this shard holds besides the once-only memory, in the order of the file.
    #[must_use]
    pub fn sections(&self) -> Vec<Section> {
        sections(&layout(self))
    }
}

/// A slice of the model with all that belongs to it: values, optimizer state, once-only memory.
pub struct Shard {
    id: ShardId,
    tables: Vec<Table>,
    arena: Arena,
    early_bytes_max: usize,
    pub(crate) waiting_bytes_max: usize,
    phase: PhaseNo,
    mode: Mode,
    /// BSP: pulls of steps to come.
    parked: Vec<(Conn, Header, Box<[u32]>)>,
    parked_bytes: usize,
    /// BSP: pushes of the step that comes next, whose lanes are done with this one.
    ahead: VecDeque<Waiting>,
    ahead_bytes: usize,
    /// BSP: the cut to take, and after how many steps.
    armed: Option<(CutId, Step)>,
    open: Option<Snapshot>,
    kept: Option<Snapshot>,
    /// What a file said of the once-only memory, until the shard is told its phase.
    loaded: Option<DedupState>,
    counts: Counts,
}

/// Frames so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) pushes: u64,
    pub(crate) refused: u64,
}

enum Mode {
    /// Not told what to serve.
    Idle,
    Lanes(Lanes),
    Queue(TaskProgress),
    ReadOnly,
}

/// A frame that waits, with its own copy of the payload.
pub(crate) struct Waiting {
    pub(crate) conn: Conn,
    pub(crate) header: Header,
    pub(crate) keys: Vec<u32>,
    pub(crate) values: Vec<f32>,
}

impl Waiting {
    pub(crate) fn new(conn: Conn, header: &Header, keys: &[u32], values: &[f32]) -> Self {
        Self { conn, header: *header, keys: keys.to_vec(), values: values.to_vec() }
    }

    pub(crate) fn bytes(&self) -> usize {
        4 * (self.keys.len() + self.values.len()) + size_of::<Self>()
    }
}

/// The state of a cut: its cells are in the arena's copies.
struct Snapshot {
    cut: CutId,
    memory: DedupState,
}

fn sections(tables: &[Table]) -> Vec<Section> {
    let mut sections = Vec::new();
    for (id, table) in tables.iter().enumerate() {
        for (plane, _) in &table.planes {
            sections.push(Section {
                // Ids are places in the spec's list, which has at most 1024 of them.
                table: TableId(id as u16),
                name: table.name.clone(),
                plane,
                rows: table.rows.clone(),
                cols: table.cols as u32,
            });
        }
    }
    sections
}

fn layout(config: &ShardConfig) -> Vec<Table> {
    let mut at = 0;
    let slice = |spec| {
        let table = Table::new(spec, config.shard, config.shards, at);
        at = table.end();
        table
    };
    config.tables.iter().map(slice).collect()
}

impl Shard {
    /// A shard with initial values (zeros) that serves nothing yet. Touches the memory for copies.
    #[must_use]
    pub fn new(config: &ShardConfig) -> Self {
        let tables = layout(config);
        let end = tables.last().map_or(0, Table::end);
        Self {
            id: config.shard,
            arena: Arena::new(end, config.copy_bytes_max),
            tables,
            // One part always fits: a lane that is next in turn must not wait for its own turn.
            early_bytes_max: config.early_bytes_max.max(4 * PART_VALUES_MAX),
            waiting_bytes_max: config.waiting_bytes_max,
            phase: PhaseNo(0),
            mode: Mode::Idle,
            parked: Vec::new(),
            parked_bytes: 0,
            ahead: VecDeque::new(),
            ahead_bytes: 0,
            armed: None,
            open: None,
            kept: None,
            loaded: None,
            counts: Counts::default(),
        }
    }

    /// Which shard.
    #[must_use]
    pub fn id(&self) -> ShardId {
        self.id
    }

    /// Where the section's f32 go when a file is loaded, before the shard serves anything.
    pub fn section_mut(&mut self, section: usize) -> Option<&mut [f32]> {
        let place = self.place(section)?;
        self.arena.drop_open();
        self.arena.drop_kept();
        (self.open, self.kept) = (None, None);
        self.arena.cells_for_loading().get_mut(place)
    }

    /// Takes the once-only memory out of a file.
    ///
    /// # Errors
    /// The bytes are not one.
    pub fn load_memory(&mut self, bytes: &[u8]) -> Result<(), ContentError> {
        let memory = DedupState::decode(bytes)
            .map_err(|source| ContentError::DedupState { shard: self.id, source })?;
        self.loaded = Some(memory);
        Ok(())
    }

    /// The values of a table's slice, row-major.
    #[must_use]
    pub fn table_values(&self, table: TableId) -> Option<&[f32]> {
        let table = self.tables.get(usize::from(table.0))?;
        Some(table.range(&self.arena, 0, table.rows_len()))
    }

    /// Bytes that copies for snapshots take now.
    #[must_use]
    pub fn copy_bytes(&self) -> usize {
        self.arena.copy_bytes()
    }

    /// What it says of itself to an ApplicationMaster that takes over.
    #[must_use]
    pub fn state(&self) -> ShardState {
        let (step, ended) = match &self.mode {
            Mode::Lanes(lanes) => (lanes.step(), lanes.all_ended()),
            Mode::Idle | Mode::Queue(_) | Mode::ReadOnly => (Step(0), false),
        };
        let (mut tasks, mut done) = (Vec::new(), TaskSet::default());
        if let Mode::Queue(marks) = &self.mode {
            let position = |(&task, mark): (&TaskId, &NextPart)| TaskPosition {
                task,
                attempt: TaskAttempt(0),
                step: mark.step,
            };
            tasks = marks.unfinished.iter().map(position).collect();
            let runs = marks.done.iter();
            done = runs.map(|(&first, &last)| (TaskId(first), TaskId(last))).collect();
        }
        ShardState { shard: self.id, phase: self.phase, step, ended, tasks, done }
    }

    pub(crate) fn phase(&self) -> PhaseNo {
        self.phase
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// BSP: job steps applied in the phase.
    pub(crate) fn step(&self) -> Step {
        match &self.mode {
            Mode::Lanes(lanes) => lanes.step(),
            Mode::Idle | Mode::Queue(_) | Mode::ReadOnly => Step(0),
        }
    }

    pub(crate) fn has_lanes(&self) -> bool {
        matches!(self.mode, Mode::Lanes(_))
    }

    pub(crate) fn takes_pushes_at_once(&self) -> bool {
        matches!(self.mode, Mode::Queue(_))
    }

    fn place(&self, section: usize) -> Option<std::ops::Range<usize>> {
        let mut planes = self.tables.iter().flat_map(|table| &table.planes);
        planes.nth(section).map(|(_, place)| place.clone())
    }
}
