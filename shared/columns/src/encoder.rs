//! Cells of a record as features.

use heddle_protocol::job_spec::columns::{
    ColumnScale, ColumnUsage, MissingCategory, MissingNumber, NumberUsage, Schema, Transform,
};
use serde::{Deserialize, Serialize};

use crate::cell::{Cell, CellNeed};
use crate::cell_text::{NullTexts, items, number_in, plain_number};
use crate::key;

/// Takes the features of a record, in their order.
pub trait FeatureSink {
    /// A feature with its value, which is finite.
    fn push(&mut self, key: u64, value: f32);
}

impl FeatureSink for Vec<(u64, f32)> {
    fn push(&mut self, key: u64, value: f32) {
        self.push((key, value));
    }
}

/// Why a cell cannot be read: its column, what was found and what was expected. Short, since each cell may return one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CellError(Box<str>);

/// What was measured of a column of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ColumnScales {
    /// Their mean, after the transformation.
    pub mean: f64,
    /// One over their deviation; 1 if they do not vary.
    pub inverse: f64,
}

impl ColumnScales {
    /// Numbers stay as they are.
    const UNSCALED: Self = Self { mean: 0.0, inverse: 1.0 };
}

/// Turns cells into features. A record's columns come in the order of the schema, each once; [`end_record`](Self::end_record)
/// adds the crosses.
#[derive(Clone, Debug)]
pub struct Encoder {
    keys_are_indices: bool,
    /// Indices of a vector without other columns are below it.
    index_bound: u64,
    columns: Vec<ColumnPlan>,
    cross: Vec<[usize; 2]>,
    null: NullTexts,
    record: RecordFeatures,
}

/// The features of the record so far with the places of their columns, if there are crosses.
#[derive(Clone, Debug, Default)]
struct RecordFeatures {
    is_crossed: bool,
    features: Vec<(usize, u64, f32)>,
}

impl RecordFeatures {
    #[inline(always)]
    fn push(&mut self, place: usize, key: u64, value: f32, out: &mut impl FeatureSink) {
        out.push(key, value);
        if self.is_crossed {
            self.features.push((place, key, value));
        }
    }

    /// The features of a column.
    fn of_column(&self, column: usize) -> impl Iterator<Item = (u64, f32)> {
        let own = self.features.iter().filter(move |(place, ..)| *place == column);
        own.map(|(_, key, value)| (*key, *value))
    }
}

#[derive(Clone, Debug)]
struct ColumnPlan {
    name: String,
    seed: u64,
    /// Its indices are features as they are.
    is_alone: bool,
    usage: CellUse,
}

#[derive(Clone, Debug)]
enum CellUse {
    Number {
        number: NumberUsage,
        scales: ColumnScales,
        /// Stands for a number that is missing.
        mean: f64,
    },
    /// The number itself is measured, under this key.
    Measured {
        number: NumberUsage,
        place: u64,
    },
    Category(MissingCategory),
    List {
        separator: Vec<u8>,
    },
    Vector,
    /// Not needed where columns are measured.
    Skipped,
}

impl Encoder {
    /// Of a schema. `measured`: its [measured](Schema::measured) columns, in their order.
    ///
    /// # Panics
    /// If one is missing.
    #[must_use]
    pub fn new(schema: &Schema, measured: &[ColumnScales]) -> Self {
        let mut next = measured.iter().copied();
        Self::with(schema, |usage| match usage {
            ColumnUsage::Number(number) => {
                let measured = number.is_measured().then(|| next.next().expect("it is measured"));
                let measured = measured.unwrap_or(ColumnScales::UNSCALED);
                let scales = match number.scale {
                    ColumnScale::Standard => measured,
                    ColumnScale::None => ColumnScales::UNSCALED,
                };
                CellUse::Number { number: number.clone(), scales, mean: measured.mean }
            }
            ColumnUsage::Category { missing } => CellUse::Category(*missing),
            ColumnUsage::List { separator } => {
                CellUse::List { separator: separator.clone().unwrap_or_default().into_bytes() }
            }
            ColumnUsage::Vector { .. } => CellUse::Vector,
            ColumnUsage::Ignore => CellUse::Skipped,
        })
    }

