//! The last export order of this process, so that a repeated order is carried out once.
//!
//! A new control connection repeats an order, and a new ApplicationMaster gives it again under a lease of its own: each export
//! would leave a folder in the output directory. An order under a later lease of the same ApplicationMaster begins again: the
//! earlier one made no progress.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use heddle_protocol::control::{ExportFailure, ExportOrder, ExportProgress, ExportedModel, Report};
use heddle_protocol::failure::Failure;

use crate::export::{Exported, ExportedBytes};

/// The last export order.
#[derive(Clone, Debug, Default)]
pub(super) struct Exports(Arc<Mutex<ExportOrders>>);

#[derive(Debug, Default)]
struct ExportOrders {
    runs: u64,
    last: Option<LastExport>,
}

/// An export to carry out.
#[derive(Clone, Debug)]
pub(super) struct ExportRun {
    number: u64,
    /// What it has written so far.
    pub(super) bytes: ExportedBytes,
}

#[derive(Debug)]
struct LastExport {
    /// With the last lease.
    order: ExportOrder,
    run: ExportRun,
    /// Its result; `None` while it runs.
    result: Option<Result<Exported, Failure>>,
}

impl LastExport {
    /// Whether an order is this one, perhaps of another ApplicationMaster.
    fn serves(&self, order: &ExportOrder) -> bool {
        let lease = self.order.lease;
        let is_same = ExportOrder { lease, ..order.clone() } == self.order;
        let lapsed = order.lease != lease && order.lease.generation == lease.generation;
        is_same && !lapsed
    }

    fn report(&self) -> Option<Report> {
        let lease = self.order.lease;
        Some(match self.result.clone()? {
            Ok(Exported { dir, files }) => Report::Exported(ExportedModel { lease, dir, files }),
            Err(failure) => Report::ExportFailed(ExportFailure { lease, failure }),
        })
    }
}

impl Exports {
    fn lock(&self) -> MutexGuard<'_, ExportOrders> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an export to carry out, unless the order is a repetition. A completed one is reported again through `send`; a
    /// failed one begins again.
    pub(super) fn begin(
        &self,
        order: &ExportOrder,
        send: impl FnOnce(Report),
    ) -> Option<ExportRun> {
        let inner = &mut *self.lock();
        if let Some(last) = inner.last.as_mut().filter(|last| last.serves(order)) {
            last.order.lease = order.lease;
            match &last.result {
                None => return None,
                Some(Ok(_)) => {
                    if let Some(report) = last.report() {
                        send(report);
                    }
                    return None;
                }
                Some(Err(_)) => {}
            }
        }
        inner.runs += 1;
        let run = ExportRun { number: inner.runs, bytes: ExportedBytes::default() };
        inner.last = Some(LastExport { order: order.clone(), run: run.clone(), result: None });
        Some(run)
    }

    /// Keeps the result of an export. Returns its report, unless another one has begun since.
    pub(super) fn end(&self, run: &ExportRun, result: Result<Exported, Failure>) -> Option<Report> {
        let inner = &mut *self.lock();
        let last = inner.last.as_mut().filter(|last| last.run.number == run.number)?;
        last.result = Some(result);
        last.report()
    }

    /// How far the export that runs is, for heartbeats.
    pub(super) fn progress(&self) -> Option<ExportProgress> {
        let inner = &*self.lock();
        let last = inner.last.as_ref().filter(|last| last.result.is_none())?;
        Some(ExportProgress { lease: last.order.lease, bytes: last.run.bytes.count() })
    }
}

#[cfg(test)]
mod tests {
    use heddle_protocol::failure::ErrorClass;
    use heddle_protocol::ids::{Generation, SaveLease, SaveNo};

    use super::*;

    fn order(checkpoint: &str, generation: u32, count: u32) -> ExportOrder {
        ExportOrder {
            save: SaveNo(0),
            lease: SaveLease { generation: Generation(generation), count },
            checkpoint: checkpoint.to_owned(),
            dir: "file:///out".to_owned(),
        }
    }

    fn exported() -> Exported {
        Exported { dir: "trainer-0.1".to_owned(), files: Vec::new() }
    }

    #[test]
    fn repeated_export_order_is_carried_out_once() {
        let exports = Exports::default();
        let mut sent = Vec::new();
        let run = exports.begin(&order("c1", 1, 1), |up| sent.push(up)).expect("the first");
        assert!(exports.begin(&order("c1", 1, 1), |up| sent.push(up)).is_none(), "it runs");
        assert!(sent.is_empty());
        // The next ApplicationMaster orders it under its own lease.
        assert!(exports.begin(&order("c1", 2, 1), |up| sent.push(up)).is_none());
        assert_eq!(exports.progress().map(|p| p.lease.generation), Some(Generation(2)));
        let Some(Report::Exported(model)) = exports.end(&run, Ok(exported())) else {
            panic!("no report")
        };
        assert_eq!(model.lease.generation, Generation(2));
        assert_eq!(exports.progress(), None);
        assert!(exports.begin(&order("c1", 3, 1), |up| sent.push(up)).is_none());
        let [Report::Exported(again)] = sent.as_slice() else { panic!("{sent:?}") };
        assert_eq!(again.lease.generation, Generation(3));
        assert!(exports.begin(&order("c2", 3, 2), |_| {}).is_some(), "another checkpoint");
    }

    #[test]
    fn failed_export_is_repeated() {
        let exports = Exports::default();
        let run = exports.begin(&order("c1", 1, 1), |_| {}).expect("the first");
        let failure = Failure::new(ErrorClass::Denied, "no space left");
        assert!(matches!(exports.end(&run, Err(failure)), Some(Report::ExportFailed(_))));
        assert!(exports.begin(&order("c1", 1, 1), |_| {}).is_some());
    }

    #[test]
    fn export_whose_lease_lapsed_begins_again_and_counts_once() {
        let exports = Exports::default();
        let hangs = exports.begin(&order("c1", 1, 1), |_| {}).expect("the first");
        let anew = exports.begin(&order("c1", 1, 2), |_| {}).expect("once more");
        assert!(exports.end(&hangs, Ok(exported())).is_none());
        anew.bytes.add(5);
        assert_eq!(exports.progress().map(|p| (p.lease.count, p.bytes)), Some((2, 5)));
        assert!(exports.end(&anew, Ok(exported())).is_some());
    }
}
