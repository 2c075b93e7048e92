//! A simulated trainer's exports, and the requests of its program for saves of the model.

use heddle_protocol::control::{
    ExportFailure, ExportOrder, ExportProgress, ExportedModel, Report, SaveRequest,
};
use heddle_protocol::failure::{ErrorClass, Failure};

use super::store::{Durable, StoredExport};

/// For how long other trainers wait once a request is granted.
const BLOCK_MS: u64 = 2_000;

/// Exports and requests of one trainer.
#[derive(Clone, Debug, Default)]
pub struct Exporter {
    /// What it was ordered to export last, with the last lease.
    order: Option<ExportOrder>,
    /// What came of it: the folder.
    result: Option<Result<String, Failure>>,
    /// Exports that it has begun; the number of the last one.
    begun: u64,
    /// Steps of its program.
    steps: u64,
    asked: u64,
    unanswered: Option<SaveRequest>,
}

impl Exporter {
    /// The program has taken a step; it asks for a save at intervals, 0: never.
    pub fn step(&mut self, asks_every: u64) -> Option<Report> {
        self.steps += 1;
        if asks_every == 0 || !self.steps.is_multiple_of(asks_every) || self.unanswered.is_some() {
            return None;
        }
        self.asked += 1;
        let request = SaveRequest { request: self.asked, block_ms: BLOCK_MS };
        self.unanswered = Some(request);
        Some(Report::SaveModel(request))
    }

    /// A new connection: the answer may be lost.
    pub fn connected(&self) -> Option<Report> {
        self.unanswered.map(Report::SaveModel)
    }

    /// The answer to a request.
    pub fn answered(&mut self, request: u64) {
        self.unanswered.take_if(|unanswered| unanswered.request == request);
    }

    /// An order that comes twice is carried out once, also one of another ApplicationMaster; one that failed, or whose lease
    /// lapsed, begins again. Returns the number of an export that begins, or the report of one that is over.
    pub fn ordered(&mut self, order: ExportOrder) -> (Option<u64>, Option<Report>) {
        if let Some(last) = &mut self.order {
            let lapsed =
                order.lease != last.lease && order.lease.generation == last.lease.generation;
            if !lapsed && (ExportOrder { lease: last.lease, ..order.clone() }) == *last {
                last.lease = order.lease;
                match self.result {
                    None => return (None, None),
                    Some(Ok(_)) => return (None, self.report()),
                    Some(Err(_)) => {}
                }
            }
        }
        (self.order, self.result) = (Some(order), None);
        self.begun += 1;
        (Some(self.begun), None)
    }

    /// Finishes the export with this number, to the folder `dir`, unless another one has begun since.
    pub fn finish(
        &mut self,
        number: u64,
        dir: String,
        durable: &Durable,
        is_down: bool,
    ) -> Option<Report> {
        let order = self.order.as_ref().filter(|_| number == self.begun)?;
        let is_there = durable.checkpoints.iter().any(|one| one.dir == order.checkpoint);
        self.result = Some(match is_there && !is_down {
            true => Ok(dir),
            false => Err(Failure::new(ErrorClass::Unreachable, "the storage does not answer")),
        });
        self.report()
    }

    /// What is stored by a report of this trainer.
    pub fn store(&self, durable: &mut Durable) {
        if let (Some(order), Some(Ok(dir))) = (&self.order, &self.result) {
            let of = durable.checkpoints.iter().find(|one| one.dir == order.checkpoint);
            let cut = of.map(|one| one.manifest.cut);
            let known = durable.exports.get(dir).map(|known| known.cut);
            if let Some(cut) = known.or(cut) {
                durable.exports.insert(dir.clone(), StoredExport { cut, lease: order.lease });
            }
        }
    }

    fn report(&self) -> Option<Report> {
        let lease = self.order.as_ref()?.lease;
        Some(match self.result.clone()? {
            Ok(dir) => Report::Exported(ExportedModel { lease, dir, files: Vec::new() }),
            Err(failure) => Report::ExportFailed(ExportFailure { lease, failure }),
        })
    }

    /// What a heartbeat shows: every other export makes no progress.
    #[must_use]
    pub fn progress(&self, now_ms: u64) -> Option<ExportProgress> {
        let order = self.order.as_ref().filter(|_| self.result.is_none())?;
        let bytes = if self.begun.is_multiple_of(2) { now_ms } else { 1 };
        Some(ExportProgress { lease: order.lease, bytes })
    }
}