    /// Of a schema whose columns are not measured yet: numbers are not scaled.
    #[must_use]
    pub fn unscaled(schema: &Schema) -> Self {
        Self::new(schema, &vec![ColumnScales::UNSCALED; schema.measured().count()])
    }

    /// Of a schema, to measure columns: the keys of features are their places among the [measured](Schema::measured) columns,
    /// and values are those before scaling.
    #[must_use]
    pub fn measuring(schema: &Schema) -> Self {
        let mut places = 0..;
        let encoder = Self::with(schema, |usage| match usage {
            ColumnUsage::Number(number) if number.is_measured() => CellUse::Measured {
                number: number.clone(),
                place: places.next().unwrap_or_default(),
            },
            _ => CellUse::Skipped,
        });
        let (cross, record) = (Vec::new(), RecordFeatures::default());
        Self { keys_are_indices: true, cross, record, ..encoder }
    }

    /// The same, with an error for an index of a vector without other columns that is not below `features`.
    #[must_use]
    pub fn bounded(self, features: u64) -> Self {
        Self { index_bound: features, ..self }
    }

    /// Whether keys are the indices of features: places of measured columns, or indices of a vector without other columns.
    #[inline]
    #[must_use]
    pub fn keys_are_indices(&self) -> bool {
        self.keys_are_indices
    }

    /// What the cells of a column of a file with types are. `place`: of the column in the schema.
    #[must_use]
    pub fn need(&self, place: usize) -> CellNeed {
        match self.columns[place].usage {
            CellUse::Number { .. } | CellUse::Measured { .. } => CellNeed::Number,
            CellUse::Category(_) => CellNeed::Key,
            CellUse::List { .. } => CellNeed::Items,
            CellUse::Vector => CellNeed::Entries,
            CellUse::Skipped => CellNeed::Skipped,
        }
    }

    fn with(schema: &Schema, mut usage: impl FnMut(&ColumnUsage) -> CellUse) -> Self {
        let is_alone = schema.columns.len() == 1;
        let columns = schema.columns.iter().map(|column| ColumnPlan {
            name: column.name.clone(),
            seed: key::seed(&column.name),
            is_alone,
            usage: usage(&column.usage),
        });
        let columns: Vec<_> = columns.collect();
        let is_vector =
            |column: &ColumnPlan| column.is_alone && matches!(column.usage, CellUse::Vector);
        Self {
            keys_are_indices: columns.iter().any(is_vector),
            index_bound: u64::MAX,
            columns,
            cross: schema.cross.clone(),
            null: NullTexts::new(&schema.null),
            record: RecordFeatures { is_crossed: !schema.cross.is_empty(), features: Vec::new() },
        }
    }

    /// Adds the features of a cell. `place`: of its column in the schema.
    ///
    /// # Errors
    /// The cell is not what its column needs.
    #[inline(always)] // Calls for each cell cost a twentieth of reading a table.
    pub fn cell(
        &mut self,
        place: usize,
        cell: Cell<'_>,
        out: &mut impl FeatureSink,
    ) -> Result<(), CellError> {
        let column = &self.columns[place];
        // The usual cells go without what follows.
        let cell = match (cell, &column.usage) {
            (Cell::Key(key), CellUse::Category(_)) => {
                self.record.push(place, key, 1.0, out);
                return Ok(());
            }
            (Cell::Missing, CellUse::Category(MissingCategory::None)) => return Ok(()),
            (Cell::Number(value), CellUse::Number { number, scales, .. })
                if number.transform == Transform::None && value.is_finite() =>
            {
                if let Some(feature) = column.scaled(*scales, value)? {
                    self.record.push(place, feature.0, feature.1, out);
                }
                return Ok(());
            }
            (Cell::Text(text), _) if self.null.has(text) => Cell::Missing,
            (Cell::Text(text), CellUse::Category(_)) => {
                self.record.push(place, key::of_text(column.seed, text), 1.0, out);
                return Ok(());
            }
            (Cell::Text(text), CellUse::Number { number, scales, .. }) => {
                match plain_number(text) {
                    Some(value) if number.transform == Transform::None => {
                        if let Some(feature) = column.scaled(*scales, value)? {
                            self.record.push(place, feature.0, feature.1, out);
                        }
                        return Ok(());
                    }
                    Some(value) => Cell::Number(value),
                    None => cell,
                }
            }
            _ => cell,
        };
        let feature = match &column.usage {
            CellUse::Number { number, scales, mean } => match column.value(number, cell)? {
                None if number.missing() == MissingNumber::Indicator => {
                    Some((key::of_missing(column.seed), 1.0))
                }
                value => column.number(number, *scales, value.unwrap_or(*mean))?,
            },
            CellUse::Measured { number, place } => {
                let value = column.value(number, cell)?.map(|value| column.finite(value));
                value.transpose()?.map(|value| (*place, value))
            }
            CellUse::Category(missing) => column.category(*missing, cell)?,
            CellUse::List { separator } => {
                if let Cell::Text(text) = cell {
                    let seed = column.seed;
                    for item in items(text, separator) {
                        self.record.push(place, key::of_text(seed, item), 1.0, out);
                    }
                }
                None
            }
            CellUse::Vector | CellUse::Skipped => None,
        };
        if let Some((key, value)) = feature {
            self.record.push(place, key, value, out);
        }
        Ok(())
    }

