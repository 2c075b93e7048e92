//! Orders about the numbers of containers: of operators, and of the controller that `run.elastic` allows.
//!
//! An operator's numbers stay until an operator gives them back. Of controllers the highest generation counts: orders of a
//! controller that was suspended while another took the lead are refused, also by later attempts.

use heddle_protocol::control::{Operation, ResizeOrder};
use heddle_protocol::job_spec::{Consistency, Elasticity, phase_count};
use heddle_protocol::mutation::Mutation;
use heddle_protocol::view::{ElasticView, SetBy};

use super::Core;
use crate::context::deadlines::Purpose;
use crate::fleet::scale::{JobSize, WantedSize};
use crate::stage::StageKind;

/// A job without an order of a controller for this time grows to `trainers.max`.
const CONTROLLER_MS: u64 = 60_000;

impl Core {
    /// An operator or a controller sets numbers.
    pub(super) fn scaling_order(&mut self, operation: &Operation) -> Result<String, String> {
        match operation {
            Operation::Scale { trainers, pservers } => self.scale_by_operator(*trainers, *pservers),
            Operation::ScaleAuto => self.scale_auto(),
            Operation::Resize(order) => self.resize(order),
            _ => Err("not an order about numbers".to_owned()),
        }
    }

    /// An operator sets numbers.
    fn scale_by_operator(
        &mut self,
        trainers: Option<u32>,
        pservers: Option<u32>,
    ) -> Result<String, String> {
        let now = self.fleet.wanted_size();
        let size = JobSize {
            trainers: trainers.unwrap_or(now.size.trainers),
            pservers: pservers.unwrap_or(now.size.pservers),
        };
        self.scale(WantedSize { size, set_by: SetBy::Operator, ..now })
    }

    /// An operator gives the numbers back to the controller.
    fn scale_auto(&mut self) -> Result<String, String> {
        self.check_elastic()?;
        self.scale(WantedSize { set_by: SetBy::Controller, ..self.fleet.wanted_size() })
    }

    /// The controller sets numbers.
    fn resize(&mut self, order: &ResizeOrder) -> Result<String, String> {
        self.check_elastic()?;
        let ResizeOrder { generation, trainers, pservers } = *order;
        let now = self.fleet.wanted_size();
        if generation < now.generation && !Mutation::StaleController.is_on() {
            let seen = now.generation;
            return Err(format!(
                "controller {generation} does not lead any more: controller {seen} has given orders"
            ));
        }
        if now.set_by == SetBy::Operator {
            if generation > now.generation {
                // Kept for when the operator gives the numbers back.
                self.scale(WantedSize { generation, ..now })?;
            }
            let JobSize { trainers, pservers } = now.size;
            return Err(format!(
                "pinned by an operator, to {trainers} trainers and {pservers} pservers"
            ));
        }
        let size = JobSize { trainers, pservers };
        self.scale(WantedSize { size, set_by: SetBy::Controller, generation })
    }

    fn check_elastic(&self) -> Result<(), String> {
        match self.ctx.config().spec.run.elastic {
            Elasticity::Controller => Ok(()),
            Elasticity::Off => {
                Err("run.elastic is \"off\": a controller does not set the numbers".to_owned())
            }
        }
    }

    /// Waits for the first order of a controller, if the job starts smaller than it may be.
    pub(super) fn await_controller(&mut self) {
        let WantedSize { size, set_by, .. } = self.fleet.wanted_size();
        if set_by == SetBy::JobFile && size.trainers < self.ctx.config().spec.trainers.max {
            self.ctx.set_deadline(Purpose::Controller, self.ctx.now() + CONTROLLER_MS);
        }
    }

    /// A controller has not given an order for a while: the job runs as if there were not one.
    pub(super) fn controller_is_silent(&mut self) {
        let now = self.fleet.wanted_size();
        if now.set_by == SetBy::JobFile && !self.stage.is_stopping() {
            let trainers = self.ctx.config().spec.trainers.max;
            let size = JobSize { trainers, ..now.size };
            let scaled = self.scale(WantedSize { size, ..now });
            debug_assert!(scaled.is_ok(), "the job file's own number: {scaled:?}");
        }
    }

    fn scale(&mut self, to: WantedSize) -> Result<String, String> {
        for slot in self.fleet.scale(to, &mut self.ctx)? {
            self.drain(slot);
        }
        // A pserver that is not there yet, and is not wanted any more, does not come.
        let (fleet, map) = (&self.fleet, self.stage.map());
        let comes = |slot| fleet.holder(slot).is_some() || fleet.is_wanted(slot);
        if self.stage.kind() == StageKind::Restoring && !map.slots().all(comes) {
            if !self.stage.has_started() {
                self.stage.set_map(self.even_map());
            }
            self.restore("the number of pservers has changed".to_owned());
        }
        let JobSize { trainers, pservers } = to.size;
        Ok(format!("{trainers} trainers, {pservers} pservers"))
    }

    /// The numbers of a job that a controller sizes, as they are reported.
    pub(super) fn elastic_view(&self) -> Option<ElasticView> {
        let spec = &self.ctx.config().spec;
        if spec.run.elastic == Elasticity::Off {
            return None;
        }
        let WantedSize { size: JobSize { trainers, pservers }, set_by, generation } =
            self.fleet.wanted_size();
        // At the end of a phase fewer tasks than trainers are left; the next one has many again.
        let is_last = self.work.phase().0 + 1 >= phase_count(spec) && self.stage.is_in_phase();
        let of_pass = self.ctx.config().plan.train.len();
        let useful = match spec.training.consistency {
            Consistency::Bsp => spec.training.lanes as usize,
            Consistency::Ssp | Consistency::Asp if is_last => self.work.useful_trainers(),
            Consistency::Ssp | Consistency::Asp => of_pass,
        };
        let released = self.fleet.released_trainers() as u32;
        let useful = if released > 0 { useful.min((trainers - released) as usize) } else { useful };
        Some(ElasticView {
            set_by,
            generation,
            trainers,
            released,
            useful: useful.min(spec.trainers.max as usize) as u32,
            pservers,
            is_preempted: self.fleet.is_preempted(),
            least: spec.trainers.min,
            most: spec.trainers.max,
        })
    }
}
