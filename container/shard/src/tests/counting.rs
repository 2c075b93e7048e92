//! Counting: every step of every task adds one, once, whatever is repeated, torn, cut and returned to.

use proptest::prelude::*;

use super::*;

const TASKS: u32 = 3;
const STEPS: u64 = 4;
const PARTS: u32 = 2;

#[derive(Clone, Debug)]
enum Event {
    /// Sends the next part of a task by its status on the shard, or its end.
    Work {
        trainer: u32,
        task: u32,
    },
    /// Sends a part of the past or of the near future, as a second or a late successor would.
    Any {
        trainer: u32,
        task: u32,
        step: u64,
        part: u32,
    },
    Reconnect {
        trainer: u32,
    },
    /// Opens a cut by barriers, which come later.
    Cut,
    Barrier {
        trainer: u32,
    },
    Commit,
    Rollback,
}

fn event() -> impl Strategy<Value = Event> {
    let any = (0u32..2, 0..TASKS, 0..STEPS, 0..PARTS);
    prop_oneof![
        12 => (0u32..2, 0..TASKS).prop_map(|(trainer, task)| Event::Work { trainer, task }),
        6 => any.prop_map(|(trainer, task, step, part)| Event::Any { trainer, task, step, part }),
        1 => (0u32..2).prop_map(|trainer| Event::Reconnect { trainer }),
        2 => Just(Event::Cut),
        4 => (0u32..2).prop_map(|trainer| Event::Barrier { trainer }),
        2 => Just(Event::Commit),
        1 => Just(Event::Rollback),
    ]
}

/// Adds one to the task's row.
fn send(node: &mut Node, conn: Conn, task: u32, step: u64, number: u32) -> Option<Status> {
    node.push_keys(conn, part(task, step, number, number + 1 == PARTS), &[task], &[-1.0])
}

fn work(node: &mut Node, conn: Conn, task: u32) -> Option<Status> {
    let (step, number, standing) = node.query(conn, task);
    if standing & flags::DONE != 0 {
        return None;
    }
    if step == STEPS {
        return node.task_done(conn, task);
    }
    send(node, conn, task, step, number)
}

/// Runs the events, then all tasks to their end. The rows.
fn run(events: Vec<Event>) -> Vec<f32> {
    let mut node = Node::asp();
    let mut conns = [node.connect(0), node.connect(1)];
    let (mut number, mut count, mut base) = (0, 1, None);
    for event in events {
        match event {
            Event::Work { trainer, task } => {
                work(&mut node, conns[trainer as usize], task);
            }
            Event::Any { trainer, task, step, part } => {
                send(&mut node, conns[trainer as usize], task, step, part);
            }
            Event::Reconnect { trainer } => conns[trainer as usize] = node.connect(trainer),
            Event::Cut => {
                number += 1;
                node.cut(number, CutAt::Barriers(vec![member(0), member(1)]));
            }
            Event::Barrier { trainer } => node.barrier(conns[trainer as usize], number),
            Event::Commit => {
                if node.snapped().last().is_some_and(|(of, _)| *of == number) {
                    node.cut_end(number, true);
                    base = Some(number);
                }
            }
            Event::Rollback => {
                count += 1;
                // A snapshot that was not committed is gone.
                number += 1;
                let lost = node.load(count, Sharing::Queue, 0, base.map(cut));
                assert_eq!(lost, base.is_none(), "the base is in memory");
            }
        }
    }
    node.cut_end(number, false);
    for task in 0..TASKS {
        while work(&mut node, conns[0], task).is_some() {}
    }
    node.values()[..TASKS as usize].to_vec()
}

proptest! {
    #[test]
    fn every_part_counts_once(events in prop::collection::vec(event(), 1..200)) {
        prop_assert_eq!(run(events), [(STEPS * u64::from(PARTS)) as f32; TASKS as usize]);
    }
}
