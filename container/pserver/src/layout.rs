//! The layout of a shard's file: the dedup state first, then the sections of its tables.

use heddle_protocol::ids::{CutId, Epoch, PhaseNo, RunId, Step};
use heddle_protocol::spec::Optimizer;
use heddle_shard::ShardConfig;
use heddle_storage::shard_file::{Section, ShardHeader, ShardRows, Table, Values};

/// Name of the section with the dedup state, as version 1 of the format has it.
const DEDUP_STATE: &str = "once-only";

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
                optimizer: optimizer.map_or("", optimizer_name).to_owned(),
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

/// Whether a file is of this shard: the same slices of the same tables with the same state.
///
/// # Errors
/// The first difference.
pub(crate) fn check(config: &ShardConfig, found: &ShardHeader) -> Result<(), String> {
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
    if expected.sections != found.sections {
        return Err("the sections must be those of the job's tables".to_owned());
    }
    Ok(())
}

/// Name of the optimizer in the job file.
fn optimizer_name(optimizer: &Optimizer) -> &'static str {
    match optimizer {
        Optimizer::Sgd { .. } => "sgd",
        Optimizer::Ftrl { .. } => "ftrl",
        Optimizer::Add => "add",
    }
}
