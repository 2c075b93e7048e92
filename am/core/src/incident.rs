//! What a loss cost: the five stretches of a recovery.

use std::collections::VecDeque;

use heddle_protocol::ids::{CutId, Epoch, Member, PhaseNo, Role, Slot, Step};
use heddle_protocol::view::{self, RECOVERIES_MAX, RecoveryView};

use crate::core::Core;
use crate::phases::Work;
use crate::time::Mono;

/// A recovery under way or over.
#[derive(Clone, Debug)]
pub(crate) struct Incident {
    pub view: RecoveryView,
    noticed: Mono,
    registered: Option<Mono>,
    held: Option<Mono>,
    /// The ApplicationMaster's: containers work on where they are.
    taken_over: bool,
}

impl Incident {
    /// Whether shards go back to a checkpoint for it, or may have to.
    fn rolls_back(&self) -> bool {
        let slot = self.view.slot;
        slot.is_none_or(|slot| slot.role == Role::Pserver)
    }
}

/// The recoveries of this attempt, oldest first: the newest [`RECOVERIES_MAX`], and how many there were.
#[derive(Clone, Debug, Default)]
pub(crate) struct Incidents {
    kept: VecDeque<Incident>,
    total: u64,
}

impl Incidents {
    /// Recoveries as people see them, oldest first.
    pub(crate) fn views(&self) -> impl Iterator<Item = &RecoveryView> {
        self.kept.iter().map(|incident| &incident.view)
    }

    /// How many there were.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    fn push(&mut self, incident: Incident) {
        self.total += 1;
        if self.kept.len() >= RECOVERIES_MAX {
            // One that is under way is told when it is over; a job that lost so many containers at once lacks a row.
            let over = self.kept.iter().position(|incident| incident.view.done);
            self.kept.remove(over.unwrap_or(0));
        }
        self.kept.push_back(incident);
    }
}

impl Core {
    /// Opens the report of a loss. `sign` is the last sign of life.
    pub(crate) fn open_incident(&mut self, slot: Slot, cause: String, sign: Mono) {
        let notice_ms = Some(self.now.mono.since(sign));
        self.push_incident(Some(slot), cause, notice_ms);
    }

    /// Opens the report of the loss of the ApplicationMaster before this attempt. The containers that it left tell when
    /// they lost it.
    pub(crate) fn open_am_incident(&mut self) {
        let cause = format!("the ApplicationMaster was lost; attempt {} took over", self.attempt.0);
        self.push_incident(None, cause, None);
    }

    fn push_incident(&mut self, slot: Option<Slot>, cause: String, notice_ms: Option<u64>) {
        let noticed = self.now.mono;
        let view = RecoveryView {
            cause,
            slot,
            at_ms: self.now.wall_ms,
            epoch_before: self.epoch,
            epoch_after: self.epoch,
            base: None,
            phase: self.phase.no,
            step: self.phase.frontier(),
            base_step: None,
            checkpoint_ms: None,
            notice_ms,
            restart_ms: None,
            load_ms: None,
            resume_ms: None,
            done: false,
        };
        self.incidents.push(Incident {
            view,
            noticed,
            registered: None,
            held: None,
            taken_over: false,
        });
    }

    /// A container lost the ApplicationMaster before this attempt so long ago.
    pub(crate) fn am_was_lost(&mut self, ago_ms: u64) {
        let now = self.now.mono;
        let mut known = false;
        // Also one that is over: the first heartbeat may come after the first step under this attempt.
        for incident in &mut self.incidents.kept {
            if incident.view.slot.is_none() && incident.view.notice_ms.is_none() {
                incident.view.notice_ms = Some(ago_ms.saturating_sub(now.since(incident.noticed)));
                known = true;
            }
        }
        if known {
            self.close_incidents(|incident| incident.taken_over);
        }
    }

    /// Containers work on where they are, under this attempt.
    pub(crate) fn am_incident_taken_over(&mut self) {
        let now = self.now.mono;
        for incident in self.open_incidents() {
            if incident.view.slot.is_none() && incident.registered.is_none() {
                incident.registered = Some(now);
                incident.view.restart_ms = Some(now.since(incident.noticed));
                incident.taken_over = true;
            }
        }
        // Else the first heartbeat that tells when the other one was lost.
        self.close_incidents(|incident| incident.taken_over && incident.view.notice_ms.is_some());
    }

    fn open_incidents(&mut self) -> impl Iterator<Item = &mut Incident> {
        self.incidents.kept.iter_mut().filter(|incident| !incident.view.done)
    }

