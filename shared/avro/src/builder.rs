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
    /// 1: a value is there.
    definitions: Vec<i16>,
    /// Of lists: 0 begins a row.
    repetitions: Vec<i16>,
}

impl LeafBuilder {
    pub(crate) fn new(need: LeafNeed, is_list: bool) -> Self {
        let (numbers, keys) = (Vec::new(), Vec::new());
        let (definitions, repetitions) = (Vec::new(), Vec::new());
        Self { need, is_list, numbers, keys, definitions, repetitions }
    }

    /// Adds a value, the first of its row or not.
    #[inline]
    pub(crate) fn push(&mut self, value: Scalar<'_>, is_first: bool) {
        let is_there = match &self.need {
            LeafNeed::Number => {
                let number = match value {
                    Scalar::Boolean(is_true) => Some(f64::from(u8::from(is_true))),
                    Scalar::Whole(number) => Some(number as f64),
                    Scalar::Number(number) => Some(number),
                    Scalar::Missing | Scalar::Text(_) => None,
                };
                if let Some(number) = number {
                    self.numbers.push(number);
                }
                number.is_some()
            }
            need => {
                let key = match need {
                    LeafNeed::Key(keys) => key_of(keys, value),
                    _ => index_of(value),
                };
                if let Some(key) = key {
                    self.keys.push(key);
                }
                key.is_some()
            }
        };
        self.definitions.push(i16::from(is_there));
        if self.is_list {
            self.repetitions.push(i16::from(!is_first));
        }
    }

    /// Takes what was gathered.
    pub(crate) fn take(&mut self) -> LeafBlock {
        let values = match self.need {
            LeafNeed::Number => LeafValues::Numbers(taken(&mut self.numbers)),
            LeafNeed::Key(_) => LeafValues::Keys(taken(&mut self.keys)),
            LeafNeed::Index => LeafValues::Indices(taken(&mut self.keys)),
        };
        let definitions = taken(&mut self.definitions);
        LeafBlock::new(values, definitions, 1, taken(&mut self.repetitions))
    }
}

/// The values, with room for as many in their place.
fn taken<T>(values: &mut Vec<T>) -> Vec<T> {
    let room = Vec::with_capacity(values.len());
    std::mem::replace(values, room)
}

#[inline]
fn key_of(keys: &TextKeys, value: Scalar<'_>) -> Option<u64> {
    match value {
        Scalar::Text(text) => Some(keys.key(text)),
        Scalar::Whole(number) => Some(key::of_integer(keys.seed, number.into())),
        Scalar::Boolean(is_true) => {
            Some(key::of_text(keys.seed, if is_true { b"true" } else { b"false" }))
        }
        Scalar::Missing | Scalar::Number(_) => None,
    }
}

fn index_of(value: Scalar<'_>) -> Option<u64> {
    match value {
        Scalar::Whole(number) => Some(number.cast_unsigned()),
        _ => None,
    }
}
