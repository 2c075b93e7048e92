//! Scaling: an operator changes the number of trainers. A surplus trainer drains: it hands back its work and leaves.

use heddle_protocol::control::Command;
use heddle_protocol::ids::{Member, Role, Slot};

use super::Fleet;
use super::slots::{RegisteredContainer, SlotStatus};
use crate::action::ContainerOrder;
use crate::context::Context;
use crate::context::deadlines::Purpose;
use crate::record::Record;
use crate::time::MonotonicMs;

/// A trainer that has left the job in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Drained {
    pub member: Member,
    /// It was a member of the job until now.
    pub joined: bool,
}

/// The number of trainers when the last attempt of this run ended, if an operator changed it. A first attempt is a new
/// run, for which the job file counts.
pub(crate) fn scaled_before(journal: &[Record], ctx: &Context) -> Option<u32> {
    let mut scaled = None;
    for record in journal {
        match record {
            Record::Claim { attempt, .. } if attempt.0 <= 1 => scaled = None,
            Record::Scaled { trainers, .. } => scaled = Some(*trainers),
            _ => {}
        }
    }
    let config = ctx.config();
    let range = config.spec.trainers.min..=config.spec.trainers.max;
    scaled.filter(|trainers| ctx.attempt().0 > 1 && range.contains(trainers))
}

impl Fleet {
    /// Changes the number of trainers. Returns the slots that have to drain.
    ///
    /// # Errors
    /// The number is out of the job file's bounds.
    pub(crate) fn scale(&mut self, trainers: u32, ctx: &mut Context) -> Result<Vec<Slot>, String> {
        let config = ctx.config();
        let (min, max) = (config.spec.trainers.min, config.spec.trainers.max);
        if !(min..=max).contains(&trainers) {
            return Err(format!(
                "the job takes {min} to {max} trainers, not {trainers}: the bounds are trainers.min and trainers.max"
            ));
        }
        self.trainers_wanted = trainers;
        // The next attempt keeps to it.
        ctx.journal(Record::Scaled { trainers, at_ms: ctx.wall_ms() });
        Ok(self.leave_unwanted(ctx))
    }

    /// Empties the slots that are not wanted any more. Returns those that have to drain.
    pub(super) fn leave_unwanted(&mut self, ctx: &mut Context) -> Vec<Slot> {
        self.set_wanted();
        let unwanted = self.slots.entries.iter().filter(|(_, entry)| !entry.wanted);
        let unwanted: Vec<Slot> = unwanted.map(|(slot, _)| *slot).collect();
        let mut draining = Vec::new();
        for slot in unwanted {
            let entry = self.slots.entries.get_mut(&slot);
            debug_assert!(entry.is_some(), "{slot} is a slot of the job");
            let Some(entry) = entry else {
                continue;
            };
            match entry.status {
                SlotStatus::Asked => {
                    entry.status = SlotStatus::Empty { not_before: MonotonicMs(0) };
                    let incarnation = entry.incarnation;
                    ctx.order(ContainerOrder::CancelAsk(Member { slot, incarnation }));
                }
                SlotStatus::Starting { .. } => {
                    if let Some(container) = self.slots.vacate(slot, MonotonicMs(0)) {
                        self.stop_container(&container, 0, ctx);
                    }
                }
                SlotStatus::Held(_) => draining.push(slot),
                SlotStatus::Empty { .. } => {}
            }
        }
        draining.extend(self.surplus(&draining));
        draining
    }

    /// Trainers that work beyond the wanted number though their slots are wanted: those of others wait as spares. The
    /// containers that follow them are spares.
    fn surplus(&self, draining: &[Slot]) -> Vec<Slot> {
        let works = |holder: &&RegisteredContainer| {
            let leaves = holder.draining.is_some() || draining.contains(&holder.member.slot);
            holder.joined && !leaves
        };
        let workers = self.slots.holders(Role::Trainer).filter(works);
        let workers = workers.map(|holder| holder.member.slot);
        workers.skip(self.workers_wanted()).collect()
    }

    /// Orders a trainer to hand back its work and to leave, unless it drains already. One that has no work has left at once:
    /// it is returned.
    #[must_use]
    pub(crate) fn drain(&mut self, slot: Slot, ctx: &mut Context) -> Option<Member> {
        let now = ctx.now();
        let holder = self.slots.holder_mut(slot).filter(|holder| holder.draining.is_none())?;
        holder.draining = Some(now);
        let (member, joined) = (holder.member, holder.joined);
        let grace_ms = ctx.limits().grace_ms;
        ctx.set_deadline_at_latest(Purpose::Liveness, now + grace_ms);
        self.send(slot, Command::Drain, ctx);
        (!joined).then_some(member)
    }

    /// A trainer has handed back its work: it is not a member any more.
    pub(crate) fn drained(&mut self, member: Member, ctx: &Context) -> Option<Drained> {
        let holder = self.slots.holder_mut(member.slot)?;
        // An earlier attempt may have ordered it.
        holder.draining.get_or_insert(ctx.now());
        Some(Drained { member, joined: std::mem::replace(&mut holder.joined, false) })
    }

    /// Stops a trainer that has drained.
    pub(crate) fn stop_drained(&mut self, member: Member, ctx: &mut Context) {
        let container = self.slots.holder(member.slot).and_then(|holder| holder.container.clone());
        self.send(member.slot, Command::Stop { reason: "not needed any more".to_owned() }, ctx);
        if let Some(container) = container {
            let grace_ms = ctx.limits().grace_ms;
            self.stop_container(&container, grace_ms, ctx);
        }
    }
}
