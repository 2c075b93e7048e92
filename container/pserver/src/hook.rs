//! A fault on order, for tests: environment variable `HEDDLE_TEST_HOOK`, orders with commas between them.
//! Without it, nothing here does anything.
//!
//! | order | effect |
//! | --- | --- |
//! | `die:staged:step=N` | the process exits at once (137) when it hears the first `Done` of step N: that lane is staged on all shards, and the step is not applied here |
//! | `tell:pushes` | the log tells fifty times a second how many pushes were taken, whoever leads and if anybody does |
//!
//! `:slot=K` behind the order means that pserver alone. Only a container's first incarnation obeys, so that its
//! successor lives. Orders that are not known here are the trainers'.

use std::time::Duration;

use heddle_protocol::frame::{Header, Kind};
use heddle_protocol::ids::{Incarnation, Member};

use crate::command::DataThread;

/// The variable's name.
const TEST_HOOK: &str = "HEDDLE_TEST_HOOK";
/// What a process ends with that was killed by signal 9.
const KILLED: i32 = 137;
/// From one telling to the next.
const TELL_EVERY: Duration = Duration::from_millis(20);

/// What tests ordered of this pserver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hook {
    die_staged: Option<u64>,
    tells: bool,
}

impl Hook {
    /// Out of the environment of this process.
    pub(crate) fn from_process(member: Member) -> Self {
        let text = std::env::var(TEST_HOOK).unwrap_or_default();
        Self::parse(&text, member)
    }

    fn parse(text: &str, member: Member) -> Self {
        let mut hook =
            Self { tells: text.split(',').any(|order| order == "tell:pushes"), ..Self::default() };
        if member.incarnation > Incarnation(1) {
            return hook;
        }
        for order in text.split(',') {
            let Some(words) = order.strip_prefix("die:staged:") else {
                continue;
            };
            let number = |name| {
                words.split(':').find_map(|word| word.strip_prefix(name)?.parse::<u64>().ok())
            };
            if number("slot=").is_none_or(|slot| slot == u64::from(member.slot.index)) {
                hook.die_staged = number("step=");
            }
        }
        hook
    }

    /// Tells on and on what these threads have taken, if that was ordered.
    pub(crate) fn tell(self, threads: &[DataThread]) {
        if !self.tells {
            return;
        }
        let threads = threads.to_vec();
        std::thread::spawn(move || {
            loop {
                let pushes: u64 = threads.iter().map(|thread| thread.counters.read().0).sum();
                tracing::info!(pushes, "taken so far");
                std::thread::sleep(TELL_EVERY);
            }
        });
    }

    /// To be called before a frame is dealt with.
    pub(crate) fn strike(self, header: &Header) {
        if self.strikes(header) {
            std::process::exit(KILLED);
        }
    }

    fn strikes(self, header: &Header) -> bool {
        self.die_staged.is_some_and(|step| header.kind == Kind::Done && header.step.0 == step)
    }
}

#[cfg(test)]
mod tests {
    use heddle_protocol::ids::{Epoch, Slot, Step};

    use super::*;

    #[test]
    fn the_first_container_of_the_slot_dies_at_the_step() {
        let member = |index, incarnation| Member {
            slot: Slot::pserver(index),
            incarnation: Incarnation(incarnation),
        };
        let strikes = |text, member, kind, step| {
            let mut header = Header::new(kind, Epoch::default());
            header.step = Step(step);
            Hook::parse(text, member).strikes(&header)
        };
        let text = "slow:3,die:staged:step=7:slot=1";
        assert!(strikes(text, member(1, 1), Kind::Done, 7));
        assert!(!strikes(text, member(1, 1), Kind::Done, 6));
        assert!(!strikes(text, member(1, 1), Kind::Push, 7));
        assert!(!strikes(text, member(1, 2), Kind::Done, 7));
        assert!(!strikes(text, member(0, 1), Kind::Done, 7));
        assert!(!strikes("", member(0, 1), Kind::Done, 0));
        assert!(!strikes("tell:pushes", member(0, 1), Kind::Done, 0));
        assert!(!strikes("die:before-push:step=7", member(0, 1), Kind::Done, 7));
    }
}
