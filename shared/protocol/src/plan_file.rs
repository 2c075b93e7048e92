//! The file that holds a run's input plan: written once by the ApplicationMaster, read by the trainers.
//!
//! The plan has an entry for each task, up to a million, so the welcome only names the file; a trainer reads it once. The
//! digest in the welcome detects a torn or foreign file, and a plan that differs from the ApplicationMaster's. Pure: the
//! callers read and write the file.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::manifest::{InputPlan, MANIFEST_BYTES_MAX, Manifest, ManifestError};

/// Longest plan file. A task takes about 12 bytes, a file its name and about 80 bytes more.
pub const PLAN_BYTES_MAX: usize = 256 << 20;
/// Version of the file.
const FORMAT_VERSION: u32 = 1;

/// Where the plan of a run is, and what it must be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanFile {
    /// The file, as a URL that `heddle-storage` reads.
    pub url: String,
    /// Its length.
    pub bytes: u64,
    /// SHA-256 of it, 64 lower-case hexadecimal digits.
    pub sha256: String,
}

/// Why a plan file is not written or not believed.
#[derive(Debug, thiserror::Error)]
pub enum PlanFileError {
    /// Longer than [`PLAN_BYTES_MAX`].
    #[error(
        "the input plan of {files} files and {tasks} tasks takes {bytes} bytes, at most {PLAN_BYTES_MAX} are possible: \
         use fewer and larger input files, or a larger data.task-size"
    )]
    TooLong {
        /// Input files.
        files: usize,
        /// Tasks.
        tasks: usize,
        /// Length of the file.
        bytes: usize,
    },
    /// A checkpoint's manifest, which holds the plan too, could become longer than one that is read.
    #[error(
        "the manifest of a checkpoint could take {bytes} bytes for {files} files, {tasks} tasks and {shards} shards, at \
         most {bytes_max} are possible: use fewer and larger input files, or a larger data.task-size"
    )]
    Manifest {
        /// Input files.
        files: usize,
        /// Tasks.
        tasks: usize,
        /// Shards.
        shards: u32,
        /// Length that the manifest may reach.
        bytes: u64,
        /// Length of the longest that is read.
        bytes_max: u64,
    },
    /// Other bytes than the ApplicationMaster wrote.
    #[error("{url} has {found_bytes} bytes with SHA-256 {found}, expected {bytes} with {expected}")]
    Digest {
        /// The file.
        url: String,
        /// Its length.
        found_bytes: usize,
        /// Its digest.
        found: String,
        /// The length that it should have.
        bytes: u64,
        /// The digest that it should have.
        expected: String,
    },
    /// Right by its digest and not understood: another version of the program wrote it.
    #[error("{url} is not an input plan of this version of the program")]
    Form {
        /// The file.
        url: String,
        /// Why.
        source: serde_json::Error,
    },
    /// The plan contradicts itself.
    #[error("{url}")]
    Plan {
        /// The file.
        url: String,
        /// How.
        source: ManifestError,
    },
}

#[derive(Serialize)]
struct Written<'a> {
    format_version: u32,
    plan: &'a InputPlan,
}

#[derive(Deserialize)]
struct Read {
    plan: InputPlan,
}

/// Whether a job with this input is one that its containers can read the plan of and that can be checkpointed.
///
/// # Errors
/// [`PlanFileError::TooLong`], [`PlanFileError::Manifest`].
pub fn check_size(plan: &InputPlan, shards: u32) -> Result<(), PlanFileError> {
    check_size_within(plan, shards, MANIFEST_BYTES_MAX as u64)
}

/// [`check_size`] with another longest manifest: a plan of hundreds of megabytes is too slow for a test.
fn check_size_within(plan: &InputPlan, shards: u32, bytes_max: u64) -> Result<(), PlanFileError> {
    let (file, _) = PlanFile::of(plan, "")?;
    let bytes = Manifest::bytes_at_most(plan, file.bytes, shards);
    if bytes > bytes_max {
        return Err(PlanFileError::Manifest {
            files: plan.files.len(),
            tasks: plan.train.len() + plan.test.len(),
            shards,
            bytes,
            bytes_max,
        });
    }
    Ok(())
}

impl PlanFile {
    /// The bytes of a plan's file, and the file as it is to be named in `dir` (a URL): by its content, so that writing it
    /// again changes nothing and another plan has another name.
    ///
    /// # Errors
    /// [`PlanFileError::TooLong`].
    pub fn of(plan: &InputPlan, dir: &str) -> Result<(Self, Vec<u8>), PlanFileError> {
        let written = Written { format_version: FORMAT_VERSION, plan };
        let bytes = serde_json::to_vec(&written).expect("numbers and strings are JSON");
        if bytes.len() > PLAN_BYTES_MAX {
            return Err(PlanFileError::TooLong {
                files: plan.files.len(),
                tasks: plan.train.len() + plan.test.len(),
                bytes: bytes.len(),
            });
        }
        let sha256 = hex::encode(Sha256::digest(&bytes));
        let file = Self {
            url: format!("{}/plan-{}.json", dir.trim_end_matches('/'), &sha256[..16]),
            bytes: bytes.len() as u64,
            sha256,
        };
        Ok((file, bytes))
    }

