//! The edges of a slot, as a table: `slot_edges.txt`.

use super::*;
use crate::event::Exit;
use crate::fleet::registration::ContainerEnd;
use crate::tables::{self, Machine};

const SLOT: Slot = Slot { role: Role::Trainer, index: 0 };

/// The numbers of two containers that an earlier attempt has started.
const EARLIER: [u32; 2] = [5, 6];

/// A job with one trainer's slot.
#[derive(Clone)]
struct SlotMachine {
    fleet: Fleet,
    ctx: Context,
    connections: u64,
}

impl SlotMachine {
    fn begin() -> Self {
        let mut spec = heddle_protocol::job_spec::job::sample();
        (spec.pservers.count, spec.trainers.min, spec.trainers.max) = (0, 0, 1);
        let config = Arc::new(tables::config(spec));
        let mut ctx = Context::new(Arc::clone(&config));
        ctx.set_identity(heddle_protocol::ids::Attempt(2), Generation(2));
        let mut fleet = Fleet::new(&config, Arc::default());
        fleet.begin(&[], &ctx);
        let earlier = EARLIER.map(|number| (ContainerName(number.to_string()), "node".to_owned()));
        fleet.adopt(earlier);
        let mut slot = Self { fleet, ctx, connections: 0 };
        // Two containers of this attempt were there and are given up.
        for _ in 0..2 {
            slot.on("looks for slots to fill");
            slot.fleet.slots.vacate(SLOT, MonotonicMs(0));
        }
        slot
    }

    fn slots(&self) -> &Slots {
        &self.fleet.slots
    }

    fn incarnation(&self) -> Incarnation {
        self.slots().entries[&SLOT].incarnation
    }

    fn name(&self) -> Option<ContainerName> {
        self.slots().container(SLOT).cloned()
    }

    fn register(&mut self, incarnation: u32, container: Option<String>) {
        self.connections += 1;
        let member = Member { slot: SLOT, incarnation: Incarnation(incarnation) };
        let registration = tables::registration(member, container);
        let connection = ConnectionId(self.connections);
        let _ = self.fleet.register(connection, registration, None, &mut self.ctx);
    }

    fn granted(&mut self, incarnation: u32) {
        let name = ContainerName(format!("c{incarnation}"));
        let (number, node) = (Incarnation(incarnation), "node".to_owned());
        self.fleet.allocated(name, SLOT, number, node, &mut self.ctx);
    }

    fn lose(&mut self, loss: Option<Loss>) {
        if let Some(loss) = loss {
            let _ = self.fleet.lose(loss, false, &mut self.ctx);
        }
    }

    fn exits(&mut self, exit: &Exit) {
        let Some(name) = self.name() else { return };
        if let ContainerEnd::Lost(loss) = self.fleet.exited(&name, exit, "", &mut self.ctx) {
            self.lose(Some(loss));
        }
    }
}

impl Machine for SlotMachine {
    fn state(&self) -> String {
        let entry = &self.slots().entries[&SLOT];
        let status = match &entry.status {
            SlotStatus::Empty { not_before } if *not_before > self.ctx.now() => "Empty for a while",
            SlotStatus::Empty { .. } => "Empty",
            SlotStatus::Asked => "Asked",
            SlotStatus::Starting { .. } => "Starting",
            SlotStatus::Held(holder) => {
                match EARLIER.map(|number| number == holder.member.incarnation.0) {
                    [true, _] => "Held by 5 of an earlier attempt",
                    [_, true] => "Held by 6 of an earlier attempt",
                    _ => "Held",
                }
            }
        };
        let holder = self.slots().holder(SLOT);
        let is_away = holder.is_some_and(|holder| !holder.link.is_connected());
        let away = if is_away { " without a connection" } else { "" };
        let drains = holder.is_some_and(|holder| holder.draining.is_some());
        let draining = if drains { ", draining" } else { "" };
        let wanted = if entry.wanted { "" } else { ", not wanted" };
        let adopting = if self.fleet.adopting { "" } else { ", adoption is over" };
        format!("{status}{away}{draining}{wanted}{adopting}")
    }

    fn on(&mut self, event: &str) -> String {
        let latest = self.incarnation().0;
        match event {
            "looks for slots to fill" => {
                self.fleet.slots.changed = true;
                self.fleet.reconcile(true, |_| true, &mut self.ctx).expect("numbers are left");
            }
            "granted" => self.granted(latest),
            "granted for an older request" => self.granted(latest.saturating_sub(1)),
            "registers" => self.register(latest, self.name().map(|name| name.0)),
            "its predecessor registers" => self.register(latest.saturating_sub(1), None),
            "5 of an earlier attempt registers" => self.register(5, Some("5".to_owned())),
            "6 of an earlier attempt registers" => self.register(6, Some("6".to_owned())),
            "adoption ends" if !self.fleet.adopting => {}
            "adoption ends" => self.fleet.stop_adopting(&mut self.ctx),
            "exits with code 1" => self.exits(&Exit::Code(1)),
            "is preempted" => self.exits(&Exit::Preempted),
            "its connection closes" => {
                let connection =
                    self.slots().holder(SLOT).and_then(|holder| holder.link.connection());
                if let Some(connection) = connection {
                    self.fleet.closed(connection, &mut self.ctx);
                }
            }
            "its node is unreachable" => {
                let name = self.name();
                let ctx = &mut self.ctx;
                let loss = name.and_then(|name| self.fleet.node_unreachable(&name, "lost", ctx));
                self.lose(loss);
            }
            "emptied, with a wait" => {
                let later = self.ctx.now() + 1_000;
                self.fleet.slots.vacate(SLOT, later);
            }
            "the wait is over" => {
                let mono = self.ctx.now() + 3_600_000;
                self.ctx.set_time(crate::time::Now { mono, wall_ms: 0 });
            }
            "no trainer is wanted" | "one trainer is wanted" => {
                let trainers = u32::from(event.starts_with("one"));
                let now = self.fleet.wanted_size();
                let size = JobSize { trainers, ..now.size };
                let to = WantedSize { size, ..now };
                if now != to {
                    let drains = self.fleet.scale(to, &mut self.ctx);
                    assert!(drains.is_ok(), "it is within the bounds");
                    for slot in drains.into_iter().flatten() {
                        let _ = self.fleet.drain(slot, &mut self.ctx);
                    }
                }
            }
            _ => panic!("{event:?} is not an event"),
        }
        tables::taken(&mut self.ctx)
    }
}

#[test]
fn edges_of_a_slot_are_those_of_their_table() {
    let events = [
        "looks for slots to fill",
        "granted",
        "granted for an older request",
        "registers",
        "its predecessor registers",
        "5 of an earlier attempt registers",
        "6 of an earlier attempt registers",
        "adoption ends",
        "exits with code 1",
        "is preempted",
        "its connection closes",
        "its node is unreachable",
        "emptied, with a wait",
        "the wait is over",
        "no trainer is wanted",
        "one trainer is wanted",
    ];
    let found =
        tables::edges("The edges of a trainer's slot.", SlotMachine::begin(), &events, None);
    tables::check("fleet/slot_edges.txt", include_str!("slot_edges.txt"), &found);
}
