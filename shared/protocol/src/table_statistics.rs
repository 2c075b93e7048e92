//! Figures of a table's values at a cut: how large the model is, how sparse, and how its norm changes from pass to pass.
//!
//! Savers compute them from the values that they write, so that data threads do nothing for them.

use serde::{Deserialize, Serialize};

/// Figures of the values of one table, or of the part of it that a shard has. Optimizer state has no part in them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TableStatistics {
    /// The table.
    pub name: String,
    /// Number of rows.
    pub rows: u64,
    /// Number of values that are not 0.
    pub nonzero: u64,
    /// Euclidean norm of all values; `None` where it is not finite, for which JSON has no number.
    pub norm: Option<f64>,
}

impl TableStatistics {
    /// A part of a table of this number of rows, before its values are added.
    #[must_use]
    pub fn of_rows(name: &str, rows: u64) -> Self {
        Self { name: name.to_owned(), rows, nonzero: 0, norm: Some(0.0) }
    }

    /// Adds values of its rows.
    #[inline]
    pub fn add_values(&mut self, values: &[f32]) {
        self.nonzero += values.iter().filter(|value| **value != 0.0).count() as u64;
        // Eight sums that do not wait for each other, always added up in the same order.
        let mut sums = [0.0; 8];
        let (chunks, rest) = values.as_chunks::<8>();
        for chunk in chunks {
            for (sum, &value) in sums.iter_mut().zip(chunk) {
                *sum += f64::from(value) * f64::from(value);
            }
        }
        let rest = rest.iter().map(|&value| f64::from(value) * f64::from(value));
        let squares: f64 = sums.into_iter().chain(rest).sum();
        self.norm = joined(self.norm, Some(squares.sqrt()));
    }

    /// Adds another part of the same table.
    fn add_part(&mut self, part: &Self) {
        self.rows = self.rows.saturating_add(part.rows);
        self.nonzero = self.nonzero.saturating_add(part.nonzero);
        self.norm = joined(self.norm, part.norm);
    }

    /// The figures of whole tables from those of all shards, in the order of the tables.
    pub fn of_tables<'a>(shards: impl IntoIterator<Item = &'a [Self]>) -> Vec<Self> {
        let mut tables: Vec<Self> = Vec::new();
        for part in shards.into_iter().flatten() {
            match tables.iter_mut().find(|table| table.name == part.name) {
                Some(table) => table.add_part(part),
                None => tables.push(part.clone()),
            }
        }
        tables
    }
}

/// The norm of two parts together.
fn joined(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    let (a, b) = (a?, b?);
    Some(a.hypot(b)).filter(|norm| norm.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_shards_add_up_to_the_table() {
        let part = |name: &str, values: &[f32]| {
            let mut part = TableStatistics::of_rows(name, values.len() as u64);
            values.chunks(2).for_each(|piece| part.add_values(piece));
            part
        };
        let shards = [
            vec![part("w", &[3.0, 0.0, -0.0]), part("b", &[])],
            vec![part("w", &[0.0, -4.0]), part("b", &[2.0])],
        ];
        let tables = TableStatistics::of_tables(shards.iter().map(Vec::as_slice));
        assert_eq!(tables, [part("w", &[3.0, 0.0, 0.0, 0.0, -4.0]), part("b", &[2.0])]);
        assert_eq!((tables[0].rows, tables[0].nonzero, tables[0].norm), (5, 2, Some(5.0)));
    }

    #[test]
    fn norm_that_is_not_finite_survives_json() {
        for value in [f32::INFINITY, f32::NAN] {
            let mut table = TableStatistics::of_rows("w", 2);
            table.add_values(&[1.0, value]);
            assert_eq!((table.nonzero, table.norm), (2, None));
            let json = serde_json::to_string(&table).expect("JSON");
            assert_eq!(serde_json::from_str::<TableStatistics>(&json).expect("read"), table);
        }
    }
}
