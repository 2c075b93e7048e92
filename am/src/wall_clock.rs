//! The time of day, for records, reports and file names. No decision about the job depends on it.

use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970.
#[must_use]
pub fn wall_ms() -> u64 {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(wall.as_millis()).unwrap_or(u64::MAX)
}
