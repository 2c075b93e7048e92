//! Fault injection for tests: environment variable `HEDDLE_TEST_HOOK`, orders with commas between them. Without it,
//! nothing here does anything.
//!
//! | order | effect |
//! | --- | --- |
//! | `die:before-manifest:cut=N` | the ApplicationMaster exits at once (137) when the files of cut N are written and its manifest is not |
//! | `die:before-rename:cut=N` | … when the manifest is written and the directory does not have its final name |
//! | `die:after-rename:cut=N` | … when it has its final name and the commit was not reported |
//! | `die:before-delete:cut=N` | … when the commit was reported and older checkpoints are about to be deleted |
//! | `die:before-unregister` | … when the job's end and its report are written and the application is not unregistered |
//! | `die:after-unregister` | … when the application is unregistered and the staging directory is there |
//!
//! `stop:` instead of `die:` stops the process (SIGSTOP) until it receives SIGCONT. Only the first generation of
//! a checkpoint directory obeys, and when unregistering only the first attempt, so that its successor lives. Orders that are
//! not known here are the containers'.

use heddle_protocol::ids::{Attempt, CutId, Generation};
use nix::sys::signal::{Signal, raise};

/// The variable's name.
const TEST_HOOK: &str = "HEDDLE_TEST_HOOK";
/// FaultAction a process ends with that was killed by signal 9.
const KILLED: i32 = 137;

/// Where in the making of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Point {
    BeforeManifest,
    BeforeRename,
    AfterRename,
    BeforeDelete,
}

/// Where in the end of an application on YARN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnregisterPoint {
    Before,
    After,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FaultAction {
    Die,
    Stop,
}

/// Fail point while a checkpoint is made.
pub(crate) fn strike(point: Point, cut: CutId) {
    obey(|text| ordered(text, point, cut));
}

/// Fail point before and after an attempt unregisters.
pub(crate) fn strike_at_unregister(unregister: UnregisterPoint, attempt: Attempt) {
    obey(|text| ordered_at_unregister(text, unregister, attempt));
}

fn obey(ordered: impl FnOnce(&str) -> Option<FaultAction>) {
    let Ok(text) = std::env::var(TEST_HOOK) else {
        return;
    };
    match ordered(&text) {
        Some(FaultAction::Die) => std::process::exit(KILLED),
        Some(FaultAction::Stop) => {
            let _continues_on_sigcont = raise(Signal::SIGSTOP);
        }
        None => {}
    }
}

fn what(word: &str) -> Option<FaultAction> {
    match word {
        "die" => Some(FaultAction::Die),
        "stop" => Some(FaultAction::Stop),
        _ => None,
    }
}

fn ordered(text: &str, point: Point, cut: CutId) -> Option<FaultAction> {
    if cut.generation != Generation(1) {
        return None;
    }
    text.split(',').find_map(|order| {
        let mut words = order.split(':');
        let what = what(words.next()?)?;
        let here = match words.next()? {
            "before-manifest" => Point::BeforeManifest,
            "before-rename" => Point::BeforeRename,
            "after-rename" => Point::AfterRename,
            "before-delete" => Point::BeforeDelete,
            _ => return None,
        };
        let number: u32 = words.next()?.strip_prefix("cut=")?.parse().ok()?;
        (here == point && number == cut.number).then_some(what)
    })
}

fn ordered_at_unregister(
    text: &str,
    unregister: UnregisterPoint,
    attempt: Attempt,
) -> Option<FaultAction> {
    if attempt != Attempt(1) {
        return None;
    }
    let place = match unregister {
        UnregisterPoint::Before => "before-unregister",
        UnregisterPoint::After => "after-unregister",
    };
    text.split(',').find_map(|order| {
        let (word, here) = order.split_once(':')?;
        what(word).filter(|_| here == place)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_generation_obeys_at_the_point_of_the_cut() {
        let cut = |generation, number| CutId { generation: Generation(generation), number };
        let text = "pause:20,die:staged:step=3,stop:before-rename:cut=4,die:after-rename:cut=5";
        assert_eq!(ordered(text, Point::BeforeRename, cut(1, 4)), Some(FaultAction::Stop));
        assert_eq!(ordered(text, Point::AfterRename, cut(1, 5)), Some(FaultAction::Die));
        assert_eq!(ordered(text, Point::AfterRename, cut(1, 4)), None);
        assert_eq!(ordered(text, Point::BeforeDelete, cut(1, 4)), None);
        assert_eq!(ordered(text, Point::AfterRename, cut(2, 5)), None);
        assert_eq!(ordered("", Point::AfterRename, cut(1, 5)), None);
    }

    #[test]
    fn first_attempt_obeys_when_it_unregisters() {
        let at =
            |text, unregister, attempt| ordered_at_unregister(text, unregister, Attempt(attempt));
        let text = "pause:20,die:after-unregister";
        assert_eq!(at(text, UnregisterPoint::After, 1), Some(FaultAction::Die));
        assert_eq!(at(text, UnregisterPoint::Before, 1), None);
        assert_eq!(at(text, UnregisterPoint::After, 2), None);
        assert_eq!(
            at("stop:before-unregister", UnregisterPoint::Before, 1),
            Some(FaultAction::Stop)
        );
    }
}
