//! The job file: TOML with positions, overrides, and the origin of every value.
//!
//! [`raw`] turns text into values that know where they stand, [`keys`] lists every key with its
//! default and meaning, [`read()`] takes the values key by key into a [`JobSpec`](super::JobSpec) and
//! remembers each one's origin, [`template()`] prints the list as a commented job file. Nothing here
//! touches a file system: text comes in, paths are only joined.

pub mod keys;
mod parameters;
mod paths;
pub mod problem;
pub mod raw;
pub mod read;
mod scalar;
mod take;
pub mod template;
#[cfg(test)]
mod tests;
mod yarn;

pub use keys::{Fallback, GROUPS, Group, KEYS, Key};
pub use problem::{Problem, Problems};
pub use raw::Origin;
pub use read::{Context, Job, Shown, read};
pub use template::template;
