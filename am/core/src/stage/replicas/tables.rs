//! Placement, promotion, refill and hand-over as tables: `tables/*.txt`, each a story of commands and what they change.
//!
//! A block is comments, commands, `----` and the outcome. `UPDATE=1 cargo test -p heddle-am-core tables` writes the outcomes
//! again. A view is `SHARD [IN-SYNC SET, THE PRIMARY FIRST] term version`, and `filling` the receivers of its refills; `p0'` is
//! the next container of pserver 0.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use heddle_protocol::ids::{Incarnation, Member, ShardId, Slot, Term, ViewVersion};

use super::*;
use crate::stage::placement::place_backups;
use crate::tables::{self, Machine};

/// A pserver of a table.
#[derive(Clone)]
struct Pserver {
    member: Member,
    host: String,
    stays: bool,
}

/// The views of a job, and its pservers.
#[derive(Clone, Default)]
struct Story {
    replicas: u32,
    in_use: usize,
    pservers: BTreeMap<Slot, Pserver>,
    views: SettledViews,
    stopping: Vec<heddle_protocol::control::ShardStop>,
    now: u64,
}

fn slot(name: &str) -> Slot {
    let index = name.strip_prefix('p').and_then(|index| index.parse().ok());
    Slot::pserver(index.unwrap_or_else(|| panic!("{name:?} is not a pserver such as p0")))
}

fn name(member: Member) -> String {
    let next = "'".repeat(member.incarnation.0 as usize - 1);
    format!("p{}{next}", member.slot.index)
}

fn names(members: impl IntoIterator<Item = Member>) -> String {
    members.into_iter().map(name).collect::<Vec<_>>().join(" ")
}

impl Story {
    /// `job shards=6 hosts=a,b,c replicas=1`; with `pservers=2` the third pserver is a spare.
    fn begin(words: &[&str]) -> Self {
        let mut story = Self::default();
        let mut shards = 0;
        for word in words {
            let (key, value) = word.split_once('=').unwrap_or_else(|| panic!("{word:?}"));
            let number = || value.parse().unwrap_or_else(|_| panic!("{word:?}"));
            match key {
                "shards" => shards = number(),
                "replicas" => story.replicas = number(),
                "pservers" => story.in_use = number() as usize,
                "hosts" => value.split(',').zip(0..).for_each(|(host, index)| {
                    story.register(Slot::pserver(index), host);
                }),
                _ => panic!("{word:?} is not an option of a job"),
            }
        }
        if story.in_use == 0 {
            story.in_use = story.pservers.len();
        }
        let map = ShardMap::even(shards, story.in_use as u32);
        let in_use = |slot: &Slot| (slot.index as usize) < story.in_use;
        let hosts = story.pservers.iter().filter(|(slot, _)| in_use(slot));
        let hosts = hosts.map(|(slot, pserver)| (*slot, pserver.host.clone())).collect();
        let backups = place_backups(&map, &hosts, story.replicas);
        let member = |slot: &Slot| story.pservers[slot].member;
        let view = |((shard, primary), backups): ((ShardId, Slot), &Vec<Slot>)| RecordedView {
            shard,
            term: Term(1),
            version: ViewVersion(1),
            primary: member(&primary),
            in_sync: std::iter::once(&primary).chain(backups).map(member).collect(),
            fills: Vec::new(),
            began_at: None,
        };
        let mut views = ShardViews::default();
        views.take_over(map.iter().zip(&backups).map(view).collect(), BTreeMap::new());
        story.views = views.settled().expect("they are settled").clone();
        story
    }

    fn register(&mut self, slot: Slot, host: &str) {
        let before = self.views.views.iter().flat_map(RecordedView::members);
        let lost = before.filter(|member| member.slot == slot).count() as u32;
        assert_eq!(lost, 0, "{slot} is lost before it comes again");
        let incarnation = Incarnation(if self.now == 0 { 1 } else { 2 });
        let (member, host) = (Member { slot, incarnation }, host.to_owned());
        self.pservers.insert(slot, Pserver { member, host, stays: true });
    }

    fn places(&self) -> RefillPlaces {
        let place = |(slot, pserver): (&Slot, &Pserver)| {
            let (member, host) = (pserver.member, pserver.host.clone());
            let stays = pserver.stays;
            (*slot, RefillPlace { member, host, threads: 1, room: 100, stays })
        };
        RefillPlaces {
            pservers: self.pservers.iter().map(place).collect(),
            copies: 1 + self.replicas as usize,
            in_use: self.in_use,
            senders: self.views.views.iter().map(|view| (view.primary.slot, 0)).collect(),
            avoided: self.views.avoided_paths(MonotonicMs(self.now)),
        }
    }

