//! Storage that fails: single calls, all of it for a while, the journal for good, files that are damaged.

use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::ids::Role;
use heddle_protocol::manifest::ShardFile;

use super::super::super::chance::Chance;
use super::super::super::fault::Fault;
use super::super::super::store::Trouble;
use super::super::{STORE, Wire, World};
use super::one;

impl World {
    pub(super) fn calls_go_wrong(&mut self, fault: Fault, chance: &mut Chance) -> bool {
        let how = match fault {
            Fault::CallUnknown => Trouble::Unknown,
            Fault::NoRoom => Trouble::NoRoom,
            _ => Trouble::Fails,
        };
        let count = 1 + chance.below(3);
        self.durable.troubles.extend(std::iter::repeat_n(how, count));
        // A search for an older checkpoint is not tried again, and several such faults outlast all tries.
        self.trouble.excused.insert(match how {
            Trouble::NoRoom => ExitCode::Denied,
            Trouble::Fails | Trouble::Unknown => ExitCode::Unreachable,
        });
        true
    }

    /// What the ApplicationMaster has asked the storage for is not answered for a while.
    pub(super) fn calls_hang(&mut self, chance: &mut Chance) -> bool {
        let Some(leader) = self.leader else { return false };
        self.linger(Wire::Am(leader, STORE), chance);
        true
    }

    /// No call, save, load or export succeeds, and no record is written.
    pub(super) fn storage_goes_down(&mut self, chance: &mut Chance) -> bool {
        self.trouble.storage_down_until = self.events + chance.below(300) as u64;
        self.trouble.excused.insert(ExitCode::Unreachable);
        true
    }

    pub(super) fn journal_fails(&mut self) -> bool {
        self.trouble.journal_fails = true;
        self.trouble.excused.insert(ExitCode::Unreachable);
        true
    }

    /// A bit changes in the memory of backups: their next files are not equal to those of the primaries.
    pub(super) fn flip_one(&mut self, chance: &mut Chance) -> bool {
        if self.job.copies < 2 {
            return false;
        }
        let Some(number) = self.choose(&self.of_role(Role::Pserver), chance) else {
            return false;
        };
        let Some(pserver) = self.pserver(number) else {
            return false;
        };
        pserver.flips += 1;
        // The third time within an hour.
        self.trouble.excused.insert(ExitCode::Internal);
        true
    }

    /// A file of a checkpoint is not any more what was written.
    pub(super) fn corrupt_one(&mut self, chance: &mut Chance) -> bool {
        if self.trouble.is_decided {
            // A reader would detect it, but no job reads it.
            return false;
        }
        let checkpoints = &self.durable.checkpoints;
        // The newest is the one that is read.
        let from = checkpoints.len().saturating_sub(1 + chance.below(2));
        let files = checkpoints.iter().skip(from).flat_map(|c| &c.manifest.shards);
        let files = files.flat_map(ShardFile::files);
        let files: Vec<_> = files.map(|file| file.uuid).collect();
        let file = one(&files, chance);
        if let Some(file) = file {
            self.durable.damaged.insert(file);
        }
        file.is_some()
    }
}
