//! The export of a model: one trainer at a time writes it under a lease, then the store publishes it.
//!
//! One trainer is elected and writes the committed checkpoint's model into a folder of its own; the store moves the files to
//! their names, or names the folder. So two ApplicationMasters that both believe to lead never write one file.
//!
//! **Lease.** Each election has a number above all earlier ones, and only a report with the last number counts. The lease lasts
//! `output.save-lease` from the election and from each heartbeat that shows progress. A trainer that is lost, reports a
//! failure or lets its lease lapse is followed by another; what it writes later is not published.
//!
//! The same rule holds for the model at the end of the job and for saves that a trainer's program asks for during training.

use std::collections::BTreeSet;

use heddle_protocol::control::{ExportProgress, ExportedFile, ExportedModel};
use heddle_protocol::ids::{Member, SaveLease};
use heddle_protocol::mutation::Mutation;

/// How far the export is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum ExportState {
    /// No trainer writes.
    #[default]
    Electing,
    /// This trainer writes.
    Writing(ElectedWriter),
    /// The model is written: the folder, and the files.
    Written(String, Vec<ExportedFile>),
    /// The store publishes it.
    Publishing(String, Vec<ExportedFile>),
}

/// The elected trainer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ElectedWriter {
    pub member: Member,
    pub lease: SaveLease,
    /// What its last heartbeat showed.
    bytes: u64,
}

/// The model on its way out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ModelExport {
    state: ExportState,
    failures: u32,
    /// Trainers that failed or let their lease lapse: others are elected first.
    failed: BTreeSet<Member>,
}

/// What the export needs next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ExportStep {
    /// Wait for a trainer or for the store.
    Wait,
    /// Elect a trainer.
    Elect,
    /// Publish these files of this folder.
    Publish(String, Vec<ExportedFile>),
}

impl ModelExport {
    pub(crate) fn next(&self) -> ExportStep {
        match &self.state {
            ExportState::Electing => ExportStep::Elect,
            ExportState::Writing(_) | ExportState::Publishing(..) => ExportStep::Wait,
            ExportState::Written(dir, files) => ExportStep::Publish(dir.clone(), files.clone()),
        }
    }

    /// The trainer that writes the model and has not reported it.
    pub(crate) fn writer(&self) -> Option<ElectedWriter> {
        match self.state {
            ExportState::Writing(writer) => Some(writer),
            ExportState::Electing | ExportState::Written(..) | ExportState::Publishing(..) => None,
        }
    }

    /// Whether this trainer writes the model under this lease.
    pub(crate) fn is_writer(&self, member: Member, lease: SaveLease) -> bool {
        self.writer().is_some_and(|writer| {
            (writer.member, writer.lease) == (member, lease) || Mutation::AnySaveLease.is_on()
        })
    }

    /// Whether this trainer failed to write the model before.
    pub(crate) fn has_failed(&self, member: Member) -> bool {
        self.failed.contains(&member)
    }

    /// This trainer gets the order.
    pub(crate) fn elect(&mut self, member: Member, lease: SaveLease) {
        debug_assert_eq!(self.state, ExportState::Electing);
        self.state = ExportState::Writing(ElectedWriter { member, lease, bytes: 0 });
    }

    /// A heartbeat of a trainer shows how far it has written. Returns whether that renews its lease.
    pub(crate) fn progress(&mut self, member: Member, progress: ExportProgress) -> bool {
        let ExportState::Writing(writer) = &mut self.state else { return false };
        let is_its = (writer.member, writer.lease) == (member, progress.lease);
        let grows = is_its && progress.bytes > writer.bytes;
        if grows {
            writer.bytes = progress.bytes;
        }
        grows
    }

    /// The writer is gone.
    pub(crate) fn elect_again(&mut self) {
        self.state = ExportState::Electing;
    }

    /// The writer has failed, or its lease has lapsed.
    pub(crate) fn writer_failed(&mut self) {
        if let Some(writer) = self.writer() {
            self.failed.insert(writer.member);
        }
        self.elect_again();
    }

    /// The writer has written the model.
    pub(crate) fn written(&mut self, model: ExportedModel) {
        self.state = ExportState::Written(model.dir, model.files);
    }

    /// The store publishes the model.
    pub(crate) fn publishing(&mut self) {
        match std::mem::take(&mut self.state) {
            ExportState::Written(dir, files) => {
                self.state = ExportState::Publishing(dir, files);
            }
            other => {
                debug_assert!(false, "only a written model is published");
                self.state = other;
            }
        }
    }

    /// The store has answered.
    pub(crate) fn publish_answered(&mut self) {
        if let ExportState::Publishing(dir, files) = std::mem::take(&mut self.state) {
            self.state = ExportState::Written(dir, files);
        }
    }

    /// A try failed. Returns how many have.
    pub(crate) fn count_failure(&mut self) -> u32 {
        self.failures += 1;
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use heddle_protocol::ids::{Generation, Incarnation, Slot};

    use super::*;

    fn trainer(index: u32) -> Member {
        Member { slot: Slot::trainer(index), incarnation: Incarnation(1) }
    }

    fn lease(count: u32) -> SaveLease {
        SaveLease { generation: Generation(1), count }
    }

    #[test]
    fn only_growth_under_the_last_lease_renews_it() {
        let mut export = ModelExport::default();
        export.elect(trainer(0), lease(1));
        let mut renews = |member, count, bytes| {
            export.progress(member, ExportProgress { lease: lease(count), bytes })
        };
        assert!(!renews(trainer(0), 1, 0), "no byte yet");
        assert!(renews(trainer(0), 1, 5));
        assert!(!renews(trainer(0), 1, 5), "it stands still");
        assert!(!renews(trainer(1), 1, 9) && !renews(trainer(0), 2, 9), "not its lease");
        export.writer_failed();
        assert!(export.has_failed(trainer(0)) && export.next() == ExportStep::Elect);
        export.elect(trainer(0), lease(2));
        assert!(!export.is_writer(trainer(0), lease(1)) && export.is_writer(trainer(0), lease(2)));
        assert!(!export.progress(trainer(0), ExportProgress { lease: lease(1), bytes: 50 }));
    }
}
