//! The columns of a job within a file.

use heddle_columns::typed::{
    ColumnShape, LeafNeed, NeededLeaf, TextKeys, TypedColumn, TypedColumns,
};
use heddle_columns::{CellNeed, FileColumn, NullTexts, check_kind, key, nearest_columns};
use heddle_protocol::job_spec::columns::ColumnUsage;

use crate::record_format::Labels;
use crate::table_format::TableFormat;

/// The leaves of a file that are read, and what is made of them.
#[derive(Debug)]
pub(crate) struct FileLayout {
    pub(crate) needed: Vec<NeededLeaf>,
    /// The place of the label among the needed leaves.
    pub(super) label: Option<usize>,
    pub(super) weight: Option<usize>,
    /// Of the columns that are read, in the order of the schema.
    pub(super) cells: Vec<ColumnCells>,
}

/// Where the cells of a column are.
#[derive(Clone, Copy, Debug)]
pub(super) struct ColumnCells {
    /// The column's place in the schema.
    pub(super) place: usize,
    pub(super) leaves: CellLeaves,
}

/// The leaves of a column, by their places among those that are needed.
#[derive(Clone, Copy, Debug)]
pub(super) enum CellLeaves {
    Number(usize),
    Key(usize),
    Items(usize),
    /// Keys with values.
    Weights {
        keys: usize,
        values: usize,
    },
    /// Indices with the value 1, or with the values of another column.
    Indices {
        indices: usize,
        values: Option<usize>,
    },
    /// The value of each index from 0 on.
    Dense(usize),
    /// Spark's.
    Vector {
        kind: usize,
        indices: usize,
        values: usize,
    },
}

impl FileLayout {
    /// # Errors
    /// The file lacks a column, or its type does not fit.
    pub(crate) fn find(
        table: &TableFormat,
        file: &TypedColumns,
        labels: Labels,
    ) -> Result<Self, String> {
        let mut layout = Self { needed: Vec::new(), label: None, weight: None, cells: Vec::new() };
        let schema = &table.schema;
        if let Some(label) = labels.column(schema, |name| file.find(name).is_some()) {
            layout.label = Some(layout.number(file, label)?);
        }
        if let Some(weight) = labels.weight_column(schema) {
            layout.weight = Some(layout.number(file, weight)?);
        }
        for (place, column) in schema.columns.iter().enumerate() {
            let need = table.encoder.need(place);
            if need == CellNeed::Skipped {
                continue;
            }
            let found = expect(file, &column.name)?;
            let own = FileColumn { name: found.name.clone(), kind: found.kind };
            check_kind(&own, &column.usage).map_err(|error| error.to_string())?;
            let null = || NullTexts::new(&schema.null);
            let keys = || LeafNeed::Key(TextKeys { seed: key::seed(&column.name), null: null() });
            let leaves = match (need, found.shape) {
                (CellNeed::Number, ColumnShape::Value(leaf)) => {
                    CellLeaves::Number(layout.add(leaf, LeafNeed::Number))
                }
                (CellNeed::Key, ColumnShape::Value(leaf)) => {
                    CellLeaves::Key(layout.add(leaf, keys()))
                }
                (CellNeed::Items, ColumnShape::List(leaf)) => {
                    CellLeaves::Items(layout.add(leaf, keys()))
                }
                (CellNeed::Items, ColumnShape::Map(leaf)) => {
                    // Of each number there is a key.
                    let all = TextKeys { null: NullTexts::new(&[]), seed: key::seed(&column.name) };
                    let keys = layout.add(leaf, LeafNeed::Key(all));
                    CellLeaves::Weights { keys, values: layout.add(leaf, LeafNeed::Number) }
                }
                (CellNeed::Entries, shape) => {
                    let values = match &column.usage {
                        ColumnUsage::Vector { values } => values.as_deref(),
                        _ => None,
                    };
                    layout.vector(file, found, shape, values)?
                }
                _ => return Err(unfit(found, "what its rule states")),
            };
            layout.cells.push(ColumnCells { place, leaves });
        }
        Ok(layout)
    }

    /// The leaves of a vector.
    fn vector(
        &mut self,
        file: &TypedColumns,
        column: &TypedColumn,
        shape: ColumnShape,
        values: Option<&str>,
    ) -> Result<CellLeaves, String> {
        match shape {
            ColumnShape::SparkVector { kind, indices, values } => Ok(CellLeaves::Vector {
                kind: self.add(kind, LeafNeed::Number),
                indices: self.add(indices, LeafNeed::Index),
                values: self.add(values, LeafNeed::Number),
            }),
            ColumnShape::List(leaf) if file.is_whole_number(leaf) => {
                let indices = self.add(leaf, LeafNeed::Index);
                let values = values.map(|name| {
                    let found = expect(file, name)?;
                    match found.shape {
                        ColumnShape::List(leaf) if file.is_number(leaf) => {
                            Ok(self.add(leaf, LeafNeed::Number))
                        }
                        _ => Err(unfit(found, "a list of numbers")),
                    }
                });
                Ok(CellLeaves::Indices { indices, values: values.transpose()? })
            }
            ColumnShape::List(leaf) if values.is_none() => {
                Ok(CellLeaves::Dense(self.add(leaf, LeafNeed::Number)))
            }
            _ => Err(unfit(column, "a list of indices")),
        }
    }

    /// A column of numbers.
    fn number(&mut self, file: &TypedColumns, name: &str) -> Result<usize, String> {
        let column = expect(file, name)?;
        match column.shape {
            ColumnShape::Value(leaf) if file.is_number(leaf) => {
                Ok(self.add(leaf, LeafNeed::Number))
            }
            _ => Err(unfit(column, "a number")),
        }
    }

    fn add(&mut self, leaf: usize, need: LeafNeed) -> usize {
        self.needed.push(NeededLeaf { leaf, need });
        self.needed.len() - 1
    }
}

fn unfit(column: &TypedColumn, expected: &str) -> String {
    let (name, found) = (&column.name, column.kind.name());
    format!("the column {name:?} is {found}, which cannot be read as {expected}")
}

fn expect<'f>(file: &'f TypedColumns, name: &str) -> Result<&'f TypedColumn, String> {
    file.find(name).ok_or_else(|| {
        let nearest = nearest_columns(name, file.columns.iter().map(|column| column.name.as_str()));
        format!("the file has no column {name:?}; {nearest}")
    })
}
