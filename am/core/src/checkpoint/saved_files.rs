//! The files of the open cut: one for each shard, and with `checkpoint.copies` those of backups.
//!
//! A backup takes its snapshot at the same place of the shard's stream as the primary. So all files of a shard are **equal**:
//! the same length and the same sums. Two that differ show a changed bit in the memory of one pserver, or two states with one
//! name. Nothing of such a cut becomes a checkpoint.
//!
//! A cut needs one file of each shard. It waits for all others, also for those of primaries whose backups were faster, until
//! each shard has one, and then for [`COPIES_WAIT_MS`]. A pserver that is lost, or cannot save, is not waited for.

use std::collections::{BTreeMap, BTreeSet};

use heddle_protocol::ids::{ShardId, Slot};
use heddle_protocol::manifest::{ShardCopy, ShardFile};
use heddle_protocol::mutation::Mutation;

/// How long a cut waits for further files of its shards when each shard has one.
pub(super) const COPIES_WAIT_MS: u64 = 30_000;

/// The files so far, and those that are awaited beside that of each primary.
#[derive(Clone, Debug, Default)]
pub(crate) struct SavedFiles {
    /// In the order in which they came, but that of the primary first.
    files: BTreeMap<ShardId, Vec<(Slot, ShardFile)>>,
    /// Pservers that save their copy of a shard. No list is empty.
    awaited: BTreeMap<ShardId, BTreeSet<Slot>>,
    /// Shards whose primary has saved them.
    of_primaries: BTreeSet<ShardId>,
    /// Shards whose primary does not save them: it failed, or was lost.
    unsaved: BTreeSet<ShardId>,
    /// No file is waited for any more.
    waited_enough: bool,
    /// Why fewer files than wanted came.
    causes: BTreeSet<String>,
}

/// Two pservers saved different bytes of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DifferingFiles {
    pub shard: ShardId,
    pub holders: [Slot; 2],
}

impl SavedFiles {
    /// The files of backups are awaited.
    pub(super) fn expecting(savers: BTreeMap<ShardId, BTreeSet<Slot>>) -> Self {
        debug_assert!(savers.values().all(|slots| !slots.is_empty()), "no list is empty");
        Self { awaited: savers, ..Self::default() }
    }

    /// The primary of the shard is lost. Its successor has the snapshot, and saves it if there is no file of the shard yet.
    pub(super) fn promoted(&mut self, shard: ShardId, slot: Slot) {
        self.unsaved.insert(shard);
        if !self.has(shard) {
            self.awaited.entry(shard).or_default().insert(slot);
        }
    }

    /// Whether the file of this pserver is awaited beside that of the primary.
    pub(super) fn awaits(&self, slot: Slot, shard: ShardId) -> bool {
        self.awaited.get(&shard).is_some_and(|slots| slots.contains(&slot))
    }

    /// The shards whose copies this pserver is to save beside those that it serves.
    pub(super) fn awaited_of(&self, slot: Slot) -> Vec<ShardId> {
        let of_slot = self.awaited.iter().filter(|(_, slots)| slots.contains(&slot));
        of_slot.map(|(shard, _)| *shard).collect()
    }

    /// Pservers whose copies are awaited.
    pub(super) fn awaited_slots(&self) -> BTreeSet<Slot> {
        self.awaited.values().flatten().copied().collect()
    }

    /// A file is durable.
    ///
    /// # Errors
    /// It is not equal to one that came before.
    pub(super) fn add(&mut self, slot: Slot, file: ShardFile) -> Result<(), DifferingFiles> {
        let shard = file.shard;
        let is_copy = self.awaits(slot, shard);
        self.stop_awaiting(shard, slot);
        let files = self.files.entry(shard).or_default();
        files.retain(|(holder, _)| *holder != slot);
        let sums = |file: &ShardFile| (file.md5, file.bytes, file.sha256);
        let other = files.iter().find(|(_, other)| sums(other) != sums(&file));
        if let Some((holder, _)) = other.filter(|_| !Mutation::CopiesAreNotCompared.is_on()) {
            return Err(DifferingFiles { shard, holders: [*holder, slot] });
        }
        let at = if is_copy { files.len() } else { 0 };
        files.insert(at, (slot, file));
        if !is_copy {
            self.of_primaries.insert(shard);
        }
        Ok(())
    }

