//! More trainers or fewer, by order: announce, drain, hand back, release.

use heddle_protocol::control::Command;
use heddle_protocol::ids::{Member, Slot};

use crate::action::Action;
use crate::context::deadlines::Purpose;
use crate::core::Core;
use crate::fleet::slots::SlotStatus;
use crate::record::Record;
use crate::time::MonotonicMs;

impl Core {
    /// How many trainers a run of this journal had when its last attempt ended, if an operator changed it. A first
    /// attempt is a new run, for which the spec counts.
    pub(crate) fn scaled_before(&self, journal: &[Record]) -> Option<u32> {
        let mut scaled = None;
        for record in journal {
            match record {
                Record::Claim { attempt, .. } if attempt.0 <= 1 => scaled = None,
                Record::Scaled { trainers, .. } => scaled = Some(*trainers),
                _ => {}
            }
        }
        let range = self.config.spec.trainers.min..=self.config.spec.trainers.max;
        scaled.filter(|trainers| self.attempt.0 > 1 && range.contains(trainers))
    }

    /// Changes the number of trainers.
    pub(crate) fn scale(&mut self, trainers: u32) -> Result<String, String> {
        let (min, max) = (self.config.spec.trainers.min, self.config.spec.trainers.max);
        if !(min..=max).contains(&trainers) {
            return Err(format!(
                "the job takes {min} to {max} trainers, not {trainers}: the bounds are trainers.min and trainers.max"
            ));
        }
        self.trainers_wanted = trainers;
        // The next attempt keeps to it.
        self.out.journal(Record::Scaled { trainers, at_ms: self.now.wall_ms });
        self.set_wanted();
        let unwanted: Vec<Slot> = self
            .slots
            .entries
            .iter()
            .filter(|(_, entry)| !entry.wanted)
            .map(|(slot, _)| *slot)
            .collect();
        for slot in unwanted {
            let entry = self
                .slots
                .entries
                .get_mut(&slot)
                .map(|entry| (entry.incarnation, &mut entry.place));
            match entry {
                Some((incarnation, place @ SlotStatus::Asked)) => {
                    *place = SlotStatus::Empty { not_before: MonotonicMs(0) };
                    self.out.push(Action::CancelAsk { slot, incarnation });
                }
                Some((_, SlotStatus::Starting { .. })) => {
                    if let Some(container) = self.slots.vacate(slot, MonotonicMs(0)) {
                        self.stop_container(&container, 0);
                    }
                }
                Some((_, SlotStatus::Held(_))) => self.drain(slot),
                Some((_, SlotStatus::Empty { .. })) | None => {}
            }
        }
        Ok(format!("{trainers} trainers"))
    }

    /// Asks a trainer to hand back what it holds and to leave, unless it is at that already.
    pub(crate) fn drain(&mut self, slot: Slot) {
        let now = self.now.mono;
        let Some(holder) = self.slots.holder_mut(slot).filter(|holder| holder.draining.is_none())
        else {
            return;
        };
        holder.draining = Some(now);
        let (member, joined) = (holder.member, holder.joined);
        self.deadlines.at_latest(Purpose::Liveness, now + self.config.limits.grace_ms);
        self.send(slot, Command::Drain);
        if !joined {
            self.drained(member);
        }
    }

    /// A trainer has handed back what it held.
    pub(crate) fn drained(&mut self, member: Member) {
        let now = self.now.mono;
        let Some(holder) = self.slots.holder_mut(member.slot) else {
            return;
        };
        // An earlier attempt may have asked for it.
        holder.draining.get_or_insert(now);
        let joined = std::mem::replace(&mut holder.joined, false);
        let container = holder.container.clone();
        self.trainer_gone(member, joined);
        self.send(member.slot, Command::Stop { reason: "not needed any more".to_owned() });
        if let Some(container) = container {
            self.stop_container(&container, self.config.limits.grace_ms);
        }
    }
}
