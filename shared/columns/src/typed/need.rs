//! What the values of a leaf are read as.

use super::block::NULL_KEY;
use crate::cell_text::NullTexts;
use crate::key;

/// A leaf of the schema that is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeededLeaf {
    /// Its number.
    pub leaf: usize,
    /// What it is read as.
    pub need: LeafNeed,
}

/// What the values of a leaf are read as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeafNeed {
    /// Numbers: of whole numbers, numbers, Booleans (0 and 1), decimals, dates and times.
    Number,
    /// Keys of features: of texts, whole numbers and Booleans.
    Key(TextKeys),
    /// Indices of a vector: of whole numbers.
    Index,
}

/// How texts become keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextKeys {
    /// The seed of the column.
    pub seed: u64,
    /// Texts that stand for a missing value.
    pub null: NullTexts,
}

impl TextKeys {
    /// The key of a text; [`NULL_KEY`] if it stands for a missing value.
    #[inline]
    #[must_use]
    pub fn key(&self, text: &[u8]) -> u64 {
        if self.null.has(text) {
            return NULL_KEY;
        }
        key::of_text(self.seed, text)
    }

    /// The key of a Boolean: of the text that CSV has for it.
    #[inline]
    #[must_use]
    pub fn key_of_boolean(&self, is_true: bool) -> u64 {
        key::of_text(self.seed, if is_true { b"true" } else { b"false" })
    }
}

/// A value of the first rows, read without a need.
#[derive(Clone, Debug, PartialEq)]
pub enum FirstValue {
    /// Absent.
    Missing,
    /// A number, a Boolean (0, 1), a date or a time.
    Number(f64),
    /// A text.
    Text(Vec<u8>),
    /// The items of a list, as texts.
    Items(Vec<Vec<u8>>),
    /// The indices and values of a vector.
    Entries(Vec<(u64, f64)>),
    /// The keys and numbers of a map.
    Weights(Vec<(Vec<u8>, f64)>),
}