    /// Adds the feature of an item of a list, by its key.
    #[inline]
    pub fn item(&mut self, place: usize, key: u64, out: &mut impl FeatureSink) {
        self.record.push(place, key, 1.0, out);
    }

    /// Adds the feature of an item of a list, by its key, with a value.
    ///
    /// # Errors
    /// The value is not finite.
    #[inline]
    pub fn weighted_item(
        &mut self,
        place: usize,
        key: u64,
        value: f64,
        out: &mut impl FeatureSink,
    ) -> Result<(), CellError> {
        let value = self.columns[place].finite(value)?;
        if value != 0.0 {
            self.record.push(place, key, value, out);
        }
        Ok(())
    }

    /// Adds a feature of a vector.
    ///
    /// # Errors
    /// The index is beyond the features of the model, or the value is not finite.
    #[inline(always)] // Calls for each entry cost a sixth of reading lists.
    pub fn entry(
        &mut self,
        place: usize,
        index: u64,
        value: f64,
        out: &mut impl FeatureSink,
    ) -> Result<(), CellError> {
        let column = &self.columns[place];
        let value = column.finite(value)?;
        if column.is_alone && index >= self.index_bound {
            return Err(self.beyond(place, index));
        }
        let key = if column.is_alone { index } else { key::of_index(column.seed, index) };
        self.record.push(place, key, value, out);
        Ok(())
    }

    /// Adds features of a vector with the value 1.
    ///
    /// # Errors
    /// An index is beyond the features of the model.
    pub fn indices(
        &mut self,
        place: usize,
        indices: &[u64],
        out: &mut impl FeatureSink,
    ) -> Result<(), CellError> {
        if self.columns[place].is_alone && !self.record.is_crossed {
            // Without a branch for each of them.
            let last = indices.iter().fold(0, |last, index| last.max(*index));
            if last >= self.index_bound && !indices.is_empty() {
                let beyond = indices.iter().find(|index| **index >= self.index_bound);
                return Err(self.beyond(place, beyond.copied().unwrap_or(last)));
            }
            indices.iter().for_each(|index| out.push(*index, 1.0));
            return Ok(());
        }
        indices.iter().try_for_each(|index| self.entry(place, *index, 1.0, out))
    }

    #[cold]
    fn beyond(&self, place: usize, index: u64) -> CellError {
        self.wrong(place, &format!("index {index}, but model.features is {}", self.index_bound))
    }

    /// The error of a cell.
    #[cold]
    #[must_use]
    pub fn wrong(&self, place: usize, what: &str) -> CellError {
        self.columns[place].wrong(what)
    }

    /// Adds the crosses of a record, whose cells were all there.
    pub fn end_record(&mut self, out: &mut impl FeatureSink) {
        for [first, second] in &self.cross {
            for (key, value) in self.record.of_column(*first) {
                for (other, factor) in self.record.of_column(*second) {
                    out.push(key::of_cross(key, other), value * factor);
                }
            }
        }
        self.record.features.clear();
    }

    /// Forgets a record that is malformed.
    pub fn drop_record(&mut self) {
        self.record.features.clear();
    }
}

