//! A malformed row as it is quarantined: a line of JSON with the columns that the job uses. Texts have been read as the keys of
//! their features alone, so a category and the items of a list are keys.

use heddle_columns::typed::LeafBlock;
use heddle_protocol::job_spec::columns::Schema;

use super::layout::{CellLeaves, ColumnCells};

/// Values of a row that are written at the most.
const VALUES_MAX: usize = 100_000;

/// The line of a row of a file.
#[derive(Debug)]
pub(super) struct RejectedRow(String);

impl RejectedRow {
    /// `row`: its number.
    pub(super) fn new(row: u64) -> Self {
        Self(format!("{{\"row\":{row}"))
    }

    /// Adds a number, such as the label, if there is such a column.
    pub(super) fn number(self, name: Option<&str>, leaf: Option<&LeafBlock>) -> Self {
        match (name, leaf) {
            (Some(name), Some(leaf)) => self.value(name, &first(numbers(leaf))),
            _ => self,
        }
    }

    /// Adds the columns with features, unless their lists are long. `block`: the leaves, at this row.
    pub(super) fn cells(self, schema: &Schema, cells: &[ColumnCells], block: &[LeafBlock]) -> Self {
        if block.iter().map(LeafBlock::row_len).sum::<usize>() > VALUES_MAX {
            return self;
        }
        cells.iter().fold(self, |line, ColumnCells { place, leaves }| {
            line.value(&schema.columns[*place].name, &json(*leaves, block))
        })
    }

    pub(super) fn end(self) -> Vec<u8> {
        (self.0 + "}\n").into_bytes()
    }

    fn value(self, name: &str, json: &str) -> Self {
        let name = serde_json::Value::from(name);
        Self(format!("{},{name}:{json}", self.0))
    }
}

fn json(leaves: CellLeaves, block: &[LeafBlock]) -> String {
    let pairs = |what: &str, own: Vec<String>, values: usize| {
        format!("{{\"{what}\":{},\"values\":{}}}", list(&own), list(&numbers(&block[values])))
    };
    match leaves {
        CellLeaves::Number(leaf) => first(numbers(&block[leaf])),
        CellLeaves::Key(leaf) => match &keys(&block[leaf])[..] {
            [] => "null".to_owned(),
            [key, ..] => format!("{{\"key\":{key}}}"),
        },
        CellLeaves::Items(leaf) => format!("{{\"keys\":{}}}", list(&keys(&block[leaf]))),
        CellLeaves::Dense(leaf) | CellLeaves::Indices { indices: leaf, values: None } => {
            list(&numbers(&block[leaf]))
        }
        CellLeaves::Indices { indices, values: Some(values) }
        | CellLeaves::Vector { indices, values, .. } => {
            pairs("indices", numbers(&block[indices]), values)
        }
        CellLeaves::Weights { keys: own, values } => pairs("keys", keys(&block[own]), values),
    }
}

/// The numbers or indices of a row. A number that is not finite is a text, since JSON lacks it.
fn numbers(leaf: &LeafBlock) -> Vec<String> {
    let number = |number: &f64| match number {
        finite if finite.is_finite() => finite.to_string(),
        other => format!("\"{other}\""),
    };
    // Negative indices are above i64::MAX.
    let index = |index: &u64| index.cast_signed().to_string();
    leaf.numbers().iter().map(number).chain(leaf.indices().iter().map(index)).collect()
}

/// The keys of a row, as `heddle data sample` shows them.
fn keys(leaf: &LeafBlock) -> Vec<String> {
    leaf.keys().map(|key| format!("\"{key:016x}\"")).collect()
}

fn first(values: Vec<String>) -> String {
    values.into_iter().next().unwrap_or_else(|| "null".to_owned())
}

fn list(values: &[String]) -> String {
    format!("[{}]", values.join(","))
}

#[cfg(test)]
mod tests {
    use heddle_columns::typed::LeafValues;
    use heddle_protocol::job_spec::columns::{ColumnUsage, FeatureColumn};

    use super::*;

    #[test]
    fn line_has_the_values_of_each_column_that_is_used() {
        let numbers =
            |row: &[f64]| LeafBlock::new(LeafValues::Numbers(row.to_vec()), vec![row.len() as u32]);
        let mut block = vec![
            numbers(&[f64::NAN]),
            numbers(&[]),
            LeafBlock::new(LeafValues::Keys(vec![0xabc]), Vec::new()),
            LeafBlock::new(LeafValues::Keys(vec![1, 2]), vec![2]),
            LeafBlock::new(LeafValues::Indices(vec![7, u64::MAX]), vec![2]),
            numbers(&[0.5, f64::INFINITY]),
            numbers(&[1e300]),
        ];
        block.iter_mut().for_each(LeafBlock::next_row);
        let leaves = [
            CellLeaves::Number(1),
            CellLeaves::Key(2),
            CellLeaves::Items(3),
            CellLeaves::Indices { indices: 4, values: None },
            CellLeaves::Indices { indices: 4, values: Some(5) },
            CellLeaves::Dense(6),
            CellLeaves::Weights { keys: 3, values: 5 },
        ];
        let column =
            |place: usize| FeatureColumn { name: format!("{place}\""), usage: ColumnUsage::Ignore };
        let columns = (0..leaves.len()).map(column).collect();
        let schema = Schema { columns, ..Schema::default() };
        let cells = (0..).zip(leaves).map(|(place, leaves)| ColumnCells { place, leaves });
        let row = RejectedRow::new(41).number(Some("y"), Some(&block[0])).number(Some("w"), None);
        let line = row.cells(&schema, &cells.collect::<Vec<_>>(), &block).end();
        let line = String::from_utf8(line).expect("UTF-8");
        let value: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        let expected = serde_json::json!({
            "row": 41, "y": "NaN", "0\"": null, "1\"": {"key": "0000000000000abc"},
            "2\"": {"keys": ["0000000000000001", "0000000000000002"]}, "3\"": [7, -1],
            "4\"": {"indices": [7, -1], "values": [0.5, "inf"]}, "5\"": [1e300],
            "6\"": {"keys": ["0000000000000001", "0000000000000002"], "values": [0.5, "inf"]},
        });
        assert_eq!(value, expected);
        assert!(line.starts_with("{\"row\":41,\"y\":") && line.ends_with("}\n"), "{line}");
        let mut block = [numbers(&vec![1.0; VALUES_MAX + 1])];
        block[0].next_row();
        let cells = [ColumnCells { place: 0, leaves: CellLeaves::Dense(0) }];
        assert_eq!(RejectedRow::new(7).cells(&schema, &cells, &block).end(), b"{\"row\":7}\n");
    }
}
