//! The values of a table from a checkpoint's shard files, in the order of its rows.

use bytes::Bytes;
use heddle_protocol::job_spec::position::{POSITIONS, key_of_position};
use heddle_protocol::job_spec::{TableKind, TableSpec, shard_rows};
use heddle_protocol::manifest::ShardFile;
use heddle_storage::shard_file::{ShardReader, VALUES};

use super::error::ExportError;
use super::model::Model;

/// A reader of a table's values, shard after shard, or of other planes.
pub(super) struct TableStream<'a> {
    model: &'a Model<'a>,
    table: &'a TableSpec,
    planes: &'a [&'a str],
    /// Files that are still to be opened.
    files: std::slice::Iter<'a, ShardFile>,
    /// The open file and its sections of the planes.
    reader: Option<(ShardReader, Vec<usize>)>,
}

/// All values of a table, row-major.
pub(super) async fn whole(model: &Model<'_>, table: &TableSpec) -> Result<Vec<f32>, ExportError> {
    plane(model, table, VALUES).await
}

/// All of a table's values, or of one array of its optimizer's state, row-major.
pub(super) async fn plane(
    model: &Model<'_>,
    table: &TableSpec,
    plane: &str,
) -> Result<Vec<f32>, ExportError> {
    let (mut values, planes) = (Vec::new(), [plane]);
    let mut stream = TableStream::new(model, table, &planes);
    while let Some(piece) = stream.next().await? {
        values.extend(piece);
    }
    Ok(values)
}

/// The rows of a sparse table, by key, ascending.
pub(super) struct SparseTable {
    pub(super) keys: Vec<u64>,
    /// `[keys × cols]`
    pub(super) values: Vec<f32>,
}

/// Reads a sparse table. Rows are in the order of the shards and, within a shard, of their creation, so that all of them
/// must be in memory before they can be written by key.
pub(super) async fn sparse(
    model: &Model<'_>,
    table: &TableSpec,
) -> Result<SparseTable, ExportError> {
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    let mut stream = TableStream::new(model, table, &[VALUES, POSITIONS]);
    while let Some((plane, piece)) = stream.piece().await? {
        if plane == VALUES {
            values.extend(floats(&piece));
        } else {
            let positions = piece.as_chunks::<8>().0.iter();
            keys.extend(positions.map(|bytes| key_of_position(u64::from_le_bytes(*bytes))));
        }
    }
    let cols = table.cols as usize;
    let mut order: Vec<(u64, u32)> = keys.iter().copied().zip(0..).collect();
    order.sort_unstable();
    let sorted = order.iter().flat_map(|(_, row)| {
        let at = *row as usize * cols;
        &values[at..at + cols]
    });
    let values = sorted.copied().collect();
    Ok(SparseTable { keys: order.into_iter().map(|(key, _)| key).collect(), values })
}

/// Little-endian values; pieces are whole values.
fn floats(piece: &Bytes) -> impl Iterator<Item = f32> {
    piece.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes))
}

impl<'a> TableStream<'a> {
    /// Starts to read planes of a table.
    pub(super) fn new(model: &'a Model<'a>, table: &'a TableSpec, planes: &'a [&'a str]) -> Self {
        let files = model.checkpoint.manifest.shards.iter();
        Self { model, table, planes, files, reader: None }
    }

    /// The next values, row-major; `None` after the last.
    ///
    /// # Errors
    /// The checkpoint is damaged or cannot be read; a file has another table than expected.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<f32>>, ExportError> {
        Ok(self.piece().await?.map(|(_, piece)| floats(&piece).collect()))
    }

    /// The next bytes of a plane, with its name.
    async fn piece(&mut self) -> Result<Option<(&'a str, Bytes)>, ExportError> {
        loop {
            let Some((reader, sections)) = &mut self.reader else {
                let Some(file) = self.files.next() else { return Ok(None) };
                self.open(file).await?;
                continue;
            };
            let Some(piece) = reader.next().await? else {
                self.reader = None;
                continue;
            };
            self.model.bytes.add(piece.data.len() as u64);
            if let Some(plane) = sections.iter().position(|section| *section == piece.section) {
                return Ok(Some((self.planes[plane], piece.data)));
            }
        }
    }

    /// Opens a file that has rows of the table.
    async fn open(&mut self, file: &ShardFile) -> Result<(), ExportError> {
        let (checkpoint, table) = (self.model.checkpoint, self.table);
        let cut = checkpoint.manifest.identity();
        let rows = shard_rows(table.rows, file.shard, cut.shards);
        if table.kind == TableKind::Dense && rows.is_empty() {
            return Ok(());
        }
        let reader = ShardReader::open(self.model.from, &checkpoint.dir, file, &cut).await?;
        let header = reader.header();
        let sections = header.table_of(table).and_then(|found| {
            self.planes.iter().map(|plane| header.section_of(found, plane)).collect()
        });
        let wrong = |what| ExportError::Table { file: reader.file().to_owned(), what };
        let sections = sections.map_err(wrong)?;
        self.reader = Some((reader, sections));
        Ok(())
    }
}
