//! The values of another job's checkpoint (`model.init`) as the initial values of a shard, whatever the numbers of shards.
//!
//! A shard reads each file of the other job whose rows it has, and copies these rows; a file with sparse tables twice (see
//! `inherited_rows`). A file is read to its end, since its sum covers all of it. Nothing is used before all sums are right. Every shard of a process uses the manifest that was read
//! first: a folder that is replaced meanwhile is found damaged, not mixed.

use std::ops::Range;

use bytemuck::cast_slice_mut;
use heddle_protocol::ids::{ShardId, TableId};
use heddle_protocol::manifest::{CutIdentity, Manifest, ShardFile};
use heddle_protocol::spec::position::POSITIONS;
use heddle_protocol::spec::warm_start::{WarmStart, job_of, warm_start};
use heddle_protocol::spec::{JobSpec, TableKind, TableSpec, shard_rows};
use heddle_shard::{ContentError, Shard, ShardConfig, ShardSection, applied_steps};
use heddle_storage::StorageUrl;
use heddle_storage::checkpoint::{CheckpointError, StoredCheckpoint, good_copy, or_removed};
use heddle_storage::shard_file::{Piece, ShardHeader, ShardReader, ShardRows, Values};
use tokio::sync::OnceCell;

use crate::inherited_rows::{InheritedRows, RowNumbers};
use crate::layout::{ADDED_STATE, DEDUP_STATE};
use crate::load_error::LoadError;

/// Names of the sections of a table that are not optimizer state.
const VALUES_OF: [&str; 2] = ["values", POSITIONS];

/// The checkpoint that a job begins with.
pub(crate) struct OtherJob {
    spec: JobSpec,
    /// URL of the checkpoint's directory.
    dir: String,
    opened: OnceCell<OpenedCheckpoint>,
}

/// What is known once its manifest was read.
struct OpenedCheckpoint {
    files: Vec<ShardFile>,
    identity: CutIdentity,
    start: WarmStart,
}

/// What goes from a section of a file to a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Copied {
    Dense(CopiedRows),
    /// The rows of a sparse table, by the shard's table; `to` is the shard's section with `cols` values a row.
    Sparse {
        table: TableId,
        to: usize,
        cols: usize,
    },
    /// The positions of the rows of a sparse table, by the shard's table.
    Positions(TableId),
}

/// Rows of one section of a dense table that go from a file to a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CopiedRows {
    /// The shard's section.
    to: usize,
    /// Bytes of the file's section.
    from: Range<u64>,
    /// Where they go in the shard's section, in f32.
    at: usize,
}

impl OtherJob {
    /// The checkpoint that a job names; `None` for one that begins with initial values.
    pub(crate) fn of(spec: &JobSpec) -> Option<Self> {
        let dir = spec.model.init.as_ref()?.url();
        Some(Self { spec: spec.clone(), dir, opened: OnceCell::new() })
    }

    /// A shard that begins with these values.
    ///
    /// # Errors
    /// The checkpoint is damaged, cannot be read, or does not fit the job.
    pub(crate) async fn shard(&self, config: &ShardConfig) -> Result<Box<Shard>, LoadError> {
        let location = StorageUrl::parse(&self.dir)?;
        let storage = heddle_storage::connect(&location).map_err(CheckpointError::from)?;
        or_removed(&*storage, location.path(), self.read(config)).await
    }

    async fn read(&self, config: &ShardConfig) -> Result<Box<Shard>, LoadError> {
        let opened = self.opened.get_or_try_init(|| self.open()).await?;
        let mut shard = Box::new(Shard::initial(config));
        let mut inherited = InheritedRows::new(config);
        let mut applied = 0;
        for file in opened.files_of(config, &inherited) {
            let file = &self.good_copy(opened, file).await?;
            let rows = self.rows(opened, config, file, &mut inherited, &mut shard).await?;
            applied = applied.max(self.copy(opened, config, file, &rows, &mut shard).await?);
        }
        shard.load_sparse_rows(inherited.counts()).map_err(|source| {
            let file = self.dir.clone();
            LoadError::Content { file, source }
        })?;
        let plain = (0u16..).map(TableId).zip(&opened.start.tables);
        let plain = plain.filter(|(_, table)| table.as_ref().is_some_and(|from| !from.keeps_state));
        let plain: Vec<TableId> = plain.map(|(id, _)| id).collect();
        shard.continue_from(&plain, if opened.start.keeps_steps { applied } else { 0 });
        Ok(shard)
    }

    async fn open(&self) -> Result<OpenedCheckpoint, LoadError> {
        let location = StorageUrl::parse(&self.dir)?;
        let manifest = StoredCheckpoint::manifest_at(&location).await?;
        let identity = manifest.identity();
        let Manifest { spec, shards, .. } = manifest;
        let start = job_of(&spec).and_then(|before| warm_start(&self.spec, &before));
        let start =
            start.map_err(|source| LoadError::WarmStart { dir: self.dir.clone(), source })?;
        Ok(OpenedCheckpoint { files: shards, identity, start })
    }

