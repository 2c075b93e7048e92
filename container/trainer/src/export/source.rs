//! The values of a table from a checkpoint's shard files, in the order of its rows.

use heddle_protocol::spec::position::{POSITIONS, key_of_position};
use heddle_protocol::spec::{TableSpec, shard_rows};
use heddle_storage::shard_file::{ShardReader, ShardRows};

use super::error::ExportError;
use super::model::Model;

/// Section of a table's parameters; others hold optimizer state.
const VALUES: &str = "values";

/// A reader of a table's values, shard after shard.
pub(super) struct TableStream<'a> {
    model: &'a Model<'a>,
    table: TableSpec,
    plane: &'static str,
    shard: usize,
    reader: Option<(ShardReader, Option<usize>)>,
}

/// All values of a table, row-major.
pub(super) async fn whole(model: &Model<'_>, table: &TableSpec) -> Result<Vec<f32>, ExportError> {
    plane(model, table, VALUES).await
}

/// All of a table's values, or of one array of its optimizer's state, row-major.
pub(super) async fn plane(
    model: &Model<'_>,
    table: &TableSpec,
    plane: &'static str,
) -> Result<Vec<f32>, ExportError> {
    let mut values = Vec::new();
    let mut stream = TableStream { plane, ..TableStream::new(model, table) };
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
    let checkpoint = model.checkpoint;
    let cut = checkpoint.manifest.identity();
    for file in &checkpoint.manifest.shards {
        let mut reader = ShardReader::open(model.from, &checkpoint.dir, file, &cut).await?;
        let wrong = |found: &str| ExportError::Rows {
            table: table.name.clone(),
            expected: 0,
            found: found.to_owned(),
        };
        let header = reader.header();
        let found = header.tables.iter().find(|found| found.id == table.id);
        let found = found.ok_or_else(|| wrong("no such table"))?;
        if !matches!(found.rows, ShardRows::Sparse { .. }) || found.cols != table.cols {
            return Err(wrong("another table"));
        }
        let section = |name: &str| {
            header.sections.iter().position(|s| s.table == Some(table.id) && s.name == name)
        };
        let (of_values, of_keys) = (section(VALUES), section(POSITIONS));
        if of_values.is_none() || of_keys.is_none() {
            return Err(wrong("no values or positions"));
        }
        while let Some(piece) = reader.next().await? {
            model.bytes.add(piece.data.len() as u64);
            if Some(piece.section) == of_values {
                let bytes = piece.data.as_chunks::<4>().0;
                values.extend(bytes.iter().map(|bytes| f32::from_le_bytes(*bytes)));
            } else if Some(piece.section) == of_keys {
                let bytes = piece.data.as_chunks::<8>().0;
                keys.extend(bytes.iter().map(|bytes| key_of_position(u64::from_le_bytes(*bytes))));
            }
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

impl<'a> TableStream<'a> {
    /// Starts to read a table.
    pub(super) fn new(model: &'a Model<'a>, table: &TableSpec) -> Self {
        Self { model, table: table.clone(), plane: VALUES, shard: 0, reader: None }
    }

    /// The next values, row-major; `None` after the last.
    ///
    /// # Errors
    /// The checkpoint is damaged or cannot be read; a file has other rows than expected.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<f32>>, ExportError> {
        loop {
            let Some((mut reader, section)) = self.reader.take() else {
                let shards = &self.model.checkpoint.manifest.shards;
                let Some(file) = shards.get(self.shard) else {
                    return Ok(None);
                };
                let rows = shard_rows(self.table.rows, file.shard, shards.len() as u32);
                // A file without rows of the table is not opened.
                if rows.is_empty() {
                    self.shard += 1;
                    continue;
                }
                let (from, checkpoint) = (self.model.from, self.model.checkpoint);
                let cut = checkpoint.manifest.identity();
                let reader = ShardReader::open(from, &checkpoint.dir, file, &cut).await?;
                let section = self.check(&reader, rows)?;
                self.reader = Some((reader, section));
                continue;
            };
            match reader.next().await? {
                None => self.shard += 1,
                Some(piece) => {
                    self.model.bytes.add(piece.data.len() as u64);
                    let wanted = Some(piece.section) == section;
                    self.reader = Some((reader, section));
                    if wanted {
                        // Pieces are whole values: a multiple of four bytes.
                        let values = piece.data.chunks_exact(4);
                        return Ok(Some(
                            values
                                .map(|bytes| {
                                    f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
                                })
                                .collect(),
                        ));
                    }
                }
            }
        }
    }

    /// Finds the section of the table's values; checks its rows.
    fn check(
        &self,
        reader: &ShardReader,
        rows: std::ops::Range<u64>,
    ) -> Result<Option<usize>, ExportError> {
        let header = reader.header();
        let wrong = |found: String| ExportError::Rows {
            table: self.table.name.clone(),
            expected: rows.start,
            found,
        };
        let table = header.tables.iter().find(|table| table.id == self.table.id);
        let table = table.ok_or_else(|| wrong("no such table".to_owned()))?;
        let found = match table.rows {
            ShardRows::Dense { first, count } => first..first.saturating_add(count),
            ShardRows::Sparse { .. } => return Err(wrong("a sparse table".to_owned())),
        };
        if found != rows || table.cols != self.table.cols {
            return Err(wrong(format!("{found:?} of {} columns", table.cols)));
        }
        let of_table = |section: &heddle_storage::shard_file::Section| {
            section.table == Some(self.table.id) && section.name == self.plane
        };
        let section = header.sections.iter().position(of_table);
        section.map(Some).ok_or_else(|| wrong("no values".to_owned()))
    }
}
