//! Faults on order, for tests: environment variable `HEDDLE_TEST_HOOK`, orders with commas between them. Without it,
//! nothing here does anything.
//!
//! | order | effect |
//! | --- | --- |
//! | `slow:FACTOR` | a step takes FACTOR times its computing time |
//! | `pause:MS` | a step takes MS milliseconds longer; `pause:MS:FILE` as long as that file is there |
//! | `detour:MEMBER:HOST:PORT` | data connections to that pserver's container (`pserver-0.1`) go there instead |
//! | `die:before-push:step=N` | the process exits at once (137) instead of pushing step N |
//! | `die:after-push:step=N` | … just after step N was handed to the client |
//! | `die:between-shards:step=N` | … when one pserver was sent its part of step N and the next was not |
//! | `die:before-done:step=N` | … when all have acknowledged step N and none was told that it is done |
//!
//! `:lane=L` behind an order to die means that lane (or task) alone. Only a container's first incarnation obeys
//! `die`, so that its successor lives.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use heddle_client::machine::Unit;
use heddle_client::shell::FrameWatch;
use heddle_protocol::control::ShardPlace;
use heddle_protocol::frame::{Header, Kind};
use heddle_protocol::ids::{Incarnation, Member, Step};

/// The variable's name.
pub const TEST_HOOK: &str = "HEDDLE_TEST_HOOK";
/// What a process ends with that was killed by signal 9.
const KILLED: i32 = 137;

/// What tests ordered.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct TestHooks {
    slow: Option<f64>,
    pause: Duration,
    /// No pause without this file.
    pause_file: Option<PathBuf>,
    die: Option<Die>,
    detour: Option<(String, SocketAddr)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Die {
    when: When,
    step: u64,
    unit: Option<u32>,
}

/// Where in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    BeforePush,
    AfterPush,
    BetweenShards,
    BeforeDone,
}

impl TestHooks {
    /// Out of the environment of this process.
    pub(super) fn from_process(member: Member) -> Self {
        let text = std::env::var(TEST_HOOK).unwrap_or_default();
        let mut hooks = Self::parse(&text);
        if member.incarnation > Incarnation(1) {
            hooks.die = None;
        }
        hooks
    }

    /// Words it does not know are hooks of others.
    fn parse(text: &str) -> Self {
        let mut hooks = Self::default();
        for order in text.split(',') {
            let mut words = order.split(':');
            match (words.next(), words.next()) {
                (Some("slow"), factor) => {
                    hooks.slow = factor.and_then(|factor| factor.parse().ok())
                }
                (Some("pause"), Some(ms)) => {
                    hooks.pause = Duration::from_millis(ms.parse().unwrap_or(0));
                    hooks.pause_file = words.next().map(PathBuf::from);
                }
                (Some("detour"), Some(member)) => {
                    let rest: Vec<&str> = words.collect();
                    let endpoint = rest.join(":").parse().ok();
                    hooks.detour = endpoint.map(|endpoint| (member.to_owned(), endpoint));
                }
                (Some("die"), Some(when)) => {
                    let when = match when {
                        "before-push" => When::BeforePush,
                        "after-push" => When::AfterPush,
                        "between-shards" => When::BetweenShards,
                        "before-done" => When::BeforeDone,
                        _ => continue,
                    };
                    let words: Vec<&str> = words.collect();
                    let number = |name| {
                        words.iter().find_map(|word| word.strip_prefix(name)?.parse::<u64>().ok())
                    };
                    if let Some(step) = number("step=") {
                        let unit = number("lane=").and_then(|unit| u32::try_from(unit).ok());
                        hooks.die = Some(Die { when, step, unit });
                    }
                }
                _ => {}
            }
        }
        hooks
    }

    /// Where shards are served, as far as this trainer is to know.
    pub(super) fn places(&self, mut places: Vec<ShardPlace>) -> Vec<ShardPlace> {
        if let Some((member, endpoint)) = &self.detour {
            for place in &mut places {
                if place.holder.to_string() == *member {
                    place.endpoint = *endpoint;
                }
            }
        }
        places
    }