    /// A pserver could not save its copy.
    pub(super) fn fail(&mut self, slot: Slot, shard: ShardId, cause: String) {
        if !self.awaits(slot, shard) {
            self.unsaved.insert(shard);
        }
        self.stop_awaiting(shard, slot);
        self.causes.insert(cause);
    }

    /// Whether no file of some shard is left to come.
    pub(super) fn is_hopeless(&self) -> bool {
        self.unsaved.iter().any(|shard| !self.has(*shard) && !self.awaited.contains_key(shard))
    }

    /// A pserver is lost: its copies are not waited for.
    pub(super) fn lose(&mut self, slot: Slot) {
        let before: usize = self.awaited.values().map(BTreeSet::len).sum();
        self.awaited.retain(|_, slots| {
            slots.remove(&slot);
            !slots.is_empty()
        });
        if self.awaited.values().map(BTreeSet::len).sum::<usize>() < before {
            self.causes.insert(format!("{slot} was lost"));
        }
    }

    /// No file is waited for any more.
    pub(super) fn stop_waiting(&mut self) {
        let wait_s = COPIES_WAIT_MS / 1_000;
        let late = self.files.keys().filter(|shard| self.awaits_primary(**shard));
        let cause =
            |shard| format!("the primary of shard {shard} did not save it within {wait_s} s");
        let causes: Vec<String> = late.map(cause).collect();
        self.causes.extend(causes);
        self.waited_enough = true;
        for (shard, slots) in std::mem::take(&mut self.awaited) {
            let slots: Vec<String> = slots.iter().map(Slot::to_string).collect();
            let slots = slots.join(" and ");
            self.causes.insert(format!("{slots} did not save shard {shard} within {wait_s} s"));
        }
    }

    fn stop_awaiting(&mut self, shard: ShardId, slot: Slot) {
        if let Some(slots) = self.awaited.get_mut(&shard) {
            slots.remove(&slot);
            if slots.is_empty() {
                self.awaited.remove(&shard);
            }
        }
    }

    /// Whether the shard has a file.
    pub(super) fn has(&self, shard: ShardId) -> bool {
        self.files.get(&shard).is_some_and(|files| !files.is_empty())
    }

    /// Shards with a file.
    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    /// Whether further files of shards that have one are awaited.
    pub(super) fn awaits_any(&self) -> bool {
        !self.awaited.is_empty() || self.files.keys().any(|shard| self.awaits_primary(*shard))
    }

    /// Whether the file of the shard's primary is to come.
    fn awaits_primary(&self, shard: ShardId) -> bool {
        let is_over = self.of_primaries.contains(&shard) || self.unsaved.contains(&shard);
        !self.waited_enough && !is_over
    }

    /// The files, as a manifest lists them.
    pub(super) fn listed(&self) -> Vec<ShardFile> {
        self.files.values().filter_map(|files| list(files)).collect()
    }

    /// What a warning has to report: shards with fewer files than `wanted`, and why.
    pub(super) fn shortage(&self, wanted: u32) -> Option<(Vec<ShardId>, String)> {
        let lacks = |files: &Vec<(Slot, ShardFile)>| files.len() < wanted as usize;
        let lacking = self.files.iter().filter(|(_, files)| lacks(files));
        let shards: Vec<ShardId> = lacking.map(|(shard, _)| *shard).collect();
        let causes: Vec<&str> = self.causes.iter().take(3).map(String::as_str).collect();
        let cause = match causes.is_empty() {
            true => "these shards have too few backups".to_owned(),
            false => causes.join("; "),
        };
        (!shards.is_empty()).then_some((shards, cause))
    }
}

/// One entry of a manifest: the first file, with the list of all if there are several.
fn list(files: &[(Slot, ShardFile)]) -> Option<ShardFile> {
    let (_, first) = files.first()?;
    let copy = |(slot, file): &(Slot, ShardFile)| ShardCopy { holder: Some(*slot), ..file.first() };
    let copies = match files.len() {
        1 => Vec::new(),
        _ => files.iter().map(copy).collect(),
    };
    Some(ShardFile { copies, ..first.clone() })
}

