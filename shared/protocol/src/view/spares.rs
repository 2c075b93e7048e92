//! Spares, as a view shows them.

use serde::{Deserialize, Serialize};

/// Spares of a job with `pservers.spares` or `trainers.spares`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SparesView {
    /// Pservers without shards.
    pub pservers: SpareCounts,
    /// Trainers without work.
    pub trainers: SpareCounts,
}

/// Spares of one role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpareCounts {
    /// As the job file wants them.
    pub wanted: u32,
    /// Registered and idle.
    pub ready: u32,
}

impl SparesView {
    /// `1 of 1 pserver ready, 0 of 2 trainers ready`; a role without spares is left out.
    #[must_use]
    pub fn text(&self) -> String {
        let roles = [("pserver", self.pservers), ("trainer", self.trainers)];
        let role = |(name, counts): (&str, SpareCounts)| {
            let plural = if counts.wanted == 1 { "" } else { "s" };
            format!("{} of {} {name}{plural} ready", counts.ready, counts.wanted)
        };
        let roles = roles.into_iter().filter(|(_, counts)| counts.wanted > 0).map(role);
        roles.collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_the_roles_that_have_spares() {
        let pservers = SpareCounts { wanted: 1, ready: 1 };
        let mut spares = SparesView { pservers, ..SparesView::default() };
        assert_eq!(spares.text(), "1 of 1 pserver ready");
        spares.trainers = SpareCounts { wanted: 2, ready: 0 };
        assert_eq!(spares.text(), "1 of 1 pserver ready, 0 of 2 trainers ready");
    }
}
