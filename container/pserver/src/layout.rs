//! The layout of a shard's file: the dedup state first, then the sections of its tables.

use heddle_protocol::ids::{CutId, Epoch, PhaseNo, RunId, Step};
use heddle_protocol::spec::position::POSITIONS;
use heddle_shard::{ShardConfig, SnapshotHead};
use heddle_storage::shard_file::{Section, ShardHeader, ShardRows, Table, Values};

/// Name of the section with the dedup state, as version 1 of the format has it.
pub(crate) const DEDUP_STATE: &str = "once-only";

/// The moment of a snapshot, as the file has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) run: RunId,
    pub(crate) cut: CutId,
    pub(crate) epoch: Epoch,
    pub(crate) phase: PhaseNo,
    pub(crate) step: Step,
}

/// The header of the file of a shard.
pub(crate) fn header(config: &ShardConfig, moment: Moment, head: &SnapshotHead) -> ShardHeader {
    header_of(config, moment, head.dedup_state.len() as u64, &head.sparse_rows)
}

fn header_of(
    config: &ShardConfig,
    moment: Moment,
    dedup_bytes: u64,
    sparse_rows: &[u32],
) -> ShardHeader {
    let sections = config.sections(sparse_rows);
    let mut tables: Vec<Table> = Vec::new();
    let mut listed = vec![Section {
        table: None,
        name: DEDUP_STATE.to_owned(),
        values: Values::Bytes,
        count: dedup_bytes,
    }];
    for section in &sections {
        if tables.last().is_none_or(|table| table.id != section.table) {
            let optimizer =
                config.tables.get(usize::from(section.table.0)).map(|table| &table.optimizer);
            tables.push(Table {
                id: section.table,
                name: section.name.clone(),
                cols: section.cols,
                rows: match (section.is_sparse, section.rows.end - section.rows.start) {
                    (true, count) => ShardRows::Sparse { count },
                    (false, count) => ShardRows::Dense { first: section.rows.start, count },
                },
                optimizer: optimizer.map_or("", |optimizer| optimizer.kind().name).to_owned(),
            });
        }
        listed.push(Section {
            table: Some(section.table),
            name: section.plane.to_owned(),
            values: if section.plane == POSITIONS { Values::U64 } else { Values::F32 },
            count: section.count(),
        });
    }
    ShardHeader {
        run: moment.run,
        shard: config.shard,
        shards: config.shards,
        cut: moment.cut,
        epoch: moment.epoch,
        phase: moment.phase,
        step: moment.step,
        tables,
        sections: listed,
    }
}

/// Optimizer state that files of older programs do not have, by optimizer: it begins as zeros.
pub(crate) const ADDED_STATE: (&str, &str) = ("add", "low");

/// Where the content of a file belongs.
pub(crate) struct FilePlaces {
    /// For each section of the file after the dedup state: the section of the shard.
    pub(crate) sections: Vec<usize>,
    /// Rows of each sparse table, by table id.
    pub(crate) sparse_rows: Vec<u32>,
}

/// Whether a file is of this shard: the same slices of the same tables with the same state.
///
/// # Errors
/// The first difference.
pub(crate) fn check(config: &ShardConfig, found: &ShardHeader) -> Result<FilePlaces, String> {
    let moment = Moment {
        run: found.run,
        cut: found.cut,
        epoch: found.epoch,
        phase: found.phase,
        step: found.step,
    };
    let state = found
        .sections
        .first()
        .filter(|section| section.name == DEDUP_STATE && section.table.is_none());
    let Some(state) = state else {
        return Err(format!("the first section must be '{DEDUP_STATE}'"));
    };
    let sparse_rows = sparse_rows(config, found)?;
    let expected = header_of(config, moment, state.count, &sparse_rows);
    if (expected.shard, expected.shards) != (found.shard, found.shards) {
        return Err(format!(
            "the shard must be {} of {} (got {} of {})",
            expected.shard, expected.shards, found.shard, found.shards
        ));
    }
    if expected.tables != found.tables {
        let differs = expected.tables.iter().zip(&found.tables).find(|(a, b)| a != b);
        return Err(match differs {
            Some((expected, found)) => format!("a table must be {expected:?} (got {found:?})"),
            None => format!(
                "the number of tables must be {} (got {})",
                expected.tables.len(),
                found.tables.len()
            ),
        });
    }
    let added = |section: &Section| {
        let optimizer = |table: &Table| table.optimizer == ADDED_STATE.0;
        let of = |id| expected.tables.iter().find(|table| table.id == id).is_some_and(optimizer);
        section.name == ADDED_STATE.1 && section.table.is_some_and(of)
    };
    let mut places = Vec::new();
    let mut in_file = found.sections.iter().skip(1).peekable();
    for (place, section) in expected.sections.iter().skip(1).enumerate() {
        if in_file.next_if_eq(&section).is_some() {
            places.push(place);
        } else if !added(section) {
            return Err("the sections must be those of the job's tables".to_owned());
        }
    }
    match in_file.next() {
        None => Ok(FilePlaces { sections: places, sparse_rows }),
        Some(_) => Err("the sections must be those of the job's tables".to_owned()),
    }
}

/// The rows of each sparse table in a file; at most as many as the shard has room for.
fn sparse_rows(config: &ShardConfig, found: &ShardHeader) -> Result<Vec<u32>, String> {
    let mut rows = vec![0; config.tables.len()];
    for table in &found.tables {
        let (ShardRows::Sparse { count }, Some(rows)) =
            (table.rows, rows.get_mut(usize::from(table.id.0)))
        else {
            continue;
        };
        let room = config.sparse.rows_max;
        *rows = u32::try_from(count).ok().filter(|count| *count <= room).ok_or_else(|| {
            format!(
                "table '{}' has {count} rows, there is room for {room} (pservers.memory)",
                table.name
            )
        })?;
    }
    Ok(rows)
}