#[cfg(test)]
mod tests {
    use heddle_protocol::manifest::Md5;
    use uuid::Uuid;

    use super::*;

    fn file(shard: u32, uuid: u128, md5: u8) -> ShardFile {
        let (shard, uuid) = (ShardId(shard), Uuid::from_u128(uuid));
        ShardFile {
            shard,
            uuid,
            file: ShardFile::name(shard, uuid),
            md5: Md5([md5; 16]),
            bytes: 8,
            at_ms: 0,
            sha256: None,
            copies: Vec::new(),
        }
    }

    fn awaiting(shards: u32, slots: &[u32]) -> SavedFiles {
        let slots: BTreeSet<Slot> = slots.iter().map(|&slot| Slot::pserver(slot)).collect();
        SavedFiles::expecting((0..shards).map(|shard| (ShardId(shard), slots.clone())).collect())
    }

    #[test]
    fn a_manifest_lists_the_primary_s_file_first() {
        let mut files = awaiting(1, &[1]);
        assert_eq!(files.add(Slot::pserver(1), file(0, 1, 7)), Ok(()));
        assert!(files.has(ShardId(0)) && files.awaits_any(), "the primary saves it as well");
        assert_eq!(files.add(Slot::pserver(0), file(0, 2, 7)), Ok(()));
        assert!(!files.awaits_any());
        let listed = files.listed();
        assert_eq!(listed[0].uuid, Uuid::from_u128(2));
        let holders: Vec<_> = listed[0].copies.iter().map(|copy| copy.holder).collect();
        assert_eq!(holders, [Some(Slot::pserver(0)), Some(Slot::pserver(1))]);
        assert_eq!(files.shortage(2), None);
    }

    #[test]
    fn one_file_is_listed_without_copies() {
        let mut files = SavedFiles::default();
        files.add(Slot::pserver(0), file(0, 2, 7)).expect("the first one");
        assert_eq!(files.listed(), [file(0, 2, 7)]);
    }

    #[test]
    fn files_that_differ_name_both_holders() {
        let mut files = awaiting(1, &[1]);
        files.add(Slot::pserver(0), file(0, 2, 7)).expect("the first one");
        let differing = files.add(Slot::pserver(1), file(0, 1, 8)).expect_err("another sum");
        assert_eq!(differing.holders, [Slot::pserver(0), Slot::pserver(1)]);
        let short = ShardFile { bytes: 7, ..file(0, 1, 7) };
        files.add(Slot::pserver(1), short).expect_err("another length");
    }

    #[test]
    fn who_is_not_waited_for_is_named() {
        let mut files = awaiting(2, &[1]);
        for shard in [0, 1] {
            files.add(Slot::pserver(0), file(shard, u128::from(shard), 7)).expect("equal");
        }
        files.fail(Slot::pserver(1), ShardId(0), "pserver-1 has no room".to_owned());
        assert!(!files.is_hopeless(), "each shard has a file");
        assert!(files.awaits(Slot::pserver(1), ShardId(1)));
        files.stop_waiting();
        assert!(!files.awaits_any());
        let (shards, cause) = files.shortage(2).expect("one file of each");
        assert_eq!(shards, [ShardId(0), ShardId(1)]);
        assert_eq!(cause, "pserver-1 did not save shard 1 within 30 s; pserver-1 has no room");
    }

    #[test]
    fn a_shard_without_any_file_is_hopeless() {
        let cause = || "disk full".to_owned();
        for order in [[0, 1], [1, 0]] {
            let mut files = awaiting(1, &[1]);
            files.fail(Slot::pserver(order[0]), ShardId(0), cause());
            assert!(!files.is_hopeless(), "the other one saves it");
            files.fail(Slot::pserver(order[1]), ShardId(0), cause());
            assert!(files.is_hopeless());
        }
        let mut files = SavedFiles::default();
        files.promoted(ShardId(0), Slot::pserver(1));
        assert_eq!(files.awaited_of(Slot::pserver(1)), [ShardId(0)]);
        files.lose(Slot::pserver(1));
        assert!(files.is_hopeless());
    }
}