    /// To be called after a step was computed, which took `took`.
    pub(super) fn computed(&self, took: Duration) {
        if let Some(factor) = self.slow {
            std::thread::sleep(took.mul_f64((factor - 1.0).clamp(0.0, 1e6)));
        }
        if self.pause_file.as_ref().is_none_or(|file| file.exists()) {
            std::thread::sleep(self.pause);
        }
    }

    /// To be called before and after a step is pushed.
    pub(super) fn pushing(&self, when: When, unit: Unit, step: Step) {
        if self.die.is_some_and(|die| die.is(when, unit.number(), step)) {
            if when == When::AfterPush {
                // Give the client's thread the time to send some of it.
                std::thread::sleep(Duration::from_micros(200));
            }
            std::process::exit(KILLED);
        }
    }

    /// What the client is to watch its frames for, if for anything.
    pub(super) fn watch(&self) -> Option<FrameWatch> {
        let die =
            self.die.filter(|die| matches!(die.when, When::BetweenShards | When::BeforeDone))?;
        let first = Mutex::new(None);
        let watch = move |endpoint: SocketAddr, frame: &Header| {
            let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
            if die.strikes(endpoint, frame, &mut first) {
                std::process::exit(KILLED);
            }
        };
        Some(FrameWatch(Arc::new(watch)))
    }
}

impl Die {
    fn is(&self, when: When, unit: u32, step: Step) -> bool {
        self.when == when && self.step == step.0 && self.unit.is_none_or(|number| number == unit)
    }

    /// Whether this frame is one too many. `first` is where the step's first frame went.
    fn strikes(
        &self,
        endpoint: SocketAddr,
        frame: &Header,
        first: &mut Option<SocketAddr>,
    ) -> bool {
        match frame.kind {
            Kind::Push if self.is(When::BetweenShards, frame.unit, frame.step) => {
                *first.get_or_insert(endpoint) != endpoint
            }
            Kind::Done => self.is(When::BeforeDone, frame.unit, frame.step),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use heddle_protocol::ids::Epoch;

    use super::*;

    #[test]
    fn orders_are_read_and_others_are_left_alone() {
        assert_eq!(TestHooks::parse(""), TestHooks::default());
        assert_eq!(TestHooks::parse("die:staged:step=3"), TestHooks::default());
        let hooks = TestHooks::parse("slow:100,die:before-push:step=7:lane=2");
        assert_eq!(hooks.slow, Some(100.0));
        let die = Die { when: When::BeforePush, step: 7, unit: Some(2) };
        assert_eq!(hooks.die, Some(die));
        assert!(hooks.watch().is_none());
        let hooks = TestHooks::parse("tell:pushes,pause:20:/tmp/slow");
        assert_eq!(hooks.pause, Duration::from_millis(20));
        assert_eq!(hooks.pause_file, Some(PathBuf::from("/tmp/slow")));
        let hooks = TestHooks::parse("detour:pserver-0.1:127.0.0.1:77");
        let there = SocketAddr::from(([127, 0, 0, 1], 77));
        assert_eq!(hooks.detour, Some(("pserver-0.1".to_owned(), there)));
    }

    #[test]
    fn death_strikes_between_the_frames_for_two_pservers() {
        let die = TestHooks::parse("die:between-shards:step=3:lane=1").die.expect("an order");
        let endpoint = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let mut frame = Header::new(Kind::Push, Epoch::default());
        (frame.step, frame.unit) = (Step(3), 1);
        let mut first = None;
        let other = Header { unit: 0, ..frame };
        assert!(!die.strikes(endpoint(1), &other, &mut first));
        assert!(!die.strikes(endpoint(2), &frame, &mut first));
        assert!(!die.strikes(endpoint(2), &frame, &mut first));
        assert!(!die.strikes(endpoint(1), &other, &mut first));
        assert!(die.strikes(endpoint(1), &frame, &mut first));
    }
}
