//! What a shard's file looks like: the once-only memory first, then the sections of its tables.

use heddle_protocol::ids::{CutId, Epoch, PhaseNo, RunId, Step};
use heddle_shard::ShardConfig;
use heddle_storage::shard_file::{Header, Rows, Section, Table, Values};

use crate::job::optimizer_name;

/// Name of the section that holds the once-only memory.
const ONCE_ONLY: &str = "once-only";

/// What the file says of the moment it shows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) run: RunId,
    pub(crate) cut: CutId,
    pub(crate) epoch: Epoch,
    pub(crate) phase: PhaseNo,
    pub(crate) step: Step,
}

/// The header of the file of a shard.
pub(crate) fn header(config: &ShardConfig, moment: Moment, memory_bytes: u64) -> Header {
    let sections = config.sections();
    let mut tables: Vec<Table> = Vec::new();
    let mut listed = vec![Section {
        table: None,
        name: ONCE_ONLY.to_owned(),
        values: Values::Bytes,
        count: memory_bytes,
    }];
    for section in &sections {
        if tables.last().is_none_or(|table| table.id != section.table) {
            let optimizer =
                config.tables.get(usize::from(section.table.0)).map(|table| &table.optimizer);
            tables.push(Table {
                id: section.table,
                name: section.name.clone(),
                cols: section.cols,
                rows: Rows::Dense {
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
    Header {
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

/// Whether a file's content is this shard's: the same slices of the same tables with the same state.
/// Tells what differs.
pub(crate) fn check(config: &ShardConfig, found: &Header) -> Result<(), String> {
    let moment = Moment {
        run: found.run,
        cut: found.cut,
        epoch: found.epoch,
        phase: found.phase,
        step: found.step,
    };
    let memory = found
        .sections
        .first()
        .filter(|section| section.name == ONCE_ONLY && section.table.is_none());
    let Some(memory) = memory else {
        return Err(format!("its first section is not '{ONCE_ONLY}'"));
    };
    let expected = header(config, moment, memory.count);
    if (expected.shard, expected.shards) != (found.shard, found.shards) {
        return Err(format!(
            "it is shard {} of {}, expected {} of {}",
            found.shard, found.shards, expected.shard, expected.shards
        ));
    }
    if expected.tables != found.tables {
        let differs = expected.tables.iter().zip(&found.tables).find(|(a, b)| a != b);
        return Err(match differs {
            Some((expected, found)) => format!("its table is {found:?}, expected {expected:?}"),
            None => format!(
                "it holds {} tables, expected {}",
                found.tables.len(),
                expected.tables.len()
            ),
        });
    }
    if expected.sections != found.sections {
        return Err("its sections are not those of the job's tables".to_owned());
    }
    Ok(())
}
