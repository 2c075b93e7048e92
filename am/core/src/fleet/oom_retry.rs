//! Slots whose containers were ended for using more memory than they had.
//!
//! The same container again would end the same way, so the slot asks for more, as often as `yarn.memory-retry`
//! allows; that is told and not counted. After that the job ends and says which key to change: what does
//! not fit after being enlarged will not fit by trying.

use heddle_protocol::ids::{Role, Slot};
use heddle_protocol::spec::Bytes;

use crate::core::Core;

impl Core {
    /// The memory that the spec gives a slot, and the key that says so.
    fn spec_memory(&self, slot: Slot) -> (Bytes, &'static str) {
        let spec = &self.config.spec;
        match slot.role {
            Role::Pserver => (spec.pservers.memory, "pservers.memory"),
            Role::Trainer => (spec.trainers.memory, "trainers.memory"),
        }
    }

    /// What a slot asks for in place of the spec's memory.
    pub(crate) fn memory_of(&self, slot: Slot) -> Option<Bytes> {
        let retries = self.slots.entries.get(&slot)?.memory_retries;
        if retries == 0 {
            return None;
        }
        let (memory, _) = self.spec_memory(slot);
        self.config.spec.yarn.memory_retry.memory(memory, retries)
    }

    /// A container of the slot used too much: the next one gets more, or the job ends with these words.
    ///
    /// `retries`: of the slot when the container was asked for. The slot may ask for more since: then nothing changes.
    pub(crate) fn more_memory(
        &mut self,
        slot: Slot,
        retries: u32,
        error: &str,
    ) -> Result<(), String> {
        let (memory, key) = self.spec_memory(slot);
        let retry = self.config.spec.yarn.memory_retry;
        let Some(entry) = self.slots.entries.get_mut(&slot) else {
            return Ok(());
        };
        if retries < entry.memory_retries {
            return Ok(());
        }
        entry.memory_retries += 1;
        let retries = entry.memory_retries;
        match retry.memory(memory, retries) {
            Some(more) => {
                self.warn(format!(
                    "{slot} used more memory than it was given ({error}): it is asked for again with {more} instead of {key} = {memory}"
                ));
                Ok(())
            }
            None => Err(format!(
                "{slot} used more memory than it was given ({error}), {retries} times: raise {key} (now {memory}) or yarn.memory-overhead"
            )),
        }
    }
}
