//! What a saver reports of a shard: its file, and figures of the values in it.

use heddle_protocol::manifest::ShardFile;
use heddle_protocol::table_statistics::TableStatistics;
use heddle_shard::ShardConfig;
use heddle_storage::shard_file::VALUES;

/// A shard whose file is durable.
pub(crate) struct SavedShard {
    pub(crate) file: ShardFile,
    pub(crate) tables: Vec<TableStatistics>,
}

/// Figures of a shard's tables, from the values on their way to the file.
pub(crate) struct ShardStatistics {
    /// Tables in the order of their sections.
    tables: Vec<TableStatistics>,
    /// By section: how many values it has, and the table whose values they are.
    sections: Vec<(usize, Option<usize>)>,
    /// The section of the next value, and how many of it were added.
    section: usize,
    at: usize,
}

impl ShardStatistics {
    pub(crate) fn new(config: &ShardConfig, sparse_rows: &[u32]) -> Self {
        let mut tables = Vec::new();
        let mut sections = Vec::new();
        for section in config.sections(sparse_rows) {
            let mut of = None;
            if section.plane == VALUES {
                of = Some(tables.len());
                let rows = section.rows.end - section.rows.start;
                tables.push(TableStatistics::of_rows(&section.name, rows));
            }
            sections.push((section.values(), of));
        }
        Self { tables, sections, section: 0, at: 0 }
    }

    /// Adds the next piece. A piece belongs to one section.
    pub(crate) fn add(&mut self, piece: &[f32]) {
        while self.sections.get(self.section).is_some_and(|(values, _)| *values == self.at) {
            (self.section, self.at) = (self.section + 1, 0);
        }
        self.at += piece.len();
        if let Some((_, Some(table))) = self.sections.get(self.section)
            && let Some(table) = self.tables.get_mut(*table)
        {
            table.add_values(piece);
        }
    }

    pub(crate) fn finish(self) -> Vec<TableStatistics> {
        self.tables
    }
}
