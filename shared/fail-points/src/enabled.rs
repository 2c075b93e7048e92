//! Conditions and effects. Mistakes in the configuration panic: only tests write it.

use std::fmt::Display;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use fail::FailScenario;
use nix::sys::signal::{Signal, raise};

/// Exit code of a process that signal 9 killed.
const KILLED: i32 = 137;

/// Facts of this process.
static PROCESS: OnceLock<Vec<(&str, u32)>> = OnceLock::new();
/// The fact of a condition `changed=` at its first check.
static FIRST: OnceLock<String> = OnceLock::new();

/// The state of each fail point, by name.
type Facts<'a> = [(&'a str, &'a dyn Display)];

/// Reads `FAILPOINTS` and keeps facts of this process, such as its incarnation. Call it once, when the process starts.
///
/// # Panics
/// The variable is malformed.
pub fn setup(facts: &[(&'static str, u32)]) {
    PROCESS.get_or_init(|| facts.to_vec());
    // Its destructor would remove the configuration.
    std::mem::forget(FailScenario::setup());
}

/// Runs the configured action of this fail point; see [`fail_point!`](crate::fail_point).
///
/// # Panics
/// The configuration names an effect or a fact that does not exist here.
pub fn hit(name: &str, facts: &Facts<'_>) {
    let Some(effect) = value(name, facts) else { return };
    match effect.split_once('=').unwrap_or((&effect, "")) {
        ("exit", _) => std::process::exit(KILLED),
        ("stop", _) => raise(Signal::SIGSTOP).expect("a process may stop itself"),
        ("sleep", ms) => {
            std::thread::sleep(Duration::from_millis(ms.parse().expect("milliseconds")))
        }
        _ => panic!("fail point {name} has no effect {effect}"),
    }
}

/// The value that is configured for this fail point, if its conditions hold; see [`fail_value!`](crate::fail_value).
///
/// # Panics
/// The configuration names a fact that does not exist here.
#[must_use]
pub fn value(name: &str, facts: &Facts<'_>) -> Option<String> {
    fail::fail_point!(name, |order| matching(&order.unwrap_or_default(), facts));
    None
}

/// The first word of an order whose conditions hold.
fn matching(order: &str, facts: &Facts<'_>) -> Option<String> {
    let fact = |name: &str| -> String {
        let own = facts.iter().find(|(own, _)| *own == name).map(|(_, value)| value.to_string());
        let of_process = || PROCESS.get()?.iter().find(|(own, _)| *own == name);
        own.or_else(|| of_process().map(|(_, value)| value.to_string()))
            .unwrap_or_else(|| panic!("no fact {name} for the order {order:?}"))
    };
    let holds = |condition: &str| match condition.split_once('=') {
        Some(("while", file)) => Path::new(file).exists(),
        Some(("changed", name)) => *FIRST.get_or_init(|| fact(name)) != fact(name),
        Some((name, value)) => fact(name) == value,
        None => panic!("no condition: {condition:?}"),
    };
    let mut words = order.split(',');
    let effect = words.next()?;
    words.all(holds).then(|| effect.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_holds_with_all_of_its_conditions() {
        let at = |order: &str, step: u64| matching(order, &[("step", &step), ("kind", &"Done")]);
        assert_eq!(at("exit", 7).as_deref(), Some("exit"));
        assert_eq!(at("sleep=5,kind=Done,step=7", 7).as_deref(), Some("sleep=5"));
        assert_eq!(at("sleep=5,kind=Done,step=7", 8), None);
        assert_eq!(at("exit,kind=Push,step=7", 7), None);
        assert_eq!(at("exit,while=/", 7).as_deref(), Some("exit"));
        assert_eq!(at("exit,while=/no such file", 7), None);
    }

    #[test]
    fn change_is_seen_among_orders_whose_other_conditions_hold() {
        let at = |lane: u32, peer: u32| {
            matching("exit,lane=1,changed=peer", &[("lane", &lane), ("peer", &peer)]).is_some()
        };
        assert!(!at(0, 1), "another lane is not the first");
        assert!(!at(1, 2));
        assert!(!at(1, 2));
        assert!(!at(0, 1));
        assert!(at(1, 1));
    }

    #[test]
    #[should_panic(expected = "no fact stage")]
    fn fact_that_does_not_exist_is_an_error() {
        let _ = matching("exit,stage=3", &[("step", &3)]);
    }

    #[test]
    fn configured_value_reaches_the_place() {
        fail::cfg("a-place", "return(there,holder=pserver-0.1)").expect("an action");
        assert_eq!(crate::fail_value!("a-place", holder = "pserver-0.1").as_deref(), Some("there"));
        assert_eq!(crate::fail_value!("a-place", holder = "pserver-1.1"), None);
        assert_eq!(crate::fail_value!("another-place"), None);
    }
}
