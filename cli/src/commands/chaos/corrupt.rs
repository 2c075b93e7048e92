//! The fault `corrupt`: a byte of a shard's file of the newest checkpoint changes, as on a disk that returns other bytes than it got.
//!
//! The command writes the file again, since neither HDFS nor the savers can change a file in place. Nothing happens until the job
//! needs the checkpoint: then it must take a copy of the file, or an older checkpoint.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use heddle_protocol::job_spec::OnCorrupt;
use heddle_protocol::view::JobView;
use heddle_storage::checkpoint::is_shard_file_name;
use heddle_storage::{EntryKind, Mode, Storage, StorePath, chain};

use crate::commands::checkpoint_source::{location, reached};
use crate::job::NamedJob;

/// A file of a checkpoint, before it is corrupted.
pub struct CorruptedFile {
    storage: Arc<dyn Storage>,
    dir: String,
    path: StorePath,
    bytes: u64,
}

impl CorruptedFile {
    /// Chooses a file of the newest checkpoint. `corrupted`: directories of checkpoints with a corrupted file.
    ///
    /// # Errors
    /// Why none is: no good copy and no older checkpoint would stay, or the storage does not respond.
    pub async fn choose(
        view: &JobView,
        job: &mut dyn NamedJob,
        corrupted: &[String],
        draw: u32,
    ) -> Result<Self, String> {
        let spec = job.spec().await.map_err(|failure| failure.fact)?.checkpoint;
        let good: Vec<&String> = view
            .checkpoints
            .iter()
            .map(|checkpoint| &checkpoint.dir)
            .filter(|dir| !corrupted.contains(dir))
            .collect();
        let (Some(newest), Some(last)) = (view.checkpoints.last(), good.last()) else {
            return Err("there is no checkpoint".to_owned());
        };
        if newest.dir != **last {
            return Err("the newest checkpoint has a corrupted file already".to_owned());
        }
        let has_older = good.len() > 1 && spec.on_corrupt == OnCorrupt::Previous;
        if spec.copies < 2 && !has_older {
            return Err("no good copy and no older checkpoint would stay".to_owned());
        }
        let place = location(&newest.dir).map_err(|failure| failure.fact)?;
        let storage = reached(&place).await.map_err(|failure| failure.fact)?;
        let entries = storage.list(place.path()).await.map_err(|error| chain(&error))?;
        let files: Vec<_> = entries
            .into_iter()
            .filter(|entry| entry.kind == EntryKind::File && is_shard_file_name(entry.name()))
            .collect();
        let at = draw as usize % files.len().max(1);
        let file = files.get(at).ok_or("the checkpoint has no file")?;
        let (path, bytes) = (file.path.clone(), file.bytes);
        Ok(Self { storage, dir: newest.dir.clone(), path, bytes })
    }

    /// Changes the byte in its middle, which is a value or a state. Returns the directory.
    ///
    /// # Errors
    /// The storage refuses; the file stays as it was.
    pub async fn corrupt(self) -> Result<String, String> {
        let name = format!("{}.corrupted", self.path.name());
        let other = self.path.parent().and_then(|dir| dir.join(&name).ok()).ok_or("no folder")?;
        let written = self.write_to(&other).await;
        if written.is_err() {
            // As far as it exists.
            let _best_effort = self.storage.delete_file(&other).await;
        }
        written?;
        self.storage.replace(&other, &self.path).await.map_err(|error| chain(&error))?;
        Ok(self.dir)
    }

    async fn write_to(&self, other: &StorePath) -> Result<(), String> {
        let (target, mut at) = (self.bytes / 2, 0);
        let mut reader = self.storage.open(&self.path, 0).await.map_err(|error| chain(&error))?;
        let mut writer =
            self.storage.create(other, Mode::FILE).await.map_err(|error| chain(&error))?;
        while let Some(piece) = reader.next().await.map_err(|error| chain(&error))? {
            let piece = flipped(piece, target.checked_sub(at));
            at += piece.len() as u64;
            writer.write(piece).await.map_err(|error| chain(&error))?;
        }
        writer.close().await.map_err(|error| chain(&error))
    }
}

/// The bytes, the one at `at` inverted if there is one.
fn flipped(piece: Bytes, at: Option<u64>) -> Bytes {
    match at.and_then(|at| usize::try_from(at).ok()).filter(|at| *at < piece.len()) {
        None => piece,
        Some(at) => {
            let mut piece = BytesMut::from(&piece[..]);
            piece[at] = !piece[at];
            piece.freeze()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_byte_changes_and_only_in_its_piece() {
        let piece = Bytes::from_static(&[1, 2, 3]);
        assert_eq!(flipped(piece.clone(), Some(1)), [1, !2, 3][..]);
        assert_eq!(flipped(piece.clone(), Some(3)), [1, 2, 3][..]);
        assert_eq!(flipped(piece, None), [1, 2, 3][..]);
    }
}
