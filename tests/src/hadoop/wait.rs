//! Waiting for a condition, bounded.

use std::fmt::Debug;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Asks again every 50 ms until the answer is `Ok`, and returns it.
///
/// # Errors
/// The last error, when `limit` has passed.
pub fn wait_until<T>(
    what: impl Debug,
    limit: Duration,
    mut ask: impl FnMut() -> Result<T>,
) -> Result<T> {
    let end = Instant::now() + limit;
    loop {
        match ask() {
            Ok(value) => return Ok(value),
            Err(error) if Instant::now() >= end => {
                return Err(error).with_context(|| format!("{what:?}: not within {limit:?}"));
            }
            Err(_) => thread::sleep(Duration::from_millis(50)),
        }
    }
}
