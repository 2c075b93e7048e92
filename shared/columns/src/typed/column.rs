//! The columns of a file with types.

use crate::resolve::ValueKind;

/// The columns of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TypedColumns {
    /// In the order of the file.
    pub columns: Vec<TypedColumn>,
    /// What the values of the leaves of its schema are, by their numbers.
    pub leaves: Vec<LeafKind>,
}

/// A column of a table: a field of the file's schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypedColumn {
    /// Its name.
    pub name: String,
    /// What its values are.
    pub kind: ValueKind,
    /// Where they are.
    pub shape: ColumnShape,
}

/// The leaves of the schema in which a column has its values, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnShape {
    /// One value a row.
    Value(usize),
    /// A list of values.
    List(usize),
    /// Spark's `VectorUDT`.
    SparkVector {
        /// 0: sparse; 1: dense.
        kind: usize,
        /// A list of whole numbers; of sparse vectors.
        indices: usize,
        /// A list of numbers.
        values: usize,
    },
    /// A map from texts to numbers, both of one leaf: its keys, or its numbers, as they are needed.
    Map(usize),
    /// Structs, other maps, lists of lists.
    Other,
}

/// What the values of a leaf are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeafKind {
    /// `true` and `false`.
    Boolean,
    /// Whole numbers.
    Integer,
    /// Numbers with a fixed number of decimals.
    Decimal,
    /// Numbers with a fraction.
    Number,
    /// Dates and times, by their name, as the number that the file has.
    Instant(&'static str),
    /// Texts.
    Text,
    /// Not read, by their name.
    Unread(&'static str),
}

impl TypedColumns {
    /// The column of this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&TypedColumn> {
        self.columns.iter().find(|column| column.name == name)
    }

    /// Whether a leaf can be read as numbers.
    #[must_use]
    pub fn is_number(&self, leaf: usize) -> bool {
        !matches!(self.leaves.get(leaf), None | Some(LeafKind::Text | LeafKind::Unread(_)))
    }

    /// Whether a leaf has whole numbers.
    #[must_use]
    pub fn is_whole_number(&self, leaf: usize) -> bool {
        self.leaves.get(leaf) == Some(&LeafKind::Integer)
    }
}

impl ColumnShape {
    /// A column that is not read, by the name of its type.
    #[must_use]
    pub fn other(name: &'static str) -> (Self, ValueKind) {
        (Self::Other, kind(name, [false; 4]))
    }

    /// A map from texts to numbers in this leaf.
    #[must_use]
    pub fn map(leaf: usize) -> (Self, ValueKind) {
        (Self::Map(leaf), kind("a map of numbers", [false, false, true, false]))
    }

    /// Spark's vector, whose leaves follow each other from this one on.
    #[must_use]
    pub fn spark_vector(first: usize) -> (Self, ValueKind) {
        let shape = Self::SparkVector { kind: first, indices: first + 2, values: first + 3 };
        (shape, kind("a vector", [false, false, false, true]))
    }
}

/// `uses`: whether it can be a number, a category, a list, a vector.
fn kind(name: &'static str, uses: [bool; 4]) -> ValueKind {
    let [is_number, is_category, is_list, is_vector] = uses;
    ValueKind::Typed { name, is_number, is_category, is_list, is_vector }
}

impl LeafKind {
    /// A column with such a value in each row.
    #[must_use]
    pub fn value(self) -> ValueKind {
        match self {
            Self::Boolean => kind("a Boolean", [true, true, false, false]),
            Self::Integer => kind("a whole number", [true, true, false, false]),
            Self::Decimal => kind("a decimal number", [true, false, false, false]),
            Self::Number => kind("a number with a fraction", [true, false, false, false]),
            Self::Instant(name) => kind(name, [true, false, false, false]),
            Self::Text => kind("text", [false, true, false, false]),
            Self::Unread(name) => kind(name, [false; 4]),
        }
    }

    /// A column with a list of them in each row.
    #[must_use]
    pub fn list(self) -> ValueKind {
        match self {
            Self::Integer => kind("a list of whole numbers", [false, false, true, true]),
            Self::Number => kind("a list of numbers", [false, false, false, true]),
            Self::Text => kind("a list of texts", [false, false, true, false]),
            Self::Boolean | Self::Decimal | Self::Instant(_) | Self::Unread(_) => {
                kind("a list of another type", [false; 4])
            }
        }
    }
}
