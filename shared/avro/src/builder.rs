//! The values of a leaf, one after the other.

use heddle_columns::key;
use heddle_columns::typed::{LeafBlock, LeafNeed, LeafValues, TextKeys};

use crate::values::Scalar;

/// Gathers the values of a leaf.
#[derive(Debug)]
pub(crate) struct LeafBuilder {
    need: LeafNeed,
    is_list: bool,
    numbers: Vec<f64>,
    /// Keys or indices.
    keys: Vec<u64>,
    /// Where the values of each row end.
    ends: Vec<u32>,
}

impl LeafBuilder {
    pub(crate) fn new(need: LeafNeed, is_list: bool) -> Self {
        Self { need, is_list, numbers: Vec::new(), keys: Vec::new(), ends: Vec::new() }
    }

    /// Adds a value of the present row, if the leaf needs values of its kind.
    #[inline(always)] // The kind is known where it is called.
    pub(crate) fn push(&mut self, value: Scalar<'_>) {
        match (&self.need, value) {
            (_, Scalar::Missing) => {}
            (LeafNeed::Number, Scalar::Whole(number)) => self.numbers.push(number as f64),
            (LeafNeed::Number, Scalar::Number(number)) => self.numbers.push(number),
            (LeafNeed::Number, Scalar::Boolean(is_true)) => {
                self.numbers.push(f64::from(u8::from(is_true)));
            }
            (LeafNeed::Key(keys), value) => self.keys.extend(key_of(keys, value)),
            (LeafNeed::Index, Scalar::Whole(number)) => self.keys.push(number.cast_unsigned()),
            (LeafNeed::Number, Scalar::Text(_)) | (LeafNeed::Index, _) => {}
        }
    }

    /// Ends the present row.
    #[inline(always)]
    pub(crate) fn end_row(&mut self) {
        // A list has at most `ITEMS_MAX` items, and the lists of a block less than 2³² together.
        self.ends.push(self.len() as u32);
    }

    #[inline(always)]
    fn len(&self) -> usize {
        // One of them is empty.
        self.numbers.len() + self.keys.len()
    }

    /// Takes what was gathered.
    pub(crate) fn take(&mut self) -> LeafBlock {
        if !self.is_list && self.len() == self.ends.len() {
            // Each row has its value.
            self.ends.clear();
        }
        let values = match self.need {
            LeafNeed::Number => LeafValues::Numbers(taken(&mut self.numbers)),
            LeafNeed::Key(_) => LeafValues::Keys(taken(&mut self.keys)),
            LeafNeed::Index => LeafValues::Indices(taken(&mut self.keys)),
        };
        LeafBlock::new(values, taken(&mut self.ends))
    }
}

/// The values, with room for as many in their place.
fn taken<T>(values: &mut Vec<T>) -> Vec<T> {
    let room = Vec::with_capacity(values.len());
    std::mem::replace(values, room)
}

#[inline(always)]
fn key_of(keys: &TextKeys, value: Scalar<'_>) -> Option<u64> {
    match value {
        Scalar::Text(text) => Some(keys.key(text)),
        Scalar::Whole(number) => Some(key::of_integer(keys.seed, number.into())),
        Scalar::Boolean(is_true) => Some(keys.key_of_boolean(is_true)),
        Scalar::Missing | Scalar::Number(_) => None,
    }
}