    /// A rollback begins: it answers every loss that is not over.
    pub(crate) fn incidents_roll_back(
        &mut self,
        epoch: Epoch,
        base: Option<(CutId, u64, PhaseNo, Step)>,
    ) {
        let (wall_ms, now) = (self.now.wall_ms, self.now.mono);
        for incident in self.open_incidents().filter(|it| it.rolls_back()) {
            if incident.view.slot.is_none() && incident.registered.is_none() {
                incident.registered = Some(now);
                incident.view.restart_ms = Some(now.since(incident.noticed));
            }
            incident.view.epoch_after = epoch;
            incident.view.base = base.map(|(cut, ..)| cut);
            incident.view.base_step = base.map(|(.., step)| step);
            incident.view.checkpoint_ms = base.map(|(_, at_ms, ..)| wall_ms.saturating_sub(at_ms));
            incident.view.load_ms = None;
            incident.held = None;
        }
    }

    /// A replacement has registered.
    pub(crate) fn incident_registered(&mut self, slot: Slot) {
        let now = self.now.mono;
        let open = |incident: &&mut Incident| {
            incident.view.slot == Some(slot) && incident.registered.is_none()
        };
        for incident in self.open_incidents().filter(open) {
            incident.registered = Some(now);
            incident.view.restart_ms = Some(now.since(incident.noticed));
        }
    }

    /// All shards stand again.
    pub(crate) fn incidents_held(&mut self) {
        let now = self.now.mono;
        for incident in self.open_incidents().filter(|it| it.rolls_back()) {
            let from = incident.registered.unwrap_or(incident.noticed);
            incident.view.load_ms = Some(now.since(from));
            incident.held = Some(now);
        }
    }

    /// Whether every trainer with work has taken a step since it got it. One look at each lane or trainer.
    fn all_step(&self) -> bool {
        let steps = |member: &Member| self.phase.stepping.contains(member);
        let registered = |member: &Member| self.slots.member(*member).is_some();
        match &self.phase.work {
            Work::Lanes(lanes) => lanes.owners().all(|owner| steps(&owner) || !registered(&owner)),
            Work::Queue(queue) => self
                .slots
                .holders(Role::Trainer)
                .map(|holder| holder.member)
                .all(|member| steps(&member) || !queue.holds(member)),
        }
    }

    /// A trainer has taken its first step in this epoch: a rollback is over when all have, the loss of a trainer when
    /// its replacement has.
    pub(crate) fn incidents_stepping(&mut self, member: Member) {
        self.phase.stepping.insert(member);
        if self.open_incidents().next().is_none() {
            return;
        }
        let all = self.all_step();
        self.close_incidents(|incident| match incident.rolls_back() {
            true => all && incident.held.is_some(),
            false => incident.registered.is_some() && incident.view.slot == Some(member.slot),
        });
    }

    /// The phase is over: whatever was lost has been made up for.
    pub(crate) fn incidents_phase_over(&mut self) {
        self.close_incidents(|incident| {
            !incident.rolls_back() || incident.held.is_some() || incident.taken_over
        });
    }

    fn close_incidents(&mut self, over: impl Fn(&Incident) -> bool) {
        let now = self.now.mono;
        let mut told = Vec::new();
        for incident in self.open_incidents() {
            if over(incident) {
                let from = incident.held.or(incident.registered).unwrap_or(incident.noticed);
                // Where nothing was rolled back, trainers worked on without an ApplicationMaster.
                if !incident.taken_over {
                    incident.view.resume_ms = Some(now.since(from));
                }
                incident.view.done = true;
                told.push(incident.view.clone());
            }
        }
        for view in told {
            self.notice(view::Event::Recovered(view));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn incident(at_ms: u64, done: bool) -> Incident {
        Incident {
            view: RecoveryView {
                cause: String::new(),
                slot: Some(Slot::trainer(0)),
                at_ms,
                epoch_before: Epoch::default(),
                epoch_after: Epoch::default(),
                base: None,
                phase: PhaseNo(0),
                step: Step(0),
                base_step: None,
                checkpoint_ms: None,
                notice_ms: None,
                restart_ms: None,
                load_ms: None,
                resume_ms: None,
                done,
            },
            noticed: Mono::default(),
            registered: None,
            held: None,
            taken_over: false,
        }
    }

    #[test]
    fn of_many_recoveries_the_newest_are_kept_and_all_are_counted() {
        let mut incidents = Incidents::default();
        // The first is under way for as long as it takes.
        incidents.push(incident(0, false));
        let most = RECOVERIES_MAX as u64;
        for at_ms in 1..most + 20 {
            incidents.push(incident(at_ms, true));
        }
        let kept: Vec<u64> = incidents.views().map(|view| view.at_ms).collect();
        let newest = 21..most + 20;
        let expected: Vec<u64> = std::iter::once(0).chain(newest).collect();
        assert_eq!(kept, expected);
        assert_eq!(incidents.total(), most + 20);
        // Without one that is over, the oldest goes.
        let mut open = Incidents::default();
        for at_ms in 0..=most {
            open.push(incident(at_ms, false));
        }
        assert_eq!(open.views().next().map(|view| view.at_ms), Some(1));
        assert_eq!(open.views().count(), RECOVERIES_MAX);
    }
}
