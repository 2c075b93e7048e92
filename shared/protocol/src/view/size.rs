//! The numbers of containers of an elastic job, as a view shows them.

use serde::{Deserialize, Serialize};

/// What has set the numbers of containers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SetBy {
    /// The job file.
    #[default]
    JobFile,
    /// An operator: `heddle scale`. The controller leaves them.
    Operator,
    /// The controller.
    Controller,
}

impl SetBy {
    /// `an operator`.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::JobFile => "the job file",
            Self::Operator => "an operator",
            Self::Controller => "the controller",
        }
    }
}

/// Trainers of a job whose numbers the controller sets (`run.elastic`). Its pservers: [`super::PserversView`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ElasticView {
    /// What has set the numbers.
    pub set_by: SetBy,
    /// The highest generation of a controller that has given an order; 0: before the first.
    pub generation: u64,
    /// How many trainers are wanted.
    pub trainers: u32,
    /// How many of these are not asked for, since they would lack work at present.
    #[serde(default)]
    pub released: u32,
    /// How many the job has work for in its present pass and those after it; without work for all that are wanted, at present.
    pub useful: u32,
    /// How many pservers are wanted.
    pub pservers: u32,
    /// The cluster has announced to preempt containers.
    pub is_preempted: bool,
    /// The bounds of the job file.
    pub least: u32,
    /// See [`ElasticView::least`].
    pub most: u32,
}

impl ElasticView {
    /// `3 wanted by the controller (1 to 8)`.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { trainers, least, most, .. } = self;
        format!("{trainers} wanted by {} ({least} to {most})", self.set_by.text())
    }
}
