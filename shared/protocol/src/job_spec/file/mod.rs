//! The job file: TOML with positions, overrides, and the origin of every value.
//!
//! [`mod@site`] holds the defaults of a site. [`raw`] turns text into values with their positions. The tables of the sections (`section!`) hold every key;
//! [`mod@keys`] lists them. [`read()`] takes the values key by key into a [`JobSpec`](super::JobSpec) and records the origin of
//! each; [`template()`] prints the keys as a commented job file. Nothing here uses a file system: text comes in, paths are
//! only joined.

pub(super) mod columns;
pub mod context;
pub mod key;
pub mod keys;
mod known_keys;
pub mod origin;
pub(super) mod parameters;
pub(super) mod paths;
pub mod problem;
pub mod raw;
pub mod read;
pub(super) mod scalar;
pub(super) mod section;
pub mod site;
pub(super) mod take;
pub mod template;
#[cfg(test)]
mod tests;
pub(super) mod values;

pub use context::{ReadContext, Shown, SiteFile};
pub use key::{Fallback, Group, Key, ResumeRule};
pub use keys::{GROUPS, keys};
pub use origin::{KeyOverride, Origin};
pub use problem::{Problem, Problems};
pub use read::{Job, read};
pub use site::read_site;
pub use template::template;