    /// Numbers the rows of sparse tables that the shard has of a file, by table id of the shard.
    async fn rows(
        &self,
        opened: &OpenedCheckpoint,
        config: &ShardConfig,
        file: &ShardFile,
        inherited: &mut InheritedRows,
        shard: &mut Shard,
    ) -> Result<Vec<RowNumbers>, LoadError> {
        let mut rows: Vec<RowNumbers> = Vec::new();
        rows.resize_with(config.tables.len(), RowNumbers::default);
        if config.tables.iter().all(|table| table.kind == TableKind::Dense) {
            return Ok(rows);
        }
        let mut reader = self.reader(opened, file).await?;
        let wrong = |what| LoadError::Other { file: self.shown(file), what };
        let copies = opened.copies(config, reader.header()).map_err(wrong)?;
        while let Some(piece) = reader.next().await? {
            let section = piece.section.checked_sub(1);
            let copied = section.and_then(|section| copies.get(section)?.as_ref());
            if let Some(&Copied::Positions(table)) = copied
                && let Some(rows) = rows.get_mut(usize::from(table.0))
            {
                inherited.take(table, &piece.data, rows, shard).map_err(wrong)?;
            }
        }
        Ok(rows)
    }

    /// The copy of a shard's file to read: rows are copied before the sum of their file is known.
    async fn good_copy(
        &self,
        opened: &OpenedCheckpoint,
        file: &ShardFile,
    ) -> Result<ShardFile, LoadError> {
        let location = StorageUrl::parse(&self.dir)?;
        let storage = heddle_storage::connect(&location).map_err(CheckpointError::from)?;
        Ok(good_copy(&*storage, location.path(), file, &opened.identity).await?)
    }

    async fn reader(
        &self,
        opened: &OpenedCheckpoint,
        file: &ShardFile,
    ) -> Result<ShardReader, LoadError> {
        let location = StorageUrl::parse(&self.dir)?;
        let storage = heddle_storage::connect(&location).map_err(CheckpointError::from)?;
        Ok(ShardReader::open(&*storage, location.path(), file, &opened.identity).await?)
    }

    /// A file for messages.
    fn shown(&self, file: &ShardFile) -> String {
        format!("{}/{}", self.dir, file.file)
    }

    /// Copies the rows that the shard has of a file, and returns the steps that the file's shard had applied.
    async fn copy(
        &self,
        opened: &OpenedCheckpoint,
        config: &ShardConfig,
        file: &ShardFile,
        rows: &[RowNumbers],
        shard: &mut Shard,
    ) -> Result<u64, LoadError> {
        let mut reader = self.reader(opened, file).await?;
        let wrong = |what| LoadError::Other { file: self.shown(file), what };
        let copies = opened.copies(config, reader.header()).map_err(wrong)?;
        let mut state = Vec::new();
        while let Some(piece) = reader.next().await? {
            let Some(section) = piece.section.checked_sub(1) else {
                state.extend_from_slice(&piece.data);
                continue;
            };
            let written = match copies.get(section).and_then(Option::as_ref) {
                None | Some(Copied::Positions(_)) => Some(()),
                Some(Copied::Dense(rows)) => rows.write(&piece, shard),
                Some(Copied::Sparse { table, to, cols }) => {
                    let rows = rows.get(usize::from(table.0));
                    rows.and_then(|rows| rows.write(*to, *cols, &piece, shard))
                }
            };
            if written.is_none() {
                return Err(wrong(format!(
                    "section {} is longer than in the header",
                    piece.section
                )));
            }
        }
        applied_steps(&state).map_err(|source| {
            let source = ContentError::Dedup { shard: file.shard, source };
            LoadError::Content { file: self.shown(file), source }
        })
    }
}

impl OpenedCheckpoint {
    fn count(&self) -> u32 {
        // A manifest lists at most 4096.
        self.files.len() as u32
    }

    /// The files that have rows of this shard; the first one where none has, since the count of steps is in it.
    fn files_of(&self, config: &ShardConfig, inherited: &InheritedRows) -> Vec<&ShardFile> {
        let has_rows = |file: &&ShardFile| {
            let tables = config.tables.iter().zip(&self.start.tables);
            tables.filter_map(|(own, from)| Some((own, from.as_ref()?))).any(|(own, from)| {
                if own.kind == TableKind::Sparse {
                    return inherited.overlaps(file.shard, self.count());
                }
                let here = shard_rows(own.rows, config.shard, config.shards);
                !common(&here, &shard_rows(from.spec.rows, file.shard, self.count())).is_empty()
            })
        };
        let files: Vec<_> = self.files.iter().filter(has_rows).collect();
        if files.is_empty() { self.files.iter().take(1).collect() } else { files }
    }

