//! The layout of a shard's file: the dedup state first, then the sections of its tables.

use heddle_protocol::ids::{CutId, Epoch, PhaseNo, RunId, Step};
use heddle_shard::ShardConfig;
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
pub(crate) fn header(config: &ShardConfig, moment: Moment, dedup_bytes: u64) -> ShardHeader {
    let sections = config.sections();
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
                rows: ShardRows::Dense {
                    first: section.rows.start,
                    count: section.rows.end - section.rows.start,
                },
                optimizer: optimizer.map_or("", |optimizer| optimizer.kind().name).to_owned(),
            });
        }
        listed.push(Section {
            table: Some(section.table),
            name: section.plane.to_owned(),
            values: Values::F32,
            count: section.values() as u64,
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

/// Whether a file is of this shard: the same slices of the same tables with the same state. Returns for each section of the
/// file after the dedup state which section of the shard it is.
///
/// # Errors
/// The first difference.
pub(crate) fn check(config: &ShardConfig, found: &ShardHeader) -> Result<Vec<usize>, String> {
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
    let expected = header(config, moment, state.count);
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
        None => Ok(places),
        Some(_) => Err("the sections must be those of the job's tables".to_owned()),
    }
}