    fn served(&self, shard: &str) -> ServedShard {
        let shard = ShardId(shard.parse().expect("a shard"));
        let view = self.views.views.view(shard).expect("a shard of the job");
        ServedShard { primary: view.primary, shard, term: view.term }
    }

    /// Performs a command. Returns its outcome.
    fn perform(&mut self, command: &str) -> String {
        self.now += 1;
        let now = MonotonicMs(self.now);
        let words: Vec<&str> = command.split(' ').collect();
        match words[..] {
            ["lose", lost] => {
                self.pservers.remove(&slot(lost));
                match self.views.lose(slot(lost)) {
                    Ok(changed) => self.changed(Some(changed)),
                    Err(none_left) => format!("{none_left}: a rollback\n"),
                }
            }
            [backup, "lags", "in", shard] => {
                let backup = self.pservers[&slot(backup)].member;
                let served = self.served(shard);
                let changed = self.views.leave_out(served, backup, now);
                self.changed(changed)
            }
            [backup, "is", "ahead", "in", shard] => {
                let backup = self.pservers[&slot(backup)].member;
                let served = self.served(shard);
                let changed = self.views.promote_instead(served, backup);
                self.changed(changed)
            }
            [comes, "comes", "on", host] => {
                self.register(slot(comes), host);
                String::new()
            }
            [leaves, "is", "to", "leave"] => {
                self.pservers.get_mut(&slot(leaves)).expect("it is there").stays = false;
                String::new()
            }
            ["refill"] => {
                let places = self.places();
                let changed = self.views.order_fills(&places);
                self.changed(Some(changed))
            }
            ["spread"] => {
                let places = self.places();
                let changed = self.views.order_spread(&places);
                self.changed(Some(changed))
            }
            ["surplus"] => {
                let places = self.places();
                let changed = self.views.drop_surplus(&places);
                self.changed(changed)
            }
            _ => self.order(command, &words),
        }
    }

    /// Performs a command about refills and hand-overs.
    fn order(&mut self, command: &str, words: &[&str]) -> String {
        let now = MonotonicMs(self.now);
        match words[..] {
            [receiver, "takes", "nothing", "of", shard] => {
                let (served, places) = (self.served(shard), self.places());
                let receiver = self.pservers[&slot(receiver)].member;
                match self.views.fill_fails(served, receiver, now, &places) {
                    Some(FailedFill::Ends(changed)) => self.changed(Some(changed)),
                    Some(FailedFill::GoesOn) => "it goes on\n".to_owned(),
                    None => "ignored\n".to_owned(),
                }
            }
            ["filled"] => self.end_fills(),
            ["hand", "over"] => {
                let (views, pservers) = (&mut self.views, &self.pservers);
                let serves = |slot: Slot| pservers.get(&slot).is_some_and(|it| it.stays);
                let order = views.order_hand_over(|slot| pservers.contains_key(&slot), serves);
                let Some((from, stops)) = order else { return "nothing\n".to_owned() };
                let shards: Vec<ShardId> = stops.iter().map(|stop| stop.shard).collect();
                self.stopping = stops;
                format!("{} stops {}\n", name(from), shards_text(&shards))
            }
            ["drained"] => {
                let mut outcome = "nothing\n".to_owned();
                for stop in std::mem::take(&mut self.stopping) {
                    let served = self.served(&stop.shard.to_string());
                    if let Some(over) = self.views.drained(served.primary, stop, 7) {
                        outcome = format!("{:?}\n{}", over.cause, self.changed(Some(over.changed)));
                    }
                }
                outcome
            }
            ["views"] => {
                let shards = self.views.views.iter().map(|view| view.shard).collect();
                self.changed(Some(ChangedViews { shards, ..ChangedViews::default() }))
            }
            _ => panic!("{command:?} is not a command"),
        }
    }

    /// All refills under way end well.
    fn end_fills(&mut self) -> String {
        let views = self.views.views.clone();
        let mut shards = Vec::new();
        for view in views.iter() {
            for fill in view.open_fills() {
                let served =
                    ServedShard { primary: view.primary, shard: view.shard, term: view.term };
                let filled = self.views.filled(served, fill.member, fill.version);
                shards.extend(filled.into_iter().flat_map(|changed| changed.shards));
            }
        }
        self.changed(Some(ChangedViews { shards, ..ChangedViews::default() }))
    }

