//! The export of the model: one trainer writes it, then the store publishes it.
//!
//! One trainer is elected and writes the committed checkpoint's model into a folder of its own; the store moves the files to
//! their names. So two ApplicationMasters that both believe to lead never write one file.

use heddle_protocol::control::ExportedFile;
use heddle_protocol::ids::Member;

/// How far the export is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum ExportProgress {
    /// No trainer writes.
    #[default]
    Electing,
    /// This trainer writes.
    Writing(Member),
    /// The model is written: the folder below the output directory, and the files.
    Written(String, Vec<ExportedFile>),
    /// The store publishes it.
    Publishing(String, Vec<ExportedFile>),
}

/// The model on its way out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ModelExport {
    progress: ExportProgress,
    failures: u32,
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
        match &self.progress {
            ExportProgress::Electing => ExportStep::Elect,
            ExportProgress::Writing(_) | ExportProgress::Publishing(..) => ExportStep::Wait,
            ExportProgress::Written(dir, files) => ExportStep::Publish(dir.clone(), files.clone()),
        }
    }

    /// Whether this trainer writes the model and has not reported it.
    pub(crate) fn is_writer(&self, member: Member) -> bool {
        self.progress == ExportProgress::Writing(member)
    }

    /// This trainer gets the order.
    pub(crate) fn elect(&mut self, member: Member) {
        debug_assert_eq!(self.progress, ExportProgress::Electing);
        self.progress = ExportProgress::Writing(member);
    }

    /// The writer is gone or has failed.
    pub(crate) fn elect_again(&mut self) {
        self.progress = ExportProgress::Electing;
    }

    /// The writer has written the model.
    pub(crate) fn written(&mut self, dir: String, files: Vec<ExportedFile>) {
        self.progress = ExportProgress::Written(dir, files);
    }

    /// The store publishes the model.
    pub(crate) fn publishing(&mut self) {
        match std::mem::take(&mut self.progress) {
            ExportProgress::Written(dir, files) => {
                self.progress = ExportProgress::Publishing(dir, files);
            }
            other => {
                debug_assert!(false, "only a written model is published");
                self.progress = other;
            }
        }
    }

    /// The store has answered.
    pub(crate) fn publish_answered(&mut self) {
        if let ExportProgress::Publishing(dir, files) = std::mem::take(&mut self.progress) {
            self.progress = ExportProgress::Written(dir, files);
        }
    }

    /// A try failed. Returns how many have.
    pub(crate) fn failed(&mut self) -> u32 {
        self.failures += 1;
        self.failures
    }
}
