//! Retries with more memory, for slots whose containers exceeded their memory limit.
//!
//! A container of the same size would end the same way. The slot asks for more memory, as often as `yarn.memory-retry`
//! allows; this is reported and does not count as a failure. After that the job ends with an error that names the key to
//! change: what does not fit after being enlarged does not fit by trying again.

use heddle_protocol::ids::{Role, Slot};
use heddle_protocol::job_spec::Bytes;
use heddle_protocol::view::WarningCode;

use super::Fleet;
use crate::context::Context;

/// The memory that the job file gives a slot, and its key.
fn spec_memory(slot: Slot, ctx: &Context) -> (Bytes, &'static str) {
    let config = ctx.config();
    match slot.role {
        Role::Pserver => (config.spec.pservers.memory, "pservers.memory"),
        Role::Trainer => (config.spec.trainers.memory, "trainers.memory"),
    }
}

impl Fleet {
    /// What a slot asks for instead of the job file's memory.
    pub(crate) fn memory_of(&self, slot: Slot, ctx: &Context) -> Option<Bytes> {
        let retries = self.slots.entries.get(&slot)?.memory_retries;
        if retries == 0 {
            return None;
        }
        let (memory, _) = spec_memory(slot, ctx);
        ctx.config().spec.yarn.memory_retry.memory(memory, retries)
    }

    /// A container of the slot exceeded its memory: the next one gets more.
    ///
    /// `retries`: of the slot when the container was asked for. If the slot asks for more since then, nothing changes.
    ///
    /// # Errors
    /// No retry is left; the error ends the job.
    pub(super) fn more_memory(
        &mut self,
        slot: Slot,
        retries: u32,
        error: &str,
        ctx: &mut Context,
    ) -> Result<(), String> {
        let (memory, key) = spec_memory(slot, ctx);
        let retry = ctx.config().spec.yarn.memory_retry;
        let Some(entry) = self.slots.entries.get_mut(&slot) else {
            debug_assert!(false, "{slot} had a container");
            return Ok(());
        };
        if retries < entry.memory_retries {
            return Ok(());
        }
        entry.memory_retries += 1;
        let retries = entry.memory_retries;
        match retry.memory(memory, retries) {
            Some(more) => {
                ctx.warn(WarningCode::MemoryRaised, format!(
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