impl ColumnPlan {
    /// The feature of a number after its transformation.
    #[inline]
    fn number(
        &self,
        number: &NumberUsage,
        scales: ColumnScales,
        value: f64,
    ) -> Result<Option<(u64, f32)>, CellError> {
        if let Transform::Buckets(_) = number.transform {
            return Ok(Some((key::of_integer(self.seed, value as i128), 1.0)));
        }
        self.scaled(scales, value)
    }

    /// The feature of a number that is not in buckets.
    #[inline]
    fn scaled(&self, scales: ColumnScales, value: f64) -> Result<Option<(u64, f32)>, CellError> {
        let value = self.finite((value - scales.mean) * scales.inverse)?;
        Ok((value != 0.0).then_some((self.seed, value)))
    }

    /// The number in a cell before it is scaled. A number that is missing has a value if it counts as 0.
    #[inline]
    fn value(&self, number: &NumberUsage, cell: Cell<'_>) -> Result<Option<f64>, CellError> {
        let value = match (self.parsed(cell)?, number.missing()) {
            (Some(value), _) => value,
            (None, MissingNumber::Zero) => 0.0,
            (None, MissingNumber::Bad) => return Err(self.wrong("expected a number, found none")),
            (None, _) => return Ok(None),
        };
        self.transformed(&number.transform, value).map(Some)
    }

    /// The number in a cell.
    #[inline]
    fn parsed(&self, cell: Cell<'_>) -> Result<Option<f64>, CellError> {
        let number = match cell {
            Cell::Missing => return Ok(None),
            Cell::Number(number) => number,
            Cell::Key(_) => return Err(self.wrong("expected a number, found a category")),
            Cell::Text(text) => number_in(text).ok_or_else(|| self.wrong_text("a number", text))?,
        };
        if !number.is_finite() {
            return Err(self.wrong(&format!("expected a finite number, found {number}")));
        }
        Ok(Some(number))
    }

    #[inline]
    fn transformed(&self, transform: &Transform, value: f64) -> Result<f64, CellError> {
        match transform {
            Transform::None => Ok(value),
            Transform::Log1p if value > -1.0 => Ok(libm::log1p(value)),
            Transform::Log1p => {
                Err(self.wrong(&format!("expected a number above -1 (log1p), found {value}")))
            }
            Transform::Buckets(bounds) => {
                Ok(bounds.iter().filter(|bound| **bound <= value).count() as f64)
            }
        }
    }

    /// As an f32.
    #[inline]
    fn finite(&self, value: f64) -> Result<f32, CellError> {
        match value as f32 {
            narrow if narrow.is_finite() => Ok(narrow),
            _ => Err(self.wrong(&format!("{value} is beyond the numbers of 32 bits"))),
        }
    }

    /// The feature of a category.
    #[inline]
    fn category(
        &self,
        missing: MissingCategory,
        cell: Cell<'_>,
    ) -> Result<Option<(u64, f32)>, CellError> {
        let key = match cell {
            Cell::Missing if missing == MissingCategory::None => return Ok(None),
            Cell::Missing => key::of_text(self.seed, b""),
            Cell::Text(text) => key::of_text(self.seed, text),
            Cell::Key(key) => key,
            Cell::Number(number) => {
                return Err(self.wrong(&format!(
                    "expected a text or a whole number as a category, found {number}"
                )));
            }
        };
        Ok(Some((key, 1.0)))
    }

    #[cold]
    fn wrong(&self, what: &str) -> CellError {
        CellError(format!("column {:?}: {what}", self.name).into())
    }

    #[cold]
    fn wrong_text(&self, expected: &str, text: &[u8]) -> CellError {
        let shown = String::from_utf8_lossy(&text[..text.len().min(24)]);
        self.wrong(&format!("expected {expected}, found {shown:?}"))
    }
}

#[cfg(test)]
mod tests {
    use heddle_protocol::job_spec::columns::FeatureColumn;

    use super::*;

    fn schema(usages: &[ColumnUsage]) -> Schema {
        let columns = usages.iter().enumerate().map(|(place, usage)| FeatureColumn {
            name: format!("c{place}"),
            usage: usage.clone(),
        });
        Schema { columns: columns.collect(), null: vec![String::new()], ..Schema::default() }
    }

