//! Tables of text that tests compare with what the code does; `UPDATE=1` writes them again.

use std::collections::{BTreeSet, VecDeque};
use std::fmt::Debug;

use heddle_protocol::control::{Command, Registration};
use heddle_protocol::ids::Member;

use crate::action::Action;
use crate::config::{Config, Limits};
use crate::context::Context;

/// Compares a table, a file below `src`, with what was found.
#[expect(clippy::disallowed_methods, reason = "a test may rewrite its table")]
pub(crate) fn check(path: &str, table: &str, found: &str) {
    if std::env::var("UPDATE").is_ok() {
        let file = format!("{}/src/{path}", env!("CARGO_MANIFEST_DIR"));
        std::fs::write(file, found).expect("it can be written");
    } else {
        assert_eq!(found, table, "{path}; UPDATE=1 writes it again");
    }
}

/// What moves from state to state with events.
pub(crate) trait Machine: Clone {
    /// The name of the state.
    fn state(&self) -> String;

    /// Handles an event. Returns what is done.
    fn on(&mut self, event: &str) -> String;
}

/// What an event does in a state.
struct Edge {
    event: String,
    next: String,
    done: String,
}

/// Each event in each state that can be reached, the nearest states first. Left out are events that are ignored; `stale`:
/// ignored in each state. A state stands for the first machine of its name.
pub(crate) fn edges(
    head: &str,
    start: impl Machine,
    events: &[&str],
    stale: Option<&str>,
) -> String {
    let mut known = BTreeSet::from([start.state()]);
    let (mut waiting, mut states) = (VecDeque::from([start]), Vec::new());
    let mut ignored = BTreeSet::from_iter(events);
    while let Some(machine) = waiting.pop_front() {
        let mut rows = Vec::new();
        for event in events {
            let mut after = machine.clone();
            let done = after.on(event);
            let next = after.state();
            let stays = next == machine.state();
            if stays && done.is_empty() {
                continue;
            }
            ignored.remove(event);
            let shown = if stays { "=".to_owned() } else { next.clone() };
            rows.push(Edge { event: (*event).to_owned(), next: shown, done });
            if known.insert(next) {
                waiting.push_back(after);
            }
        }
        states.push((machine.state(), rows));
    }
    assert_eq!(ignored, BTreeSet::from_iter(&stale), "ignored in each state");
    let rows = || states.iter().flat_map(|(_, rows)| rows);
    let event_width = rows().map(|row| row.event.len()).max().unwrap_or(0);
    let next_width = rows().map(|row| row.next.len()).max().unwrap_or(0);
    let mut text = format!(
        "# {head}\n# Below a state: event -> next state (= the same), done. Ignored are all others of these events:\n"
    );
    for event in events {
        text += &format!("# - {event}\n");
    }
    for (state, rows) in &states {
        text += &format!("\n{state}\n");
        for Edge { event, next, done } in rows {
            let row = format!("  {event:event_width$} -> {next:next_width$}  {done}");
            text += &format!("{}\n", row.trim_end());
        }
    }
    text
}

/// The names of the actions so far. Their records are durable then.
pub(crate) fn taken(ctx: &mut Context) -> String {
    let mut actions = ctx.take_actions();
    ctx.record_durable(ctx.last_record());
    ctx.store_held_back();
    actions.extend(ctx.take_actions());
    actions.iter().map(named).collect::<Vec<_>>().join(", ")
}

fn named(action: &Action) -> String {
    match action {
        Action::Container(order) => variant(order),
        Action::Send { command, .. } => match &**command {
            Command::Pserver(command) => format!("send {}", variant(command)),
            Command::Shards(command) => format!("send {}", variant(command)),
            Command::Trainer(command) => format!("send {}", variant(command)),
            command => format!("send {}", variant(command)),
        },
        Action::Store { call, .. } => format!("store {}", variant(call)),
        Action::Journal { record, .. } => format!("journal {}", variant(record)),
        Action::Notice(notice) => format!("report {}", variant(notice)),
        Action::Disconnect { .. }
        | Action::ProbePort { .. }
        | Action::Fault(_)
        | Action::Answer { .. }
        | Action::Finish(_) => variant(action),
    }
}

/// The name of a value's variant.
pub(crate) fn variant(value: &impl Debug) -> String {
    format!("{value:?}").chars().take_while(|letter| letter.is_alphanumeric()).collect()
}

/// What a container reports at its registration.
pub(crate) fn registration(member: Member, container: Option<String>) -> Registration {
    Registration {
        member,
        pid: 1,
        host: "node".to_owned(),
        container,
        endpoints: Vec::new(),
        pserver_state: None,
        trainer_state: None,
    }
}

/// The configuration of a small job.
pub(crate) fn config(spec: heddle_protocol::job_spec::JobSpec) -> Config {
    Config {
        run: heddle_protocol::ids::RunId(Default::default()),
        limits: Limits::of_job(&spec, 120_000),
        spec: std::sync::Arc::new(spec),
        recorded: Default::default(),
        plan: Default::default(),
        plan_file: Default::default(),
        address: String::new(),
        started_ms: 0,
        cluster_lease_ms: None,
        locality: Default::default(),
        output: None,
    }
}
