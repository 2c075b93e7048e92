//! The jobs that are explored, by name.

use heddle_protocol::spec::{Consistency, Every};

use super::job::Job;

impl Job {
    /// Names of the jobs, for [`Job::named`].
    pub const NAMES: [&'static str; 5] =
        ["bsp", "bsp-uneven", "bsp-evaluated", "asp", "asp-evaluated"];

    /// A job by its name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let small = Self::small;
        Some(match name {
            "bsp" => small(Consistency::Bsp),
            "asp" => small(Consistency::Asp),
            // A lane without data, ends said by empty steps, three trainers for two lanes, four shards.
            "bsp-uneven" => Self {
                tasks: vec![3],
                end_on_last: false,
                trainers: 3,
                shards: 4,
                every: Every::Steps(1),
                ..small(Consistency::Bsp)
            },
            "bsp-evaluated" => Self {
                test_tasks: 2,
                every: Every::Passes(1),
                ..small(Consistency::Bsp)
            },
            "asp-evaluated" => Self {
                tasks: vec![1, 3, 1, 2],
                trainers: 3,
                test_tasks: 2,
                shards: 3,
                every: Every::Steps(1),
                ..small(Consistency::Asp)
            },
            _ => return None,
        })
    }
}