    fn number(missing: MissingNumber, scale: ColumnScale, transform: Transform) -> ColumnUsage {
        ColumnUsage::Number(NumberUsage { missing, scale, transform })
    }

    /// The features of a record of texts.
    fn features(encoder: &mut Encoder, texts: &[&str]) -> Result<Vec<(u64, f32)>, String> {
        let mut out = Vec::new();
        for (place, text) in texts.iter().enumerate() {
            let cell = Cell::Text(text.as_bytes());
            encoder.cell(place, cell, &mut out).map_err(|error| error.to_string())?;
        }
        encoder.end_record(&mut out);
        Ok(out)
    }

    #[test]
    fn indices_are_entries_with_the_value_1() {
        let vector = || ColumnUsage::Vector { values: None };
        let both = |usages: &[ColumnUsage], indices: &[u64]| {
            let mut encoder = Encoder::unscaled(&schema(usages)).bounded(9);
            let (mut found, mut expected) = (Vec::new(), Vec::new());
            let read = encoder.indices(0, indices, &mut found);
            let mut each = indices.iter();
            let one_by_one = each.try_for_each(|at| encoder.entry(0, *at, 1.0, &mut expected));
            assert_eq!(read, one_by_one);
            if read.is_ok() {
                assert_eq!(found, expected);
            }
            read.map(|()| found).map_err(|error| error.to_string())
        };
        assert_eq!(both(&[vector()], &[8, 0, 8]), Ok(vec![(8, 1.0), (0, 1.0), (8, 1.0)]));
        assert_eq!(both(&[vector()], &[]), Ok(vec![]));
        let beyond = "column \"c0\": index 9, but model.features is 9";
        assert_eq!(both(&[vector()], &[1, 9, 10]), Err(beyond.to_owned()));
        let beside = [vector(), ColumnUsage::Category { missing: MissingCategory::None }];
        assert_eq!(both(&beside, &[9]), Ok(vec![(key::of_index(key::seed("c0"), 9), 1.0)]));
    }

    const SCALES: ColumnScales = ColumnScales { mean: 3.0, inverse: 0.5 };

    #[test]
    fn numbers_are_transformed_scaled_and_may_be_missing() {
        use ColumnScale::{None, Standard};
        use MissingNumber::{Auto, Bad, Indicator, Mean, Zero};
        let (seed, log) = (key::seed("c0"), || Transform::Log1p);
        let of = |text: &str, missing, scale, transform| {
            let schema = schema(&[number(missing, scale, transform)]);
            let measured = schema.measured().count();
            features(&mut Encoder::new(&schema, &[SCALES][..measured]), &[text])
        };
        let one = |value: f32| Ok(vec![(seed, value)]);
        let missing = Ok(vec![(key::of_missing(seed), 1.0)]);
        assert_eq!(of("7", Auto, Standard, Transform::None), one(2.0));
        assert_eq!(of(" 7.5 ", Auto, None, Transform::None), one(7.5));
        assert_eq!(of("0", Auto, None, Transform::None), Ok(vec![]));
        assert_eq!(of("1", Auto, None, log()), one(std::f32::consts::LN_2));
        assert_eq!(of("", Auto, Standard, Transform::None), Ok(vec![]), "the mean");
        assert_eq!(of("", Auto, None, Transform::None), Ok(vec![]), "zero");
        assert_eq!(of("", Mean, None, Transform::None), one(3.0));
        assert_eq!(of("", Zero, Standard, Transform::None), one(-1.5));
        assert_eq!(of("", Indicator, Standard, Transform::None), missing);
        let bad = |what: &str| Err(format!("column \"c0\": {what}"));
        assert_eq!(of("", Bad, None, Transform::None), bad("expected a number, found none"));
        assert_eq!(of("x", Auto, None, Transform::None), bad("expected a number, found \"x\""));
        assert_eq!(
            of("inf", Auto, None, Transform::None),
            bad("expected a finite number, found inf")
        );
        assert_eq!(
            of("-1", Auto, None, log()),
            bad("expected a number above -1 (log1p), found -1")
        );
        assert_eq!(
            of("1e39", Auto, None, Transform::None),
            bad(&format!("{} is beyond the numbers of 32 bits", 1e39))
        );
        let buckets = || Transform::Buckets(vec![0.0, 10.0]);
        for (text, bucket) in [("-1", 0), ("0", 1), ("9.9", 1), ("10", 2)] {
            let expected = Ok(vec![(key::of_integer(seed, bucket), 1.0)]);
            assert_eq!(of(text, Auto, Standard, buckets()), expected, "{text}");
        }
        assert_eq!(of("", Auto, None, buckets()), missing);
    }