    /// By the sections of the file after the dedup state: what is copied of them.
    ///
    /// # Errors
    /// The file is not of the job in the manifest.
    fn copies(
        &self,
        config: &ShardConfig,
        header: &ShardHeader,
    ) -> Result<Vec<Option<Copied>>, String> {
        let (state, listed) = header.sections.split_first().ok_or("it has no section")?;
        if state.name != DEDUP_STATE || header.shards != self.count() {
            return Err(format!("it must be a file of {} shards", self.count()));
        }
        let mut copies: Vec<Option<Copied>> = vec![None; listed.len()];
        for (to, section) in config.sections(&[]).iter().enumerate() {
            let Some(from) = self.start.tables.get(usize::from(section.table.0)) else { continue };
            let Some(from) =
                from.as_ref().filter(|from| from.keeps_state || VALUES_OF.contains(&section.plane))
            else {
                continue;
            };
            let there = rows_of(header, &from.spec, section)?;
            let found = listed.iter().position(|listed| {
                listed.table == Some(from.spec.id)
                    && listed.name == section.plane
                    && listed.values == values_of(section)
            });
            match found {
                Some(found) => copies[found] = Copied::of(to, section, &there),
                // State that files of older programs lack begins as zeros.
                None if is_added(config, section) => {}
                None => {
                    return Err(format!("it has no '{}' of table {}", section.plane, section.name));
                }
            }
        }
        Ok(copies)
    }
}

/// Whether files of older programs lack this state.
fn is_added(config: &ShardConfig, section: &ShardSection) -> bool {
    let table = config.tables.get(usize::from(section.table.0));
    let kind = table.map(|table| table.optimizer.kind().name);
    (kind, section.plane) == (Some(ADDED_STATE.0), ADDED_STATE.1)
}

/// How the numbers of a section lie in a file.
fn values_of(section: &ShardSection) -> Values {
    if section.plane == POSITIONS { Values::U64 } else { Values::F32 }
}

/// The rows of a table in a file, which must be those that the job in the manifest has there. A sparse table has any
/// number of rows, from 0.
fn rows_of(
    header: &ShardHeader,
    spec: &TableSpec,
    section: &ShardSection,
) -> Result<Range<u64>, String> {
    if header.shard >= ShardId(header.shards) {
        return Err(format!("it is of shard {} of {}", header.shard, header.shards));
    }
    let expected = shard_rows(spec.rows, header.shard, header.shards);
    let same_rows = |rows: ShardRows| match rows {
        ShardRows::Sparse { count } => section.is_sparse.then_some(0..count),
        ShardRows::Dense { first, count } => {
            let held = first..first.saturating_add(count);
            (!section.is_sparse && held == expected).then_some(held)
        }
    };
    let found = header
        .tables
        .iter()
        .find(|table| table.id == spec.id && table.name == section.name && table.cols == spec.cols);
    match found.and_then(|table| same_rows(table.rows)) {
        Some(rows) => Ok(rows),
        None => Err(format!("table {} is not that of the job in the manifest", section.name)),
    }
}

fn common(a: &Range<u64>, b: &Range<u64>) -> Range<u64> {
    a.start.max(b.start)..a.end.min(b.end)
}

impl Copied {
    /// What goes from a section of a file with the rows `there` to the same section of the shard.
    fn of(to: usize, section: &ShardSection, there: &Range<u64>) -> Option<Self> {
        let (table, cols) = (section.table, section.cols as usize);
        match (section.is_sparse, section.plane) {
            (true, POSITIONS) => Some(Self::Positions(table)),
            (true, _) => Some(Self::Sparse { table, to, cols }),
            (false, _) => CopiedRows::between(to, section, there).map(Self::Dense),
        }
    }
}

impl CopiedRows {
    /// What goes from a file with the rows `there` to a section; `None` without common rows.
    fn between(to: usize, section: &ShardSection, there: &Range<u64>) -> Option<Self> {
        let rows = common(&section.rows, there);
        let row_bytes = 4 * u64::from(section.cols);
        (!rows.is_empty()).then(|| Self {
            to,
            from: (rows.start - there.start) * row_bytes..(rows.end - there.start) * row_bytes,
            at: (rows.start - section.rows.start) as usize * section.cols as usize,
        })
    }

    /// Writes what a piece has of these rows. `None` if it does not fit.
    fn write(&self, piece: &Piece, shard: &mut Shard) -> Option<()> {
        let bytes = piece.offset..piece.offset + piece.data.len() as u64;
        let part = common(&self.from, &bytes);
        if part.is_empty() {
            return Some(());
        }
        let values: &mut [u8] = cast_slice_mut(shard.section_mut(self.to)?);
        let at = 4 * self.at + (part.start - self.from.start) as usize;
        let len = (part.end - part.start) as usize;
        let skipped = (part.start - bytes.start) as usize;
        values.get_mut(at..at + len)?.copy_from_slice(piece.data.get(skipped..skipped + len)?);
        Some(())
    }
}
