//! Notices the moments at which a run may draw faults.

use std::collections::{BTreeMap, BTreeSet};

use heddle_protocol::control::{Command, LoadShards, PserverCommand, TakeCut, TrainerCommand};
use heddle_protocol::ids::{CutId, Epoch, Lane, PhaseNo};

use super::super::bursts::{Bursts, Moment};
use super::World;

/// What was ordered so far, as far as it takes to tell a new order from a repeated one.
#[derive(Default)]
pub(super) struct Orders {
    armed: Option<CutId>,
    barrier: Option<CutId>,
    hold: Epoch,
    /// The lanes of a container, and of which epoch and phase.
    lanes: BTreeMap<u64, (Epoch, PhaseNo, BTreeSet<Lane>)>,
}

impl World {
    /// An ApplicationMaster sends this to a container.
    pub(super) fn ordered(&mut self, container: u64, command: &Command) {
        let orders = &mut self.orders;
        match command {
            Command::Pserver(PserverCommand::Cut(TakeCut { cut, .. }))
                if orders.armed.replace(*cut) != Some(*cut) =>
            {
                self.moment(Moment::Cut, None);
            }
            Command::Trainer(TrainerCommand::Barrier { cut, .. })
                if orders.barrier.replace(*cut) != Some(*cut) =>
            {
                self.moment(Moment::Cut, None);
            }
            Command::Pserver(PserverCommand::LoadShards(LoadShards { epoch, .. }))
                if *epoch > orders.hold =>
            {
                let before = std::mem::replace(&mut orders.hold, *epoch);
                if before != Epoch::default() {
                    self.moment(Moment::RollsBack, None);
                }
            }
            Command::Trainer(TrainerCommand::Lanes { epoch, phase, lanes, .. }) => {
                let lanes: BTreeSet<Lane> = lanes.iter().map(|grant| grant.lane).collect();
                let now = (*epoch, *phase, lanes.clone());
                let loses = orders.lanes.insert(container, now).is_some_and(|before| {
                    (before.0, before.1) == (*epoch, *phase) && !before.2.is_subset(&lanes)
                });
                if loses {
                    self.moment(Moment::LaneMoves, Some(container));
                }
            }
            _ => {}
        }
    }

    /// Something is on its way; `about`: a container that may not hear of it.
    pub(super) fn moment(&mut self, moment: Moment, about: Option<u64>) {
        self.focus = about.or(self.focus);
        self.tell(format_args!("moment {moment:?}"));
        let drawn = self.bursts.as_mut().map(Bursts::draw);
        for (after, fault) in drawn.unwrap_or_default() {
            let at = self.events + after;
            let place = self.faults.partition_point(|(before, _)| *before <= at);
            self.faults.insert(place, (at, fault));
        }
    }
}
