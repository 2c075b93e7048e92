//! Which export this process was ordered to make, so that an order that comes twice is carried out once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use heddle_protocol::control::Report;

/// The export that this process was ordered to make last. A control connection that breaks brings the same order
/// again, and each export leaves a folder in the output directory.
#[derive(Clone, Debug, Default)]
pub(super) struct Exports(Arc<Mutex<Option<LastExport>>>);

#[derive(Debug)]
struct LastExport {
    /// Checkpoint and output directory.
    order: (String, String),
    /// What came of it; nothing while it runs.
    report: Option<Report>,
}

impl Exports {
    fn lock(&self) -> MutexGuard<'_, Option<LastExport>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether an order is to be carried out. One that was is answered from memory by `tell`, one that failed begins anew.
    pub(super) fn begin(&self, order: (String, String), tell: impl FnOnce(Report)) -> bool {
        let mut last = self.lock();
        match &*last {
            Some(export) if export.order == order => match &export.report {
                None => return false,
                Some(report @ Report::Exported { .. }) => {
                    tell(report.clone());
                    return false;
                }
                Some(_) => {}
            },
            _ => {}
        }
        *last = Some(LastExport { order, report: None });
        true
    }

    /// What came of the order that was begun last.
    pub(super) fn end(&self, report: &Report) {
        if let Some(export) = &mut *self.lock() {
            export.report = Some(report.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use heddle_protocol::failure::{ErrorClass, Failure};

    use super::*;

    fn order(checkpoint: &str) -> (String, String) {
        (checkpoint.to_owned(), "file:///out".to_owned())
    }

    #[test]
    fn an_export_that_is_ordered_twice_is_made_once() {
        let exports = Exports::default();
        let mut told = Vec::new();
        assert!(exports.begin(order("c1"), |up| told.push(up)));
        assert!(!exports.begin(order("c1"), |up| told.push(up)), "it runs");
        assert!(told.is_empty());
        let done = Report::Exported {
            checkpoint: "c1".to_owned(),
            dir: "trainer-0.1".to_owned(),
            files: Vec::new(),
        };
        exports.end(&done);
        assert!(!exports.begin(order("c1"), |up| told.push(up)));
        assert!(matches!(told.as_slice(), [Report::Exported { .. }]));
        assert!(exports.begin(order("c2"), |up| told.push(up)), "another checkpoint");
    }

    #[test]
    fn an_export_that_failed_is_made_again() {
        let exports = Exports::default();
        assert!(exports.begin(order("c1"), |_| {}));
        exports.end(&Report::ExportFailed {
            checkpoint: "c1".to_owned(),
            failure: Failure::new(ErrorClass::Denied, "no space left"),
        });
        assert!(exports.begin(order("c1"), |_| {}));
    }
}
