//! Trainers that wait for the storage of their input, as one fact about the job.
//!
//! Trainers report the longest wait of their readers with each heartbeat. The job waits from the first such report until
//! no trainer waits any more. Nothing is decided by it: a wait is reported so that an outage of HDFS is not taken for
//! slow training. A heartbeat costs the same however many trainers wait.

use std::collections::BTreeSet;

use heddle_protocol::control::InputWait;
use heddle_protocol::ids::Slot;
use heddle_protocol::view::{JobEvent, StorageWaitView};

use super::Fleet;
use crate::context::Context;

/// A shorter wait is that of a slow disk or a busy NameNode.
const WAIT_REPORTED_MS: u64 = 3_000;

/// The trainers that wait, and the wait as it is reported.
#[derive(Clone, Debug, Default)]
pub(crate) struct StorageWait {
    waiting: BTreeSet<Slot>,
    view: Option<StorageWaitView>,
}

impl StorageWait {
    /// The present wait.
    pub(crate) fn view(&self) -> Option<StorageWaitView> {
        let trainers = u32::try_from(self.waiting.len()).unwrap_or(u32::MAX);
        self.view.clone().map(|view| StorageWaitView { trainers, ..view })
    }
}

impl Fleet {
    /// A heartbeat reports what the trainer's readers wait for, if anything.
    pub(super) fn storage_wait_reported(
        &mut self,
        slot: Slot,
        wait: Option<&InputWait>,
        ctx: &mut Context,
    ) {
        let Some(wait) = wait.filter(|wait| wait.for_ms >= WAIT_REPORTED_MS) else {
            return self.storage_wait_over(slot, ctx);
        };
        let since_ms = ctx.wall_ms().saturating_sub(wait.for_ms);
        self.storage_wait.waiting.insert(slot);
        match &mut self.storage_wait.view {
            Some(view) => {
                view.since_ms = view.since_ms.min(since_ms);
                // An error has more information than silence, and the newest error more than the first.
                if !wait.error.is_empty() && view.error != wait.error {
                    view.error.clone_from(&wait.error);
                }
            }
            None => {
                let view = StorageWaitView {
                    since_ms,
                    ended_ms: None,
                    trainers: 1,
                    file: wait.file.clone(),
                    error: wait.error.clone(),
                };
                self.storage_wait.view = Some(view.clone());
                ctx.notice(JobEvent::StorageWait(view));
            }
        }
    }

    /// No reader of this slot waits: they read, or its container is gone.
    pub(super) fn storage_wait_over(&mut self, slot: Slot, ctx: &mut Context) {
        if !self.storage_wait.waiting.remove(&slot) || !self.storage_wait.waiting.is_empty() {
            return;
        }
        if let Some(mut view) = self.storage_wait.view.take() {
            view.ended_ms = Some(ctx.wall_ms());
            ctx.notice(JobEvent::StorageWait(view));
        }
    }
}
