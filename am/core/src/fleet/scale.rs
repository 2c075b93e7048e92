//! Scaling: an operator or the controller changes the numbers of trainers and pservers. A surplus trainer drains: it hands back
//! its work and leaves. A surplus pserver stays until each of its shards is served elsewhere (`stage::replicas`).

use std::ops::RangeInclusive;

use heddle_protocol::control::{Command, TrainerCommand};
use heddle_protocol::ids::{Member, Role, Slot};
use heddle_protocol::job_spec::{Elasticity, JobSpec};
use heddle_protocol::view::SetBy;

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

/// How many containers of each role are wanted, beside spares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JobSize {
    pub trainers: u32,
    pub pservers: u32,
}

/// A size, and what has set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WantedSize {
    pub size: JobSize,
    pub set_by: SetBy,
    /// The highest generation of a controller that has given an order; 0: before the first.
    pub generation: u64,
}

impl WantedSize {
    /// As in the job file. What a controller does not want yet does not start.
    pub(super) fn at_start(spec: &JobSpec) -> Self {
        let trainers = match spec.run.elastic {
            Elasticity::Off => spec.trainers.max,
            Elasticity::Controller => spec.trainers.min,
        };
        let size = JobSize { trainers, pservers: spec.pservers.count };
        Self { size, set_by: SetBy::JobFile, generation: 0 }
    }

    /// When the last attempt of this run ended. A first attempt is a new run, for which the job file counts.
    pub(super) fn after(journal: &[Record], ctx: &Context) -> Self {
        let spec = &ctx.config().spec;
        let at_start = Self::at_start(spec);
        let mut wanted = at_start;
        for record in journal {
            match record {
                Record::Claim { attempt, .. } if attempt.0 <= 1 => wanted = at_start,
                Record::Scaled { trainers, pservers, set_by, generation, .. } => {
                    let pservers = pservers.unwrap_or(at_start.size.pservers);
                    let size = JobSize { trainers: *trainers, pservers };
                    wanted = Self { size, set_by: *set_by, generation: *generation };
                }
                _ => {}
            }
        }
        let fits = bounds(spec, Role::Trainer).contains(&wanted.size.trainers)
            && bounds(spec, Role::Pserver).contains(&wanted.size.pservers);
        if fits && ctx.attempt().0 > 1 { wanted } else { at_start }
    }
}

/// The numbers of containers of a role that the job file allows.
fn bounds(spec: &JobSpec, role: Role) -> RangeInclusive<u32> {
    match role {
        Role::Trainer => spec.trainers.min..=spec.trainers.max,
        Role::Pserver => spec.pservers.least()..=spec.pservers.most(),
    }
}

impl Fleet {
    /// Changes the numbers of containers. Returns the trainers that have to drain. Unwanted pservers stay until they are empty.
    ///
    /// # Errors
    /// A number is out of the job file's bounds. Nothing has changed.
    pub(crate) fn scale(&mut self, to: WantedSize, ctx: &mut Context) -> Result<Vec<Slot>, String> {
        let spec = &ctx.config().spec;
        let JobSize { trainers, pservers } = to.size;
        for (role, count) in [(Role::Trainer, trainers), (Role::Pserver, pservers)] {
            let bounds = bounds(spec, role);
            let (least, most) = (bounds.start(), bounds.end());
            if bounds.contains(&count) {
                continue;
            }
            let range =
                if least == most { least.to_string() } else { format!("{least} to {most}") };
            return Err(format!(
                "the job takes {range} {role}s, not {count}: the bounds are {role}s.min and {role}s.max"
            ));
        }
        let before = std::mem::replace(&mut self.wanted, to);
        // The next attempt keeps to it.
        let (WantedSize { set_by, generation, .. }, at_ms) = (to, ctx.wall_ms());
        let pservers = Some(pservers);
        ctx.journal(Record::Scaled { trainers, pservers, set_by, generation, at_ms });
        let is_of_controller = set_by == SetBy::Controller || before.generation < generation;
        if before.size == to.size && is_of_controller {
            return Ok(Vec::new());
        }
        self.forget_released_trainers();
        Ok(self.leave_unwanted(ctx))
    }

    /// How many containers of each role are wanted, beside spares.
    pub(crate) fn wanted(&self) -> JobSize {
        self.wanted.size
    }

    /// The same, with what has set it.
    pub(crate) fn wanted_size(&self) -> WantedSize {
        self.wanted
    }

    /// Whether a container is to be in the slot.
    pub(crate) fn is_wanted(&self, slot: Slot) -> bool {
        self.slots.entries.get(&slot).is_some_and(|entry| entry.wanted)
    }

    /// Registered pservers that are to give their shards away: they are not wanted any more, or their nodes leave.
    pub(crate) fn emptied_pservers(&self) -> Vec<Slot> {
        let mut slots = self.departing_pservers();
        slots.extend(self.unwanted_pservers());
        slots
    }

    /// Registered pservers that are not wanted any more, and have not been stopped.
    pub(crate) fn unwanted_pservers(&self) -> impl Iterator<Item = Slot> + '_ {
        // Asked with nearly every event: slots that are wanted are not looked at.
        let wanted = self.slots_wanted(Role::Pserver);
        let unwanted = self.slots.range_from(Role::Pserver, wanted).filter(
            |(_, entry)| matches!(&entry.status, SlotStatus::Held(held) if held.draining.is_none()),
        );
        unwanted.map(|(slot, _)| *slot)
    }

    /// Stops an unwanted pserver whose shards are elsewhere.
    pub(crate) fn retire(&mut self, slot: Slot, ctx: &mut Context) {
        let now = ctx.now();
        let Some(holder) = self.slots.holder_mut(slot) else { return };
        holder.draining = Some(now);
        let member = holder.member;
        ctx.set_deadline_at_latest(Purpose::Liveness, now + ctx.limits().grace_ms);
        self.stop_drained(member, ctx);
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
                SlotStatus::Held(_) if slot.role == Role::Trainer => draining.push(slot),
                SlotStatus::Held(_) => {}
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
        self.send(slot, TrainerCommand::Drain, ctx);
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
