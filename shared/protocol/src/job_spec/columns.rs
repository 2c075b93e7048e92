//! Tables with columns as input: what becomes of each column (`[[data.columns]]`, `[[data.cross]]`), as the job file states
//! it and as it is for the columns of the files.

use serde::{Deserialize, Serialize};

use super::table::is_default;

/// Whether the first line of a file of text has the names of its columns (`data.header`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Header {
    /// The first line of the first file decides.
    #[default]
    Auto,
    /// It does.
    First,
    /// It does not: columns are `_c0`, `_c1` and so on.
    None,
}

/// `data.null` where the job file does not state it.
#[must_use]
pub fn default_null() -> Vec<String> {
    ["", "NA", "\\N"].map(str::to_owned).into()
}

/// Whether it is the default.
pub(super) fn is_default_null(null: &Vec<String>) -> bool {
    *null == default_null()
}

/// One `[[data.columns]]`: what becomes of the columns with these names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ColumnRule {
    /// Names, or globs of names.
    pub names: Vec<String>,
    /// What becomes of them.
    #[serde(flatten)]
    pub usage: ColumnUsage,
}

/// What becomes of a column: `as` of the job file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "as", rename_all = "kebab-case")]
pub enum ColumnUsage {
    /// One feature, whose value is the number.
    Number(NumberUsage),
    /// A feature for each text, with the value 1.
    Category {
        /// Of a record without a value.
        #[serde(default, skip_serializing_if = "is_default")]
        missing: MissingCategory,
    },
    /// A feature for each item of a list, with the value 1.
    List {
        /// Between the items, where the files hold text.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        separator: Option<String>,
    },
    /// Indices of features as they are, with their values.
    Vector {
        /// The column of the values, unless they are in the column itself, as Spark writes them, or all are 1.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        values: Option<String>,
    },
    /// It is left out.
    Ignore,
}

/// How a number becomes a feature.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct NumberUsage {
    /// Of a record without a value.
    #[serde(default, skip_serializing_if = "is_default")]
    pub missing: MissingNumber,
    /// How it is scaled, after the transformation.
    #[serde(default, skip_serializing_if = "is_default")]
    pub scale: ColumnScale,
    /// What is computed first.
    #[serde(default, skip_serializing_if = "is_default")]
    pub transform: Transform,
}

/// What stands for a number that is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MissingNumber {
    /// The mean of a scaled column, a bucket of its own with `buckets`, and else 0.
    #[default]
    Auto,
    /// 0.
    Zero,
    /// The mean of the column, which is measured.
    Mean,
    /// A feature of its own, with the value 1.
    Indicator,
    /// The record is malformed.
    Bad,
}

/// How numbers are scaled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ColumnScale {
    /// To mean 0 and deviation 1, both measured before training.
    #[default]
    Standard,
    /// Not.
    None,
}

/// What is computed of a number.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transform {
    /// The number as it is.
    #[default]
    None,
    /// ln(1 + x), of numbers above −1.
    Log1p,
    /// The number of bounds that are at most x, as a category.
    Buckets(Vec<f64>),
}

/// What stands for a category that is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MissingCategory {
    /// The record lacks a feature of the column.
    #[default]
    None,
    /// A feature of its own, the empty text.
    Own,
}

/// One `[[data.cross]]`: a feature for each pair of features of two columns; its value is their product.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Cross {
    /// The names.
    pub columns: [String; 2],
}

/// The columns that a job reads of its files, and what becomes of them. Part of the job's identity and of a model's
/// metadata.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Schema {
    /// The column of the label.
    pub label: String,
    /// The column of the weight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<String>,
    /// Columns that name the record and are not features.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub id: Vec<String>,
    /// Columns with features, by name. Records have their features in this order.
    pub columns: Vec<FeatureColumn>,
    /// Crosses, as places in `columns`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cross: Vec<[usize; 2]>,
    /// Texts that stand for a missing value.
    pub null: Vec<String>,
}

/// A column with features.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct FeatureColumn {
    /// Its name.
    pub name: String,
    /// What becomes of it; not [`Ignore`](ColumnUsage::Ignore).
    #[serde(flatten)]
    pub usage: ColumnUsage,
}

impl NumberUsage {
    /// Whether the mean of the column is needed.
    #[must_use]
    pub fn is_measured(&self) -> bool {
        let is_number = !matches!(self.transform, Transform::Buckets(_));
        is_number && (self.scale == ColumnScale::Standard || self.missing == MissingNumber::Mean)
    }

    /// What stands for a missing number; not [`Auto`](MissingNumber::Auto).
    #[must_use]
    pub fn missing(&self) -> MissingNumber {
        match (self.missing, &self.transform) {
            (MissingNumber::Auto, Transform::Buckets(_)) => MissingNumber::Indicator,
            (MissingNumber::Auto, _) if self.is_measured() => MissingNumber::Mean,
            (MissingNumber::Auto, _) => MissingNumber::Zero,
            (stated, _) => stated,
        }
    }
}

impl Schema {
    /// The places of the columns whose mean and deviation are measured.
    pub fn measured(&self) -> impl Iterator<Item = usize> {
        let is_measured = |usage: &ColumnUsage| match usage {
            ColumnUsage::Number(number) => number.is_measured(),
            _ => false,
        };
        let columns = self.columns.iter().enumerate();
        columns.filter(move |(_, column)| is_measured(&column.usage)).map(|(place, _)| place)
    }
}