    /// The plan that these bytes of the file hold.
    ///
    /// # Errors
    /// See [`PlanFileError`].
    pub fn parse(&self, bytes: &[u8]) -> Result<InputPlan, PlanFileError> {
        let found = hex::encode(Sha256::digest(bytes));
        if found != self.sha256 {
            return Err(PlanFileError::Digest {
                url: self.url.clone(),
                found_bytes: bytes.len(),
                found,
                bytes: self.bytes,
                expected: self.sha256.clone(),
            });
        }
        let url = self.url.clone();
        let Read { plan } = match serde_json::from_slice(bytes) {
            Ok(read) => read,
            Err(source) => return Err(PlanFileError::Form { url, source }),
        };
        match plan.check() {
            Ok(()) => Ok(plan),
            Err(source) => Err(PlanFileError::Plan { url, source }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{Compression, InputFile, TaskRange};

    fn plan(bytes: u64) -> InputPlan {
        let file = |name: &str| InputFile {
            url: format!("hdfs:///data/{name}"),
            bytes,
            modified_ms: 7,
            compression: Compression::None,
        };
        let tasks = |file: u32| {
            let pieces = bytes.div_ceil(1000);
            (0..pieces).map(move |n| TaskRange {
                file,
                start: bytes * n / pieces,
                end: bytes * (n + 1) / pieces,
            })
        };
        InputPlan {
            files: vec![file("a"), file("b"), file("t")],
            train: tasks(0).chain(tasks(1)).collect(),
            test: tasks(2).collect(),
        }
    }

    #[test]
    fn a_plan_reads_back_and_its_name_follows_from_its_content() {
        let plan = plan(12_345);
        let (file, bytes) = PlanFile::of(&plan, "hdfs:///staging/").expect("short");
        assert_eq!(file.bytes, bytes.len() as u64);
        assert_eq!(file.url, format!("hdfs:///staging/plan-{}.json", &file.sha256[..16]));
        assert_eq!(file.parse(&bytes).expect("read"), plan);
        assert_eq!(PlanFile::of(&plan, "hdfs:///staging").expect("short").0, file);
    }

    #[test]
    fn other_bytes_are_refused_naming_both_digests() {
        let (file, mut bytes) = PlanFile::of(&plan(10_000), "file:///run").expect("short");
        let last = bytes.len() - 1;
        for (change, length) in [(b' ', last + 1), (b'}', last)] {
            bytes[last] = change;
            let error = file.parse(&bytes[..length]).expect_err("refused").to_string();
            assert!(error.contains(&file.sha256), "{error}");
            assert!(error.contains(&file.url), "{error}");
        }
    }

    #[test]
    fn a_plan_that_contradicts_itself_is_refused() {
        let mut wrong = plan(10_000);
        wrong.train[1].end += 1;
        let (file, bytes) = PlanFile::of(&wrong, "file:///run").expect("short");
        let error = file.parse(&bytes).expect_err("refused");
        assert!(matches!(error, PlanFileError::Plan { .. }), "{error}");
    }

    #[test]
    fn a_job_with_a_manifest_too_long_to_read_is_refused() {
        const BYTES_MAX: u64 = 6 << 20;
        check_size(&plan(50_000_000), 100).expect("a hundred thousand tasks are fine");
        let mut wide = plan(1000);
        let name = "x".repeat(4000);
        wide.files =
            (0..400).map(|_| InputFile { url: name.clone(), ..wide.files[0].clone() }).collect();
        check_size_within(&wide, 1, BYTES_MAX).expect("names of 1.6 MB alone are fine");
        let error = check_size_within(&wide, 2000, BYTES_MAX).expect_err("with shards");
        let error = error.to_string();
        assert!(error.contains("2000 shards, at most 6291456"), "{error}");
        wide.files.extend_from_within(..150);
        let error = check_size_within(&wide, 1, BYTES_MAX).expect_err("too long");
        let error = error.to_string();
        assert!(error.contains("550 files"), "{error}");
        // The limit of the reader is the one that counts: shards alone go beyond it.
        let error = check_size(&plan(1000), 1_000_000).expect_err("too many shards");
        let error = error.to_string();
        let most = format!("at most {MANIFEST_BYTES_MAX} ");
        assert!(error.contains(&most), "{error}");
    }

    #[test]
    fn a_hundred_thousand_tasks_take_little_more_than_a_megabyte() {
        let plan = plan(50_000_000);
        assert_eq!(plan.train.len(), 100_000);
        let (_, bytes) = PlanFile::of(&plan, "file:///run").expect("short");
        assert!(bytes.len() < 1_700_000, "{} bytes", bytes.len());
    }
}
