//! The machine itself.

use std::sync::Arc;

use heddle_protocol::view::JobView;

use crate::action::Action;
use crate::config::Config;
use crate::event::Event;
use crate::outbox::Outbox;
use crate::time::{Mono, Now};

/// A job's decisions.
#[derive(Clone, Debug)]
pub struct Core {
    config: Arc<Config>,
    out: Outbox,
}

impl Core {
    /// A job that has not heard anything yet; the first event is [`Event::Recovered`].
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self { config: Arc::new(config), out: Outbox::default() }
    }

    /// Takes in one event and says what to do, in order.
    pub fn on(&mut self, event: Event, now: Now) -> Vec<Action> {
        let _ = (event, now);
        self.out.take()
    }

    /// When to call [`Core::on`] with [`Event::Timer`] if nothing else happens before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Mono> {
        None
    }

    /// The job as it stands, for people.
    #[must_use]
    pub fn view(&self) -> JobView {
        todo_view(&self.config)
    }
}
fn todo_view(config: &Config) -> JobView {
    JobView {
        run: config.run,
        name: config.spec.name.clone(),
        state: heddle_protocol::view::JobState::Starting,
        attempt: Default::default(),
        epoch: Default::default(),
        phase: Default::default(),
        phase_text: String::new(),
        step: Default::default(),
        tasks_done: 0,
        tasks: 0,
        rows: 0,
        rows_per_second: 0.0,
        training_loss: None,
        started_ms: config.started_ms,
        slots: Vec::new(),
        checkpoints: Vec::new(),
        checkpoints_taken: 0,
        recoveries: Vec::new(),
        evaluations: Vec::new(),
        bad_records: 0,
        tasks_set_aside: 0,
        message: String::new(),
    }
}