    #[test]
    fn equal_values_of_typed_and_untyped_files_are_one_feature() {
        let schema = schema(&[ColumnUsage::Category { missing: MissingCategory::Own }]);
        let mut encoder = Encoder::new(&schema, &[]);
        let mut of = |cell| {
            let mut out = Vec::new();
            encoder.cell(0, cell, &mut out).map(|()| out)
        };
        for (text, typed) in [
            ("17", Cell::Key(key::of_integer(key::seed("c0"), 17))),
            ("true", Cell::Key(key::of_text(key::seed("c0"), b"true"))),
            ("", Cell::Missing),
        ] {
            assert_eq!(of(Cell::Text(text.as_bytes())), of(typed), "{text}");
        }
        assert!(of(Cell::Number(1.5)).is_err());
    }

    #[test]
    fn lists_and_vectors_have_a_feature_an_item() {
        let list = ColumnUsage::List { separator: Some("|".to_owned()) };
        let vector = ColumnUsage::Vector { values: None };
        let schema_of_both = schema(&[list, vector.clone()]);
        let mut encoder = Encoder::new(&schema_of_both, &[]);
        let found = features(&mut encoder, &["a||b"]).expect("a list");
        let seed = key::seed("c0");
        assert_eq!(found, [(key::of_text(seed, b"a"), 1.0), (key::of_text(seed, b"b"), 1.0)]);
        let mut out = Vec::new();
        encoder.entry(1, 5, 0.5, &mut out).expect("finite");
        assert_eq!(out, [(key::of_index(key::seed("c1"), 5), 0.5)]);
        let mut out = Vec::new();
        let mut alone = Encoder::new(&schema(&[vector]), &[]).bounded(6);
        alone.entry(0, 5, 0.5, &mut out).expect("finite");
        assert_eq!(out, [(5, 0.5)], "alone it keeps its indices");
        let error = alone.entry(0, 6, 0.5, &mut out).expect_err("beyond").to_string();
        assert_eq!(error, "column \"c0\": index 6, but model.features is 6");
    }

    #[test]
    fn crosses_have_a_feature_for_each_pair_of_a_record() {
        let list = ColumnUsage::List { separator: Some(" ".to_owned()) };
        let of = number(MissingNumber::Auto, ColumnScale::None, Transform::None);
        let schema = Schema { cross: vec![[0, 1]], ..schema(&[list, of]) };
        let mut encoder = Encoder::new(&schema, &[]);
        for _ in 0..2 {
            let found = features(&mut encoder, &["a b", "2"]).expect("a record");
            let own = |n: usize| found[n].0;
            assert_eq!(found.len(), 5);
            assert_eq!(found[3], (key::of_cross(own(0), own(2)), 2.0));
            assert_eq!(found[4], (key::of_cross(own(1), own(2)), 2.0));
        }
        assert_eq!(features(&mut encoder, &["a", ""]).map(|found| found.len()), Ok(1));
    }

    #[test]
    fn measured_columns_have_their_numbers_before_scaling() {
        let plain = number(MissingNumber::Auto, ColumnScale::None, Transform::None);
        let log = number(MissingNumber::Zero, ColumnScale::Standard, Transform::Log1p);
        let schema = schema(&[plain, log, ColumnUsage::Category { missing: Default::default() }]);
        assert_eq!(schema.measured().collect::<Vec<_>>(), [1]);
        let mut encoder = Encoder::measuring(&schema);
        let found = features(&mut encoder, &["9", "0", "a"]);
        assert_eq!(found, Ok(vec![(0, 0.0)]));
        assert_eq!(features(&mut encoder, &["9", "", "a"]), Ok(vec![(0, 0.0)]), "it counts as 0");
    }
}
