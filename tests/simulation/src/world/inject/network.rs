//! Connections that break or are slow, and ways that are closed in one direction or both.

use super::super::super::chance::Chance;
use super::super::data::bytes_of;
use super::super::trouble::AM;
use super::super::{Container, Control, Item, Wire, World};

/// How long something is slow or closed: from a blip to longer than any limit for a silent process. Counted in events,
/// of which a quiet cluster has one or two a second.
fn a_while(chance: &mut Chance) -> u64 {
    match chance.below(3) {
        0 => chance.below(30) as u64,
        1 => chance.below(150) as u64,
        _ => chance.below(500) as u64,
    }
}

impl World {
    /// Each with its container.
    pub(super) fn open_controls(&self) -> Vec<(u64, u64)> {
        let open = |(&number, c): (&u64, &Container)| Some((c.control?, number));
        self.containers.iter().filter_map(open).collect()
    }

    /// Open ones, and such that were replaced while lines are still on their way.
    fn busy_controls(&self) -> Vec<(u64, u64)> {
        let busy = |(&control, link): (&u64, &Control)| {
            let number = link.container;
            let open = self.containers.get(&number)?.control == Some(control);
            (open || self.wires.contains_key(&Wire::ControlUp(control)))
                .then_some((control, number))
        };
        self.controls.iter().filter_map(busy).collect()
    }

    /// Each with its trainer.
    fn open_data_links(&self) -> Vec<(u64, u64)> {
        let open = self.data.iter().filter(|(_, d)| d.trainer != 0);
        open.map(|(&n, d)| (n, d.trainer)).collect()
    }

    /// A data connection breaks in both directions, perhaps in the middle of a frame.
    pub(super) fn break_data(&mut self, chance: &mut Chance) -> bool {
        let Some(data) = self.choose(&self.open_data_links(), chance) else {
            return false;
        };
        for wire in [Wire::DataUp(data), Wire::DataDown(data)] {
            self.cut_short(wire);
        }
        if let Some(link) = self.choose(&self.open_peer_links(), chance) {
            self.break_peer(link);
        }
        true
    }

    /// Each with its primary.
    fn open_peer_links(&self) -> Vec<(u64, u64)> {
        let open = self.peers.iter().filter(|(_, link)| link.from != 0);
        open.map(|(&n, link)| (n, link.from)).collect()
    }

    pub(super) fn lag_control(&mut self, chance: &mut Chance) -> bool {
        let Some(control) = self.choose(&self.busy_controls(), chance) else {
            return false;
        };
        let wire = match chance.one_in(2) {
            true => Wire::ControlUp(control),
            false => Wire::ControlDown(control),
        };
        self.linger(wire, chance);
        true
    }

    pub(super) fn lag_data(&mut self, chance: &mut Chance) -> bool {
        let Some(data) = self.choose(&self.open_data_links(), chance) else {
            return false;
        };
        let wire = match chance.one_in(2) {
            true => Wire::DataUp(data),
            false => Wire::DataDown(data),
        };
        self.linger(wire, chance);
        if let Some(link) = self.choose(&self.open_peer_links(), chance) {
            let wire = if chance.one_in(2) { Wire::PeerUp(link) } else { Wire::PeerDown(link) };
            self.linger(wire, chance);
        }
        true
    }

    /// Nothing of this wire moves for a while.
    pub(super) fn linger(&mut self, wire: Wire, chance: &mut Chance) {
        self.trouble.slow_down(wire, self.events + a_while(chance));
    }

    /// Nothing comes through between a container and the ApplicationMaster, in one direction or both.
    pub(super) fn cut_off_control(&mut self, chance: &mut Chance) -> bool {
        let Some(number) = self.choose(&self.all_containers(), chance) else {
            return false;
        };
        self.close_ways(number, AM, chance);
        true
    }

    /// Nothing comes through between a trainer and a pserver, in one direction or both; nor between a primary and a backup.
    pub(super) fn cut_off_data(&mut self, chance: &mut Chance) -> bool {
        let Some(data) = self.choose(&self.open_data_links(), chance) else {
            return false;
        };
        let (trainer, pserver) = (self.data[&data].trainer, self.data[&data].pserver);
        self.close_ways(trainer, pserver, chance);
        if let Some(link) = self.choose(&self.open_peer_links(), chance) {
            let (primary, backup) = (self.peers[&link].from, self.peers[&link].to);
            self.close_ways(primary, backup, chance);
        }
        true
    }

    fn close_ways(&mut self, a: u64, b: u64, chance: &mut Chance) {
        let until = self.events + a_while(chance);
        let way = chance.below(3);
        if way != 0 {
            self.trouble.close(a, b, until);
        }
        if way != 1 {
            self.trouble.close(b, a, until);
        }
    }

    /// Of what is in a wire some arrives, of the next frame perhaps a part, then its end.
    pub(in super::super) fn cut_short(&mut self, wire: Wire) {
        let items = self.wires.entry(wire).or_default();
        let keep = self.chance.below(items.len() + 1);
        let half = match items.get(keep) {
            Some(Item::Frame(frame)) => {
                let mut bytes = bytes_of(frame);
                bytes.truncate(self.chance.below(bytes.len()));
                Some(Item::Half(bytes))
            }
            _ => None,
        };
        items.truncate(keep);
        items.extend(half);
        items.push_back(Item::End);
    }
}
