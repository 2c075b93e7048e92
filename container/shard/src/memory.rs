//! The memory of a shard: its tables, the arena with their cells, and the snapshots of both.

use heddle_protocol::ids::{CutId, ShardId, TableId};

use crate::arena::Arena;
use crate::config::ShardConfig;
use crate::content::ContentError;
use crate::dedup::DedupState;
use crate::snapshots::Snapshots;
use crate::tables::Tables;

/// Tables, cells and snapshots.
pub(crate) struct ShardMemory {
    pub(crate) tables: Tables,
    pub(crate) arena: Arena,
    pub(crate) snapshots: Snapshots,
}

impl ShardMemory {
    /// Zeros. Touches the memory for copies of dense tables: a sparse one has room for more rows than most jobs bring.
    pub(crate) fn new(config: &ShardConfig) -> Self {
        let tables = config.slices();
        let mut arena = Arena::new(tables.cells(), config.copy_bytes_max);
        arena.touch_copies(tables.dense_cells());
        Self { arena, tables, snapshots: Snapshots::default() }
    }

    /// Fills the initial values of dense tables.
    pub(crate) fn initialise(&mut self, seed: u64) {
        self.tables.initialise(seed, self.arena.cells_for_loading());
    }

    /// The cells of a section of a file, to be filled. Drops all snapshots.
    pub(crate) fn section_mut(&mut self, section: usize) -> Option<&mut [f32]> {
        let cells = self.tables.section(section)?;
        self.snapshots.drop_all(&mut self.arena);
        self.arena.cells_for_loading().get_mut(cells)
    }

    /// Takes the rows of sparse tables, whose sections are filled.
    ///
    /// # Errors
    /// Rows are invalid, or do not fit.
    pub(crate) fn load_rows(&mut self, shard: ShardId, rows: &[u32]) -> Result<(), ContentError> {
        let loaded = self.tables.load_rows(self.arena.cells(), rows);
        loaded.map_err(|(table, what)| ContentError::Rows { shard, table, what })
    }

    /// Sets the state of these tables to the beginning of their values.
    pub(crate) fn begin(&mut self, tables: &[TableId]) {
        tables.iter().for_each(|&table| self.tables.begin(table, self.arena.cells_for_loading()));
    }

    /// No row is here: a refill brings them. Drops all snapshots.
    pub(crate) fn empty(&mut self) {
        self.snapshots.drop_all(&mut self.arena);
        for table in self.tables.all_mut() {
            table.filled = Some(0);
            if let Some(rows) = &mut table.sparse {
                rows.truncate(self.arena.cells(), 0);
            }
        }
    }

    /// Takes the snapshot of a cut.
    pub(crate) fn take(&mut self, cut: CutId, state: DedupState) {
        self.snapshots.take(cut, state, self.tables.sparse_rows(), &mut self.arena);
    }

    /// Drops the snapshot that no saver reads.
    pub(crate) fn drop_open(&mut self) {
        self.snapshots.drop_open(&mut self.arena);
    }

    /// See [`Snapshots::end`].
    pub(crate) fn end_cut(&mut self, cut: CutId, committed: bool) {
        self.snapshots.end(cut, committed, &mut self.arena);
    }

    /// Returns to the snapshot of a cut, and returns its dedup state. None if it is not complete any more.
    pub(crate) fn restore(&mut self, cut: CutId) -> Option<DedupState> {
        let (state, rows) = self.snapshots.restore(cut, &mut self.arena)?;
        self.tables.truncate(self.arena.cells(), &rows);
        Some(state)
    }

    /// Fills `out` with the section's f32 from `at` on, as they were at the cut. False if the cut is over.
    pub(crate) fn save(&mut self, cut: CutId, section: usize, at: usize, out: &mut [f32]) -> bool {
        let cells = self.tables.section(section).filter(|cells| at + out.len() <= cells.len());
        let open = cells.filter(|_| self.snapshots.is_open(cut));
        open.is_some_and(|cells| self.arena.save(cells.start + at, out))
    }
}
