//! The number of pservers of an elastic job, as a view shows it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::size::SetBy;
use crate::ids::Slot;

/// Pservers of a job with `pservers.min` below `pservers.max`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PserversView {
    /// How many are to hold shards.
    pub wanted: u32,
    /// What has set the number.
    pub set_by: SetBy,
    /// The bounds of the job file.
    pub least: u32,
    /// See [`PserversView::least`].
    pub most: u32,
    /// Registered, those that are to go included.
    pub present: u32,
    /// Those that are to go, with the shards that each still serves.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub departing: BTreeMap<Slot, u32>,
    /// What moves of shards wait for, if they do: `a container for pserver-2`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub waits_for: String,
}

impl PserversView {
    /// `3 wanted by an operator (1 to 4), 4 there; pserver-3 is to go and still serves 2 shards`.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { wanted, least, most, present, .. } = self;
        let by = self.set_by.text();
        let mut text = format!("{wanted} wanted by {by} ({least} to {most}), {present} there");
        for (slot, shards) in &self.departing {
            text += &match shards {
                0 => format!("; {slot} is to go and waits for the copies of its shards"),
                1 => format!("; {slot} is to go and still serves 1 shard"),
                _ => format!("; {slot} is to go and still serves {shards} shards"),
            };
        }
        if !self.waits_for.is_empty() {
            text += &format!("; moves wait for {}", self.waits_for);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_says_what_a_departing_pserver_waits_for() {
        let departing =
            [2, 1, 0].into_iter().zip(1..).map(|(shards, n)| (Slot::pserver(n), shards));
        let view = PserversView {
            wanted: 1,
            set_by: SetBy::Operator,
            least: 1,
            most: 4,
            present: 4,
            departing: departing.collect(),
            waits_for: "checkpoint g1-c3".to_owned(),
        };
        assert_eq!(
            view.text(),
            "1 wanted by an operator (1 to 4), 4 there; pserver-1 is to go and still serves 2 shards; \
             pserver-2 is to go and still serves 1 shard; \
             pserver-3 is to go and waits for the copies of its shards; moves wait for checkpoint g1-c3"
        );
    }
}
