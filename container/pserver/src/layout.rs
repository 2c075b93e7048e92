//! The layout of a shard's file: the dedup state first, then the sections of its tables.

use heddle_protocol::ids::{CutId, Epoch, PhaseNo, RunId, Step};
use heddle_protocol::job_spec::position::POSITIONS;
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
    let sections = config.sections(&head.sparse_rows);
    let mut tables: Vec<Table> = Vec::new();
    let mut listed = vec![Section {
        table: None,
        name: DEDUP_STATE.to_owned(),
        values: Values::Bytes,
        count: head.dedup_state.len() as u64,
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
