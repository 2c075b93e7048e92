//! Faults for tests: environment variable `HEDDLE_TEST_HOOK`, a list with commas. Without it this module does nothing.
//!
//! | entry | effect |
//! | --- | --- |
//! | `die:staged:step=N` | the process exits at once (137) on the first `Done` of step N: that lane is staged on all shards, and the step is not applied here |
//! | `tell:pushes` | logs the number of applied pushes fifty times a second, with or without an ApplicationMaster |
//!
//! The suffix `:slot=K` limits an entry to that pserver. Entries apply to a container's first incarnation only, so that its
//! successor survives. Unknown entries are for trainers.

use std::time::Duration;

use heddle_protocol::frame::{Header, Kind};
use heddle_protocol::ids::{Incarnation, Member};

use crate::message::DataThreadHandle;

/// Name of the variable.
const TEST_HOOK: &str = "HEDDLE_TEST_HOOK";
/// Exit code of a process that signal 9 killed.
const KILLED: i32 = 137;
/// Interval of the log lines.
const LOG_EVERY: Duration = Duration::from_millis(20);

/// Faults of this pserver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hook {
    die_staged: Option<u64>,
    logs_pushes: bool,
}

impl Hook {
    /// From the environment of this process.
    pub(crate) fn from_process(member: Member) -> Self {
        let text = std::env::var(TEST_HOOK).unwrap_or_default();
        Self::parse(&text, member)
    }

    fn parse(text: &str, member: Member) -> Self {
        let mut hook = Self {
            logs_pushes: text.split(',').any(|entry| entry == "tell:pushes"),
            ..Self::default()
        };
        if member.incarnation > Incarnation(1) {
            return hook;
        }
        for entry in text.split(',') {
            let Some(words) = entry.strip_prefix("die:staged:") else {
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

    /// Logs the pushes of these threads, if the variable says so.
    pub(crate) fn log_pushes(self, threads: &[DataThreadHandle]) {
        if !self.logs_pushes {
            return;
        }
        let threads = threads.to_vec();
        std::thread::spawn(move || {
            loop {
                let pushes: u64 = threads.iter().map(|thread| thread.counters.read().0).sum();
                tracing::info!(pushes, "taken so far");
                std::thread::sleep(LOG_EVERY);
            }
        });
    }

    /// Call it before each frame is handled.
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
    fn first_container_of_the_slot_exits_at_the_step() {
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
