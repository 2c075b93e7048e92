//! Faults on order, for tests: environment variable `HEDDLE_TEST_HOOK`. Without it, nothing here does anything.
//!
//! | value | effect |
//! | --- | --- |
//! | `slow:FACTOR` | a step takes FACTOR times its computing time |
//! | `die:before-push:step=N` or `…:step=N:lane=L` | the process exits at once (137) instead of pushing step N |
//! | `die:after-push:step=N` or `…:step=N:lane=L` | … just after step N was handed to the client |
//!
//! Only a container's first incarnation obeys `die`, so that its successor lives.

use std::time::Duration;

use heddle_client::machine::Unit;
use heddle_protocol::ids::{Incarnation, Member, Step};

/// The variable's name.
pub const TEST_HOOK: &str = "HEDDLE_TEST_HOOK";
/// What a process ends with that was killed by signal 9.
const KILLED: i32 = 137;

/// What tests ordered.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct TestHooks {
    slow: Option<f64>,
    die: Option<Die>,
}

#[derive(Clone, Debug, PartialEq)]
struct Die {
    after: bool,
    step: u64,
    unit: Option<u32>,
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
            if let Some(factor) = order.strip_prefix("slow:") {
                hooks.slow = factor.parse().ok();
            }
            let after = match order {
                _ if order.starts_with("die:before-push:") => false,
                _ if order.starts_with("die:after-push:") => true,
                _ => continue,
            };
            let number = |name: &str| {
                order
                    .split(':')
                    .find_map(|word| word.strip_prefix(name)?.parse().ok())
            };
            if let Some(step) = number("step=") {
                hooks.die = Some(Die {
                    after,
                    step,
                    unit: number("lane=").map(|lane| lane as u32),
                });
            }
        }
        hooks
    }

    /// To be called after a step was computed, which took `took`.
    pub(super) fn computed(&self, took: Duration) {
        if let Some(factor) = self.slow {
            std::thread::sleep(took.mul_f64((factor - 1.0).clamp(0.0, 1e6)));
        }
    }

    /// To be called before and after a step is pushed.
    pub(super) fn pushing(&self, unit: Unit, step: Step, after: bool) {
        if let Some(die) = &self.die
            && die.after == after
            && die.step == step.0
            && die.unit.is_none_or(|number| number == unit.number())
        {
            if after {
                // Give the client's thread the time to send some of it.
                std::thread::sleep(Duration::from_micros(200));
            }
            std::process::exit(KILLED);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read_and_others_are_left_alone() {
        assert_eq!(TestHooks::parse(""), TestHooks::default());
        assert_eq!(
            TestHooks::parse("die:between-shards:step=3"),
            TestHooks::default()
        );
        let hooks = TestHooks::parse("slow:100,die:before-push:step=7:lane=2");
        assert_eq!(hooks.slow, Some(100.0));
        assert_eq!(
            hooks.die,
            Some(Die {
                after: false,
                step: 7,
                unit: Some(2)
            })
        );
    }
}
