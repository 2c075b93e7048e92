//! The chaos session of a job with `run.chaos`: an operator orders faults (`heddle chaos`), and the job must survive them.
//!
//! One session at a time gives orders, so that a report is about its own faults alone. A session that gives no sign of life
//! for a minute has lapsed. Sessions are not journaled: the next attempt accepts the first that orders something.
//!
//! Not here: which fault comes when (the command line draws them), and how a process performs one (`heddle-self-faults`).

use heddle_protocol::control::{
    ChaosOrder, ChaosStep, Command, FaultTarget, OrderedFault, SESSION_LAPSES_MS,
};
use heddle_protocol::ids::Role;
use heddle_protocol::view::{ChaosView, WarningCode};
use uuid::Uuid;

use crate::action::Action;
use crate::context::Context;
use crate::fleet::Fleet;
use crate::time::MonotonicMs;

/// Which session gives orders, and what this attempt has ordered.
#[derive(Clone, Debug, Default)]
pub(crate) struct FaultOrders {
    /// With its last sign of life.
    holder: Option<(Uuid, MonotonicMs)>,
    faults: u64,
}

impl FaultOrders {
    /// Carries out an order.
    ///
    /// # Errors
    /// The job takes none, another session gives them, or the process cannot have this fault: nothing has happened.
    pub(crate) fn order(
        &mut self,
        order: &ChaosOrder,
        fleet: &Fleet,
        ctx: &mut Context,
    ) -> Result<String, String> {
        if !ctx.config().spec.run.chaos {
            return Err("run.chaos of the job is false: it takes no faults".to_owned());
        }
        if let Some(other) = self.holder(ctx).filter(|holder| *holder != order.session) {
            return Err(format!("the chaos session {other} is under way; one at a time"));
        }
        if let ChaosStep::Inject { target, fault } = order.step {
            check(target, fault, fleet, ctx)?;
            self.faults += 1;
            ctx.warn(
                WarningCode::FaultOrdered,
                format!("an operator ordered a fault: {fault} of {target}"),
            );
            match target {
                FaultTarget::Am => ctx.push(Action::Fault(fault)),
                FaultTarget::Slot(slot) => fleet.send(slot, Command::Fault(fault), ctx),
                // The command does it.
                FaultTarget::Checkpoint => {}
            }
        }
        self.holder = match order.step {
            ChaosStep::Hold | ChaosStep::Inject { .. } => Some((order.session, ctx.now())),
            ChaosStep::End => None,
        };
        Ok("ordered".to_owned())
    }

    /// The session, for the users of the job; none if it takes no faults.
    pub(crate) fn view(&self, ctx: &Context) -> Option<ChaosView> {
        let view = ChaosView { session: self.holder(ctx), faults: self.faults };
        ctx.config().spec.run.chaos.then_some(view)
    }

    fn holder(&self, ctx: &Context) -> Option<Uuid> {
        let (session, sign) = self.holder?;
        (ctx.now().since(sign) < SESSION_LAPSES_MS).then_some(session)
    }
}

/// Whether the process is there and can have the fault. An ApplicationMaster that is killed needs another attempt.
fn check(
    target: FaultTarget,
    fault: OrderedFault,
    fleet: &Fleet,
    ctx: &Context,
) -> Result<(), String> {
    let wrong = |reason: &str| Err(format!("cannot order a {fault} of {target}: {reason}"));
    if !fault.is_valid() {
        return wrong("a number is out of its bounds");
    }
    let (attempt, most) = (ctx.attempt().0, ctx.config().spec.yarn.max_attempts);
    match (target, fault) {
        (FaultTarget::Am, OrderedFault::Kill) if attempt >= most => {
            wrong(&format!("attempt {attempt} is the last of {most} (yarn.max-attempts)"))
        }
        (FaultTarget::Am, OrderedFault::Kill | OrderedFault::Pause { .. }) => Ok(()),
        (FaultTarget::Am, _) => wrong("the ApplicationMaster takes kill and pause"),
        (FaultTarget::Checkpoint, OrderedFault::Corrupt { .. }) => Ok(()),
        (FaultTarget::Checkpoint, _) => wrong("a checkpoint takes corrupt"),
        (FaultTarget::Slot(_), OrderedFault::Corrupt { .. }) => wrong("only a checkpoint takes it"),
        (FaultTarget::Slot(slot), OrderedFault::Cut { .. }) if slot.role == Role::Pserver => {
            wrong("only a trainer has a path to pservers")
        }
        (FaultTarget::Slot(slot), OrderedFault::SlowDisk { .. }) if slot.role == Role::Trainer => {
            wrong("only a pserver saves shards")
        }
        (FaultTarget::Slot(slot), OrderedFault::Slow { .. }) if slot.role == Role::Pserver => {
            wrong("only a trainer computes")
        }
        (FaultTarget::Slot(slot), _) if !fleet.registered_slots(slot.role).contains(&slot) => {
            wrong("no registered process is in this slot")
        }
        (FaultTarget::Slot(_), _) => Ok(()),
    }
}
