//! Files whose values have types, whatever their format: their columns, which of them are read and as what, and the values
//! of some rows.

mod block;
mod column;
mod decimal;
mod need;
mod read_ahead;

pub use block::{LeafBlock, LeafValues, NULL_KEY, RowBlock};
pub use column::{ColumnShape, LeafKind, TypedColumn, TypedColumns};
pub use decimal::unscaled;
pub use need::{FirstValue, LeafNeed, NeededLeaf, TextKeys};
pub use read_ahead::ReadAhead;
