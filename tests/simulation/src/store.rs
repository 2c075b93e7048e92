//! What outlives every process: journal, checkpoints, shard files, exported models; and how it fails.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use heddle_am_core::{Checkpoint, DamagedCheckpoint, Record, StoreCall, Stored};
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::ids::{CutId, SaveLease, SaveNo};
use heddle_protocol::manifest::{Manifest, ShardFile};
use uuid::Uuid;

use super::chance::Chance;
use super::pserver::Saved;

/// How one store call goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It is surely not done.
    Fails,
    /// Its outcome is unknown.
    Unknown,
    /// There is no room or quota for it.
    NoRoom,
}

/// An exported model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredExport {
    /// The checkpoint that it was made from.
    pub cut: CutId,
    /// Under which it was reported.
    pub lease: SaveLease,
}

/// What outlives every process.
#[derive(Clone, Debug, Default)]
pub struct Durable {
    /// All records, in order.
    pub journal: Vec<Record>,
    /// Complete checkpoints, oldest first, removed ones and those set aside left out.
    pub checkpoints: Vec<Checkpoint>,
    /// Shard files by name. Those of removed checkpoints stay, since nothing asks for them.
    pub files: BTreeMap<Uuid, Arc<Saved>>,
    /// Files whose content is not what was written.
    pub damaged: BTreeSet<Uuid>,
    /// Cuts of initial values that a shard took when its values had changed.
    pub changed_before: BTreeSet<CutId>,
    /// The highest claim.
    pub generation: u32,
    /// Exported folders in the output directory, by name.
    pub exports: BTreeMap<String, StoredExport>,
    /// The checkpoint whose model is published.
    pub published: Option<CutId>,
    /// Of each published save, the checkpoint that it was made from.
    pub saves: BTreeMap<SaveNo, CutId>,
    /// How the next calls go wrong.
    pub troubles: VecDeque<Trouble>,
}

impl Durable {
    /// Whether a file of every shard of a checkpoint is what was written.
    #[must_use]
    pub fn is_whole(&self, checkpoint: &Checkpoint) -> bool {
        let is_good = |file: &ShardFile| !self.damaged.contains(&file.uuid);
        checkpoint.manifest.shards.iter().all(|shard| shard.files().iter().any(is_good))
    }

    /// The newest whole checkpoint, below `below`. Damaged ones that are passed over are set aside.
    pub fn newest_whole(
        &mut self,
        below: Option<CutId>,
    ) -> (Option<Checkpoint>, Vec<DamagedCheckpoint>) {
        let mut aside = Vec::new();
        while let Some(last) = self.checkpoints.last().cloned() {
            let cut = last.manifest.cut;
            let is_below = below.is_none_or(|below| cut < below);
            if is_below && self.is_whole(&last) {
                return (Some(last), aside);
            }
            self.checkpoints.pop();
            if is_below {
                aside.push(DamagedCheckpoint {
                    cut,
                    dir: format!("{}.damaged", last.dir),
                    error: "a file is not what was written".to_owned(),
                });
            }
        }
        (None, aside)
    }

    /// A number that distinguishes checkpoints by what a job that continues from the newest gets: where its work stands, its
    /// scores, the content of its files. When it was made, and by whom, is left out.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let mut print = Fingerprint::default();
        if let Some(checkpoint) = self.checkpoints.last() {
            let manifest = &checkpoint.manifest;
            let Manifest { phase, work, .. } = &**manifest;
            let scores: Vec<_> = manifest.evaluations.iter().map(|e| e.figures.loss()).collect();
            print.add(format!("{phase:?} {work:?} {scores:?}").as_bytes());
            for file in manifest.shards.iter().filter_map(|f| self.files.get(&f.uuid)) {
                for values in &file.sections {
                    values.iter().for_each(|value| print.add(&value.to_le_bytes()));
                }
                print.add(&file.head.dedup_state);
            }
        }
        print.0
    }

    /// Does a store call of an attempt, as far as storage lets it.
    pub fn call(
        &mut self,
        generation: u32,
        call: &StoreCall,
        is_down: bool,
        chance: &mut Chance,
    ) -> Stored {
        let failure = || Failure::new(ErrorClass::Unreachable, "the storage does not answer");
        if is_down {
            return Stored::NotDone { failure: failure() };
        }
        match self.troubles.pop_front() {
            None => self.store(generation, call),
            Some(Trouble::Fails) => Stored::NotDone { failure: failure() },
            // Reading and removing need none.
            Some(Trouble::NoRoom)
                if matches!(
                    call,
                    StoreCall::OlderBase { .. }
                        | StoreCall::Retain { .. }
                        | StoreCall::Discard { .. }
                ) =>
            {
                self.store(generation, call)
            }
            Some(Trouble::NoRoom) => {
                let failure = Failure::new(ErrorClass::Denied, "the quota is exceeded");
                Stored::NotDone { failure }
            }
            Some(Trouble::Unknown) => {
                if chance.one_in(2) {
                    let _lost = self.store(generation, call);
                }
                Stored::Unknown { failure: failure() }
            }
        }
    }

    /// Does a store call.
    pub fn store(&mut self, generation: u32, call: &StoreCall) -> Stored {
        if generation != self.generation {
            return Stored::Fenced { error: format!("generation {}", self.generation) };
        }
        match call {
            StoreCall::Stage { cut } => Stored::Staged(format!("/staging/{cut}")),
            StoreCall::Commit { manifest, .. } => {
                let cut = manifest.cut;
                let known = self.checkpoints.iter().find(|c| c.manifest.cut == cut);
                if let Some(known) = known {
                    // It recognises its own manifest.
                    return Stored::Committed(Box::new(known.clone()));
                }
                let checkpoint = Checkpoint {
                    dir: format!("/checkpoints/{cut}"),
                    manifest: Arc::new((**manifest).clone()),
                };
                self.checkpoints.push(checkpoint.clone());
                Stored::Committed(Box::new(checkpoint))
            }
            StoreCall::Discard { .. } | StoreCall::ReplaceCopies { .. } => Stored::Done,
            StoreCall::Retain { keep, base, best, held, .. } => {
                let excess = self.checkpoints.len().saturating_sub(*keep as usize);
                let mut seen = 0;
                self.checkpoints.retain(|checkpoint| {
                    seen += 1;
                    let cut = checkpoint.manifest.cut;
                    seen > excess || cut == *base || [*best, *held].contains(&Some(cut))
                });
                Stored::Done
            }
            StoreCall::OlderBase { below, error } => {
                let (base, mut damaged) = self.newest_whole(Some(*below));
                let (dir, error) = (format!("{below}.damaged"), error.clone());
                damaged.insert(0, DamagedCheckpoint { cut: *below, dir, error });
                Stored::Base { base: base.map(Box::new), damaged }
            }
            StoreCall::PublishModel { save, dir, model, checkpoint, .. } => {
                match self.exports.get(model) {
                    Some(export) if export.cut == *checkpoint => {
                        match save {
                            SaveNo(0) => self.published = Some(*checkpoint),
                            // One that is there stays.
                            save => _ = self.saves.entry(*save).or_insert(*checkpoint),
                        }
                        Stored::Published(dir.clone())
                    }
                    of => Stored::NotDone {
                        failure: Failure::new(
                            ErrorClass::Internal,
                            format!("{model} holds the model of {of:?}"),
                        ),
                    },
                }
            }
        }
    }
}

/// FNV-1a, 64 bits.
struct Fingerprint(u64);

impl Default for Fingerprint {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fingerprint {
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}
