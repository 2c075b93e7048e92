//! The last export order of this process, so that a repeated order is carried out once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use heddle_protocol::control::Report;

/// The last export order. A new control connection repeats it, and each export would leave a folder in the output directory.
#[derive(Clone, Debug, Default)]
pub(super) struct Exports(Arc<Mutex<Option<LastExport>>>);

#[derive(Debug)]
struct LastExport {
    /// Checkpoint and output directory.
    order: (String, String),
    /// Its report; `None` while it runs.
    report: Option<Report>,
}

impl Exports {
    fn lock(&self) -> MutexGuard<'_, Option<LastExport>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether to carry out an order. A completed one is reported again through `send`; a failed one begins again.
    pub(super) fn begin(&self, order: (String, String), send: impl FnOnce(Report)) -> bool {
        let mut last = self.lock();
        match &*last {
            Some(export) if export.order == order => match &export.report {
                None => return false,
                Some(report @ Report::Exported { .. }) => {
                    send(report.clone());
                    return false;
                }
                Some(_) => {}
            },
            _ => {}
        }
        *last = Some(LastExport { order, report: None });
        true
    }

    /// Keeps the report of the last order.
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
    fn repeated_export_order_is_carried_out_once() {
        let exports = Exports::default();
        let mut sent = Vec::new();
        assert!(exports.begin(order("c1"), |up| sent.push(up)));
        assert!(!exports.begin(order("c1"), |up| sent.push(up)), "it runs");
        assert!(sent.is_empty());
        let done = Report::Exported {
            checkpoint: "c1".to_owned(),
            dir: "trainer-0.1".to_owned(),
            files: Vec::new(),
        };
        exports.end(&done);
        assert!(!exports.begin(order("c1"), |up| sent.push(up)));
        assert!(matches!(sent.as_slice(), [Report::Exported { .. }]));
        assert!(exports.begin(order("c2"), |up| sent.push(up)), "another checkpoint");
    }

    #[test]
    fn failed_export_is_repeated() {
        let exports = Exports::default();
        assert!(exports.begin(order("c1"), |_| {}));
        exports.end(&Report::ExportFailed {
            checkpoint: "c1".to_owned(),
            failure: Failure::new(ErrorClass::Denied, "no space left"),
        });
        assert!(exports.begin(order("c1"), |_| {}));
    }
}