    fn changed(&self, changed: Option<ChangedViews>) -> String {
        let Some(changed) = changed.and_then(ChangedViews::if_any) else {
            return "nothing\n".to_owned();
        };
        let mut text = String::new();
        for shard in &changed.shards {
            let view = self.views.views.view(*shard).expect("a shard of the job");
            assert_eq!(view.in_sync[0], view.primary, "the primary is the first");
            let in_sync = names(view.in_sync.iter().copied());
            let slots: BTreeSet<Slot> = view.members().map(|member| member.slot).collect();
            assert_eq!(slots.len(), view.members().count(), "copies are on different pservers");
            write!(text, "{shard} [{in_sync}] t{} v{}", view.term.0, view.version.0)
                .expect("it fits");
            let filling = names(view.open_fills().map(|fill| fill.member));
            if !filling.is_empty() {
                write!(text, " filling {filling}").expect("it fits");
            }
            if changed.promoted.contains(shard) {
                text.push_str(" promoted");
            }
            text.push('\n');
        }
        text
    }
}

/// The table with the outcomes as they are.
fn evaluated(table: &str) -> String {
    let mut story = Story::default();
    let block = |block: &str| {
        let (head, _) = block.split_once("----").unwrap_or((block, ""));
        let mut outcome = String::new();
        for command in head.lines().filter(|line| !line.starts_with('#')) {
            if let Some(options) = command.strip_prefix("job ") {
                story = Story::begin(&options.split(' ').collect::<Vec<_>>());
                outcome += &story.perform("views");
            } else {
                outcome += &story.perform(command);
            }
        }
        let head = head.trim_end();
        if outcome.is_empty() { format!("{head}\n") } else { format!("{head}\n----\n{outcome}") }
    };
    table.trim().split("\n\n").map(block).collect::<Vec<_>>().join("\n")
}

fn check(path: &str, table: &str) {
    tables::check(&format!("stage/replicas/tables/{path}"), table, &evaluated(table));
}

/// Shard 0 has primary p0 alone; p1 and p2 can take a copy. Views are named without their numbers.
impl Machine for Story {
    fn state(&self) -> String {
        let Some(view) = self.views.views.view(ShardId(0)) else {
            return "no copy left".to_owned();
        };
        let copies = names(view.in_sync.iter().copied());
        let filling = names(view.open_fills().map(|fill| fill.member));
        let filling = if filling.is_empty() { filling } else { format!(" filling {filling}") };
        let here = self.pservers.values().map(|pserver| pserver.member);
        format!("[{copies}]{filling}, there: {}", names(here))
    }

    fn on(&mut self, event: &str) -> String {
        let is_here = |name| self.pservers.contains_key(&slot(name));
        if self.views.views.view(ShardId(0)).is_none() {
            return String::new();
        }
        if let [name, "takes", ..] | ["lose", name] = event.split(' ').collect::<Vec<_>>()[..]
            && !is_here(name)
        {
            return String::new();
        }
        let before = self.state();
        let outcome = match event {
            "filled by an older order" => {
                let view = self.views.views.view(ShardId(0)).expect("the shard");
                let fill = view.open_fills().next().map(|fill| (fill.member, fill.version));
                let filled = fill.and_then(|(member, version)| {
                    let older = ViewVersion(version.0 - 1);
                    self.views.filled(self.served("0"), member, older)
                });
                self.changed(filled)
            }
            _ => self.perform(event),
        };
        if outcome.contains("rollback") {
            *self = Self::default();
        }
        let says_more = outcome.contains("goes on") || outcome.contains("rollback");
        let is_promotion = outcome.contains("promoted");
        match () {
            () if says_more => outcome.trim().to_owned(),
            () if is_promotion => "promoted".to_owned(),
            () if self.state() == before && !outcome.starts_with("nothing") => {
                outcome.trim().replace("ignored", "")
            }
            () => String::new(),
        }
    }
}

#[test]
fn edges_of_a_fill_are_those_of_their_table() {
    let options = ["shards=1", "hosts=a,b,c", "replicas=1"];
    let mut story = Story::begin(&options);
    story.perform("lose p1");
    story.perform("p1 comes on b");
    let events = [
        "refill",
        "filled",
        "filled by an older order",
        "p1 takes nothing of 0",
        "p2 takes nothing of 0",
        "lose p0",
        "lose p1",
        "lose p2",
    ];
    let found = tables::edges(
        "The edges of a refill of shard 0.",
        story,
        &events,
        Some("filled by an older order"),
    );
    let table = include_str!("tables/fill_edges.txt");
    tables::check("stage/replicas/tables/fill_edges.txt", table, &found);
}

#[test]
fn placement_is_that_of_its_table() {
    check("placement.txt", include_str!("tables/placement.txt"));
}

#[test]
fn promotions_are_those_of_their_table() {
    check("promotion.txt", include_str!("tables/promotion.txt"));
}

#[test]
fn refills_are_those_of_their_table() {
    check("refill.txt", include_str!("tables/refill.txt"));
}

#[test]
fn hand_overs_are_those_of_their_table() {
    check("hand_over.txt", include_str!("tables/hand_over.txt"));
}
