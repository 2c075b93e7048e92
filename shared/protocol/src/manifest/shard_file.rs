//! The files of a shard in a checkpoint: one, or copies of equal content that stand in for each other.
//!
//! The pservers that hold a shard's replicas save the same bytes under different names. So the copies of a list have one
//! length and one MD5, and each of them restores the shard. The list of a manifest is the record of this redundancy.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::md5::Md5;
use super::sha256::Sha256;
use crate::ids::{CutId, Epoch, RunId, ShardId, Slot};

/// Copies of a shard at the most: its primary's and those of two backups.
pub const COPIES_MAX: usize = 3;

/// What the header of each shard file of a checkpoint names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutIdentity {
    /// The run.
    pub run: RunId,
    /// The cut.
    pub cut: CutId,
    /// The epoch that it was cut in.
    pub epoch: Epoch,
    /// How many shards the job has.
    pub shards: u32,
}

/// The files of one shard in a checkpoint. The fields beside `copies` are those of the first copy, so that programs that
/// do not read the list find one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardFile {
    /// The shard.
    pub shard: ShardId,
    /// Names the file: every attempt to write gets a new one.
    pub uuid: Uuid,
    /// Name in the checkpoint's directory: `shard-<5 digits>-<uuid>.ckpt`.
    pub file: String,
    /// Sum over the whole file.
    pub md5: Md5,
    /// Length of the file.
    pub bytes: u64,
    /// When it was written, milliseconds since 1970 by the writer's clock. For display.
    pub at_ms: u64,
    /// SHA-256 of the whole file, with `checkpoint.digest = "md5+sha256"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<Sha256>,
    /// All copies, the first one included; empty where the first one is the only one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copies: Vec<ShardCopy>,
}

/// One copy of a shard's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardCopy {
    /// Names the file.
    pub uuid: Uuid,
    /// Name in the checkpoint's directory, as [`ShardFile::file`].
    pub file: String,
    /// Sum over the whole file, the same for all copies.
    pub md5: Md5,
    /// Length of the file, the same for all copies.
    pub bytes: u64,
    /// When it was written, milliseconds since 1970 by the writer's clock. For display.
    pub at_ms: u64,
    /// SHA-256 of the whole file, the same for all copies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<Sha256>,
    /// The pserver that wrote it. For display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<Slot>,
}

impl ShardFile {
    /// The name that a shard's file has.
    #[must_use]
    pub fn name(shard: ShardId, uuid: Uuid) -> String {
        format!("shard-{:05}-{}.ckpt", shard.0, uuid.hyphenated())
    }

    /// The first copy, without the pserver that wrote it.
    #[must_use]
    pub fn first(&self) -> ShardCopy {
        let Self { uuid, file, md5, bytes, at_ms, sha256, .. } = self.clone();
        ShardCopy { uuid, file, md5, bytes, at_ms, sha256, holder: None }
    }

    /// Each copy, the first one first.
    #[must_use]
    pub fn copies(&self) -> Vec<ShardCopy> {
        match self.copies.is_empty() {
            true => vec![self.first()],
            false => self.copies.clone(),
        }
    }

    /// One copy of this shard as a file of its own.
    #[must_use]
    pub fn alone(&self, copy: ShardCopy) -> Self {
        let ShardCopy { uuid, file, md5, bytes, at_ms, sha256, .. } = copy;
        let (shard, copies) = (self.shard, Vec::new());
        Self { shard, uuid, file, md5, bytes, at_ms, sha256, copies }
    }

    /// Each copy as a file of its own, the first one first.
    #[must_use]
    pub fn files(&self) -> Vec<Self> {
        self.copies().into_iter().map(|copy| self.alone(copy)).collect()
    }

    /// Whether the list of copies fits the first one.
    ///
    /// # Errors
    /// The first contradiction.
    pub(super) fn check_copies(&self) -> Result<(), String> {
        let wrong = |what: String| Err(what);
        let Some(first) = self.copies.first() else {
            return Ok(());
        };
        if (ShardCopy { holder: None, ..first.clone() }) != self.first() {
            return wrong(format!("the first is {}, expected {}", first.file, self.file));
        }
        if self.copies.len() > COPIES_MAX {
            return wrong(format!("{} are listed, at most {COPIES_MAX}", self.copies.len()));
        }
        for (index, copy) in self.copies.iter().enumerate() {
            let expected = Self::name(self.shard, copy.uuid);
            if copy.file != expected {
                return wrong(format!("file name {:?}, expected {expected:?}", copy.file));
            }
            if (copy.md5, copy.bytes) != (self.md5, self.bytes) {
                return wrong(format!(
                    "{} has {} bytes and MD5 {}, {} has {} and {}",
                    copy.file, copy.bytes, copy.md5, self.file, self.bytes, self.md5
                ));
            }
            if copy.sha256 != self.sha256 {
                return wrong(format!("{} and {} differ in sha256", copy.file, self.file));
            }
            if self.copies[..index].iter().any(|other| other.uuid == copy.uuid) {
                return wrong(format!("{} is listed twice", copy.file));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The same file with a list of copies.
    pub(crate) fn with_copies(file: &ShardFile, count: u32) -> ShardFile {
        let copies = (0..count).map(|n| {
            let uuid = Uuid::from_u128(file.uuid.as_u128() + u128::from(n) * 100);
            let name = ShardFile::name(file.shard, uuid);
            ShardCopy { uuid, file: name, holder: Some(Slot::pserver(n)), ..file.first() }
        });
        ShardFile { copies: copies.collect(), ..file.clone() }
    }

    fn file() -> ShardFile {
        let (shard, uuid) = (ShardId(3), Uuid::from_u128(7));
        let file = ShardFile::name(shard, uuid);
        let md5 = Md5([0xab; 16]);
        ShardFile { shard, uuid, file, md5, bytes: 100, at_ms: 5, sha256: None, copies: Vec::new() }
    }

    fn refused(change: impl FnOnce(&mut Vec<ShardCopy>)) -> String {
        let mut wrong = with_copies(&file(), 2);
        change(&mut wrong.copies);
        wrong.check_copies().expect_err("refused")
    }

    #[test]
    fn each_copy_is_a_file_of_the_shard() {
        assert_eq!(file().files(), [file()]);
        let two = with_copies(&file(), 2);
        two.check_copies().expect("valid");
        let files = two.files();
        assert_eq!(files.len(), 2);
        assert_eq!(files[0], file());
        assert_ne!(files[1].file, files[0].file);
        assert_eq!((files[1].md5, files[1].bytes), (files[0].md5, files[0].bytes));
    }

    #[test]
    fn copies_that_contradict_each_other_are_refused() {
        assert!(refused(|copies| copies.reverse()).contains("the first is shard-00003-"));
        assert!(refused(|copies| copies[1].md5 = Md5([1; 16])).contains("has 100 bytes and MD5"));
        assert!(refused(|copies| copies[1].bytes = 9).contains("has 9 bytes"));
        assert!(refused(|copies| copies[1] = copies[0].clone()).contains("listed twice"));
        assert!(refused(|copies| copies[1].file = "../x".to_owned()).contains("file name"));
        let many = with_copies(&file(), 4).check_copies().expect_err("refused");
        assert_eq!(many, "4 are listed, at most 3");
    }
}
