//! Columns of tables as features.
//!
//! [`resolve`] finds what becomes of each column of a file, by the rules of a job: the
//! [`Schema`](heddle_protocol::job_spec::columns::Schema).
//! An [`Encoder`] turns the cells of a record into features. [`key`] has the keys of features: they depend on the name of a
//! column and on the value, not on the format of the files, the order of their columns, or the task.
//!
//! [`propose()`] proposes rules for a table without a job.
//!
//! Everything here is pure: bytes and numbers come in.

mod cell;
mod cell_text;
mod encoder;
pub mod key;
mod nearest;
mod propose;
mod resolve;
pub mod typed;

pub use cell::{Cell, CellNeed};
pub use cell_text::NullTexts;
pub use encoder::{CellError, ColumnScales, Encoder, FeatureSink};
pub use nearest::nearest_columns;
pub use propose::{
    ColumnSummary, GuessedKind, LabelChoice, Proposal, SampledColumn, is_label, propose,
};
pub use resolve::{FileColumn, Roles, SchemaError, ValueKind, check_folded, check_kind, resolve};
