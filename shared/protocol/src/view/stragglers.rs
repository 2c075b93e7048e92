//! Late tasks that two trainers computed, as a view shows them.

use serde::{Deserialize, Serialize};

/// Late tasks of this attempt: the trainer that did not finish first is ordered to stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StragglersView {
    /// Tasks that a trainer has stopped computing because another one had finished them.
    pub stopped: u64,
    /// The longest time from the order to stop until the trainer had stopped, ms.
    pub slowest_stop_ms: u64,
}

impl StragglersView {
    /// `3 finished by another trainer first; stopped within 0.4 s`.
    #[must_use]
    pub fn text(&self) -> String {
        let seconds = self.slowest_stop_ms as f64 / 1000.0;
        format!("{} finished by another trainer first; stopped within {seconds:.1} s", self.stopped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_the_number_and_the_longest_time() {
        let late = StragglersView { stopped: 3, slowest_stop_ms: 412 };
        assert_eq!(late.text(), "3 finished by another trainer first; stopped within 0.4 s");
    }
}
