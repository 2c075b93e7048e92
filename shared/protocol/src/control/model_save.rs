//! Saves of the model: a trainer's program asks for one, and one trainer at a time writes it under a lease.

use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::ids::{Member, SaveLease, SaveNo};

/// Shortest block time of a request, ms.
pub const BLOCK_MS_MIN: u64 = 1;
/// Longest block time of a request, ms.
pub const BLOCK_MS_MAX: u64 = 3_600_000;

/// A trainer's program asks for a save of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SaveRequest {
    /// Counted up from 1 over the trainer's life; the answer carries it. A request that is repeated gets the same answer.
    pub request: u64,
    /// For how long requests of other trainers have to wait once this one is granted, ms. From [`BLOCK_MS_MIN`] to
    /// [`BLOCK_MS_MAX`].
    pub block_ms: u64,
}

impl SaveRequest {
    /// Why the block time is out of bounds, if it is.
    #[must_use]
    pub fn block_error(&self) -> Option<String> {
        let is_valid = (BLOCK_MS_MIN..=BLOCK_MS_MAX).contains(&self.block_ms);
        (!is_valid).then(|| {
            format!(
                "the block time must be from {BLOCK_MS_MIN} ms to 1 h (got {} ms)",
                self.block_ms
            )
        })
    }
}

/// The answer to a [`SaveRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "answer")]
pub enum SaveAnswer {
    /// The model is saved under this number, from a checkpoint that is cut after the request. This trainer writes it; another
    /// one does if this one is lost.
    Granted {
        /// The number.
        save: SaveNo,
    },
    /// Another trainer's request was granted a moment ago, or its save is under way.
    Wait {
        /// The trainer.
        holder: Member,
        /// When to ask again at the earliest, ms from now.
        wait_ms: u64,
    },
    /// The request is not valid, or comes from a trainer that is not a member of the job; the job goes on.
    Refused {
        /// Why.
        reason: String,
    },
}

/// Orders a trainer to write the model of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportOrder {
    /// The save; 0 is the one at the end of the job.
    pub save: SaveNo,
    /// The writer's lease. Only what is reported under the last lease is published.
    pub lease: SaveLease,
    /// The checkpoint's directory (URL).
    pub checkpoint: String,
    /// The output directory (URL).
    pub dir: String,
}

/// A file of an exported model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportedFile {
    /// Name in its directory.
    pub name: String,
    /// Length.
    pub bytes: u64,
    /// MD5, lower-case hexadecimal.
    pub md5: String,
}

/// A model that is written and not published.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportedModel {
    /// The lease of the order.
    pub lease: SaveLease,
    /// Directory of the files, below that of the save.
    pub dir: String,
    /// Names and lengths of the files.
    pub files: Vec<ExportedFile>,
}

/// A model could not be written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportFailure {
    /// The lease of the order.
    pub lease: SaveLease,
    /// What failed, and where.
    pub failure: Failure,
}

/// How far a trainer has written a model. A lease is renewed when `bytes` has grown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportProgress {
    /// The lease of the order.
    pub lease: SaveLease,
    /// Bytes of the checkpoint that were turned into the model so far.
    pub bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_time_is_from_a_millisecond_to_an_hour() {
        let error = |block_ms| SaveRequest { request: 1, block_ms }.block_error();
        assert_eq!([error(1), error(5_000), error(3_600_000)], [None, None, None]);
        for (block_ms, got) in [(0, "(got 0 ms)"), (3_600_001, "(got 3600001 ms)")] {
            let text = error(block_ms).expect("out of bounds");
            assert!(text.contains("from 1 ms to 1 h") && text.ends_with(got), "{text}");
        }
    }
}
