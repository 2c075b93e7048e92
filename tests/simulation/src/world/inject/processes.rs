//! Processes that end, are given up, stand still, or whose clocks jump.

use heddle_am_core::{ContainerName, Event, Exit};
use heddle_protocol::ids::{Role, Slot};

use super::super::super::chance::Chance;
use super::super::super::standstill::Standstill;
use super::super::trouble::Curse;
use super::super::{Am, Item, JOURNAL, STORE, Wire, World};

impl World {
    pub(super) fn end_one(
        &mut self,
        role: Role,
        exit: Exit,
        chance: &mut Chance,
    ) -> Result<bool, String> {
        let Some(number) = self.choose(&self.of_role(role), chance) else {
            return Ok(false);
        };
        self.end_badly(number, exit)?;
        Ok(true)
    }

    pub(super) fn lose_one(&mut self, role: Role, chance: &mut Chance) -> bool {
        let number =
            self.choose(&self.of_role(role), chance).filter(|number| self.lost.insert(*number));
        let Some(number) = number else { return false };
        let event = Event::Exited {
            container: ContainerName(number.to_string()),
            exit: Exit::NodeLost,
            text: String::new(),
        };
        self.push(Wire::Cluster, Item::Event(Box::new(event)));
        true
    }

    fn one_slot(&mut self, chance: &mut Chance) -> Option<(u64, Slot)> {
        let number = self.choose(&self.all_containers(), chance)?;
        Some((number, self.containers.get(&number)?.member.slot))
    }

    /// From now on the processes of a slot end soon after they were started: a few of them, or all.
    pub(super) fn curse_one(&mut self, chance: &mut Chance) -> bool {
        let Some((number, slot)) = self.one_slot(chance) else {
            return false;
        };
        let exit = if chance.one_in(2) { Exit::Signal(9) } else { Exit::Code(77) };
        let left = 1 + chance.below(10) as u32;
        self.trouble.cursed.insert(slot, Curse { exit, left });
        self.doom(number);
        true
    }

    /// From now on the processes of a slot need more memory than the spec gives them.
    pub(super) fn starve_one(&mut self, chance: &mut Chance) -> bool {
        let Some((number, slot)) = self.one_slot(chance) else {
            return false;
        };
        let is_news = self.trouble.hungry.insert(slot);
        self.doom(number);
        is_news
    }

    pub(super) fn kill_am(&mut self, chance: &mut Chance) -> Result<bool, String> {
        let Some(leader) = self.leader.take() else {
            return Ok(false);
        };
        self.ams.remove(&leader);
        self.lose_am(leader)?;
        let within = [20, 80, 200][chance.below(3)];
        self.am_returns_at = self.events + chance.below(within) as u64;
        Ok(true)
    }

    /// The cluster gives the ApplicationMaster up and starts another one, while the first lives on.
    pub(super) fn replace_am(&mut self, chance: &mut Chance) -> bool {
        let Some(leader) = self.leader.take() else {
            return false;
        };
        self.wires.remove(&Wire::Cluster);
        self.am_returns_at = self.events + chance.below(100) as u64;
        if chance.one_in(2) {
            let pause = Standstill::random(self.events, self.now_ms, chance);
            if let Some(am) = self.ams.get_mut(&leader) {
                am.pause(pause, self.now_ms);
            }
        }
        true
    }

    fn led(&mut self) -> Option<&mut Am> {
        self.leader.and_then(|leader| self.ams.get_mut(&leader))
    }

    /// The threads of a process hang, but for the one that sends heartbeats.
    pub(super) fn hang_one(&mut self, chance: &mut Chance) -> bool {
        let hang = match chance.one_in(2) {
            true => Standstill::random(self.events, self.now_ms, chance),
            false => Standstill::ENDLESS,
        };
        let chosen = self.choose(&self.all_containers(), chance);
        let now_ms = self.now_ms;
        let container = chosen.and_then(|n| self.containers.get_mut(&n));
        container.map(|c| (c.hang, c.hangs_since_ms) = (hang, now_ms)).is_some()
    }

    /// The ApplicationMaster stands still. The cluster does not notice.
    pub(super) fn pause_am(&mut self, chance: &mut Chance) -> bool {
        let pause = Standstill::random(self.events, self.now_ms, chance);
        let now_ms = self.now_ms;
        self.led().map(|am| am.pause(pause, now_ms)).is_some()
    }

    /// The wall clock of the ApplicationMaster's node is set, by up to two hours either way.
    pub(super) fn wall_jumps(&mut self, chance: &mut Chance) -> bool {
        let jump_ms = chance.below(14_400_000) as i64 - 7_200_000;
        self.led().map(|am| am.wall_offset_ms += jump_ms).is_some()
    }

    /// The machine of the ApplicationMaster was asleep: its own clock is ahead by up to two minutes.
    pub(super) fn clock_leaps(&mut self, chance: &mut Chance) -> bool {
        let leap_ms = chance.below(120_000) as u64;
        self.led().map(|am| am.leap(leap_ms)).is_some()
    }

    /// What was on its way to the journal and the store when an ApplicationMaster died arrives in part.
    fn lose_am(&mut self, attempt: u32) -> Result<(), String> {
        let down = self.trouble.storage_is_down(self.events);
        for kind in [JOURNAL, STORE] {
            let items = self.wires.remove(&Wire::Am(attempt, kind)).unwrap_or_default();
            let arrives = self.chance.below(items.len() + 1);
            for item in items.into_iter().take(arrives).filter(|_| !down) {
                match item {
                    Item::Record(_, record) => self.durable.journal.push(*record),
                    Item::Call(_, call) => {
                        let before = self.durable.checkpoints.len();
                        self.durable.store(attempt, &call);
                        self.check_commit(before)?;
                    }
                    _ => {}
                }
            }
        }
        self.wires.retain(|wire, _| !matches!(wire, Wire::Am(of, _) if *of == attempt));
        self.wires.remove(&Wire::Cluster);
        self.close_lines_of(attempt);
        Ok(())
    }
}
