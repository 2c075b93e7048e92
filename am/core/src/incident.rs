//! What a loss cost: the five stretches of a recovery.

use heddle_protocol::ids::{CutId, Epoch, Member, PhaseNo, Role, Slot, Step};
use heddle_protocol::view::{self, RecoveryView};

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
}

impl Core {
    /// Opens the report of a loss. `sign` is the last sign of life.
    pub(crate) fn open_incident(&mut self, slot: Slot, cause: String, sign: Mono) {
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
            notice_ms: Some(noticed.since(sign)),
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
        });
    }

    fn open_incidents(&mut self) -> impl Iterator<Item = &mut Incident> {
        self.incidents
            .iter_mut()
            .filter(|incident| !incident.view.done)
    }

    /// A rollback begins: it answers every loss that is not over.
    pub(crate) fn incidents_roll_back(
        &mut self,
        epoch: Epoch,
        base: Option<(CutId, u64, PhaseNo, Step)>,
    ) {
        let wall_ms = self.now.wall_ms;
        for incident in self
            .open_incidents()
            .filter(|incident| incident.view.slot.role == Role::Pserver)
        {
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
        let open =
            |incident: &&mut Incident| incident.view.slot == slot && incident.registered.is_none();
        for incident in self.open_incidents().filter(open) {
            incident.registered = Some(now);
            incident.view.restart_ms = Some(now.since(incident.noticed));
        }
    }

    /// All shards stand again.
    pub(crate) fn incidents_held(&mut self) {
        let now = self.now.mono;
        for incident in self
            .open_incidents()
            .filter(|incident| incident.view.slot.role == Role::Pserver)
        {
            let from = incident.registered.unwrap_or(incident.noticed);
            incident.view.load_ms = Some(now.since(from));
            incident.held = Some(now);
        }
    }

    /// Trainers with work that have not taken a step since they got it.
    fn still(&self) -> Vec<Member> {
        let has_work = |member: Member| match &self.phase.work {
            Work::Lanes(lanes) => !lanes.of(member).is_empty(),
            Work::Queue(queue) => !queue.held_by(member).is_empty(),
        };
        let members = self
            .slots
            .holders(Role::Trainer)
            .map(|holder| holder.member);
        members
            .filter(|member| has_work(*member) && !self.phase.stepping.contains(member))
            .collect()
    }

    /// A trainer has taken its first step in this epoch: a rollback is over when all have, the loss of a trainer when
    /// its replacement has.
    pub(crate) fn incidents_stepping(&mut self, member: Member) {
        self.phase.stepping.insert(member);
        let all = self.still().is_empty();
        self.close_incidents(|incident| match incident.view.slot.role {
            Role::Pserver => all && incident.held.is_some(),
            Role::Trainer => incident.registered.is_some() && incident.view.slot == member.slot,
        });
    }

    /// The phase is over: whatever was lost has been made up for.
    pub(crate) fn incidents_phase_over(&mut self) {
        self.close_incidents(|incident| {
            incident.view.slot.role == Role::Trainer || incident.held.is_some()
        });
    }

    fn close_incidents(&mut self, over: impl Fn(&Incident) -> bool) {
        let now = self.now.mono;
        let mut told = Vec::new();
        for incident in self.open_incidents() {
            if over(incident) {
                let from = incident
                    .held
                    .or(incident.registered)
                    .unwrap_or(incident.noticed);
                incident.view.resume_ms = Some(now.since(from));
                incident.view.done = true;
                told.push(incident.view.clone());
            }
        }
        for view in told {
            self.notice(view::Event::Recovered(view));
        }
    }
}
