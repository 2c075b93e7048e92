//! Seeded schedules: frames of two lanes in any order, repeated, on breaking connections, with cuts and
//! returns to them at any moment. Whatever happens, the end is that of the undisturbed run.

use heddle_protocol::frame::Status;
use proptest::prelude::*;

use super::*;

const STEPS: u64 = 4;
const LANES: u32 = 3;

/// What may happen next.
#[derive(Clone, Debug)]
enum Event {
    /// A trainer works on a lane: it asks where the lane stands and sends the next frame.
    Work {
        trainer: u32,
        lane: u32,
    },
    /// The last frame of the lane once more.
    Repeat {
        trainer: u32,
    },
    Reconnect {
        trainer: u32,
    },
    Cut {
        ahead: u64,
    },
    Commit,
    Rollback,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        12 => (0u32..2, 0..LANES).prop_map(|(trainer, lane)| Event::Work { trainer, lane }),
        2 => (0u32..2).prop_map(|trainer| Event::Repeat { trainer }),
        1 => (0u32..2).prop_map(|trainer| Event::Reconnect { trainer }),
        1 => (0u64..3).prop_map(|ahead| Event::Cut { ahead }),
        1 => Just(Event::Commit),
        1 => Just(Event::Rollback),
    ]
}

/// The gradient of a lane's part: numbers whose sum depends on their order.
fn gradient(lane: u32, step: u64, part: u32) -> [f32; 2] {
    let x = ((lane + 1) as f32 * 0.1 + step as f32 * 1.7 + part as f32).sin();
    [x, x * 1e-4]
}

fn sends(lane: u32, step: u64) -> bool {
    // Lane 2 ends two steps early, and its last step is empty.
    !(lane == 2 && step + 2 >= STEPS)
}

/// The next frame of a lane, by its status on the shard.
fn work(node: &mut Node, conn: Conn, lane: u32) -> Option<(At, Status)> {
    let (step, part, standing) = node.query(conn, lane);
    if standing & (flags::END | flags::DONE) != 0 || step == STEPS {
        return None;
    }
    let at = super::part(lane, step, part, part == 1);
    if !sends(lane, step) {
        return node
            .done_with(conn, lane, step, flags::EMPTY | flags::END)
            .map(|status| (at, status));
    }
    if standing & flags::STAGED == 0 {
        let [a, b] = gradient(lane, step, part);
        return node.push(conn, at, &[a, b]).map(|status| (at, status));
    }
    let end = if step + 1 == STEPS { flags::END } else { 0 };
    node.done_with(conn, lane, step, end).map(|status| (at, status))
}

fn finish(node: &mut Node, conn: Conn) -> Vec<u32> {
    while (0..LANES).any(|lane| work(node, conn, lane).is_some()) {}
    assert_eq!(node.query(conn, 0).0, STEPS, "the end is reached");
    node.values().iter().map(|value| value.to_bits()).collect()
}

proptest! {
    #[test]
    fn disturbed_run_ends_with_the_same_bytes(events in prop::collection::vec(event(), 1..150)) {
        let sharing = Sharing::Lanes { lanes: LANES };
        let ftrl = Optimizer::ftrl(0.3, 1.0, 1e-3, 0.1);
        let mut calm = Node::with(sharing, config(ftrl));
        let conn = calm.connect(0);
        let expected = finish(&mut calm, conn);

        let mut node = Node::with(sharing, config(ftrl));
        let mut conns = [node.connect(0), node.connect(1)];
        let mut last: Option<(At, [f32; 2])> = None;
        let (mut number, mut count) = (0, 1);
        let mut base: Option<(u32, u64)> = None;
        for event in events {
            match event {
                Event::Work { trainer, lane } => {
                    if let Some((at, status)) = work(&mut node, conns[trainer as usize], lane) {
                        let known = matches!(status, Status::Ok | Status::Already);
                        prop_assert!(known, "{:?}", status);
                        last = Some((at, gradient(lane, at.step, at.part)));
                    }
                }
                Event::Repeat { trainer } => {
                    let sent = last.filter(|(at, _)| sends(at.unit, at.step) && at.part < 2);
                    let Some((at, values)) = sent else { continue };
                    // Of an epoch before a rollback it may be the next one: then it is as good as another.
                    if let Some(status) = node.push(conns[trainer as usize], at, &values) {
                        let known =
                            matches!(status, Status::Ok | Status::Already | Status::OutOfOrder);
                        prop_assert!(known, "{:?}", status);
                    }
                }
                Event::Reconnect { trainer } => conns[trainer as usize] = node.connect(trainer),
                Event::Cut { ahead } => {
                    number += 1;
                    let step = node.query(conns[0], 0).0 + ahead;
                    node.cut(number, CutAt::Steps(Step(step)));
                }
                Event::Commit => {
                    let snapped = node.snapped().last().copied();
                    if let Some((of, step)) = snapped.filter(|(of, _)| *of == number) {
                        node.cut_end(of, true);
                        base = Some((of, step));
                    }
                }
                Event::Rollback => {
                    count += 1;
                    // A snapshot that was not committed is gone.
                    number += 1;
                    match base {
                        Some((of, step)) => {
                            // Another snapshot may have been taken since: the kept one is the base's.
                            let lost = node.load(count, sharing, step, Some(cut(of)));
                            prop_assert!(!lost, "the base is in memory");
                        }
                        None => {
                            node.load(count, sharing, 0, None);
                        }
                    }
                    last = None;
                }
            }
        }
        prop_assert_eq!(finish(&mut node, conns[0]), expected);
    }
}

/// Any header with any payload of the announced length.
fn frame() -> impl Strategy<Value = (Header, Vec<u32>, Vec<f32>)> {
    let kind = (1u16..36).prop_filter_map("a kind", Kind::from_u16);
    let names = (0u32..3, 0u32..4, 0u64..4, 0u32..3, 0u16..3, any::<u16>());
    let extent = (0u64..12, 0u32..12, 0usize..12, 0u32..3, any::<bool>());
    let words = (prop::collection::vec(0u32..12, 0..12), any::<u32>());
    (kind, names, extent, words).prop_map(|(kind, names, extent, words)| {
        let (phase, unit, step, part, table, bits) = names;
        let (start, count, values, barrier, huge) = extent;
        let (mut keys, mut rows) = words;
        let mut header = Header::new(kind, epoch(1));
        (header.phase, header.unit, header.step, header.part) =
            (PhaseNo(phase), unit, Step(step), Part(part));
        (header.table, header.flags) = (TableId(table), bits & flags::ALL);
        (header.start, header.count, header.cut) = (start, count, cut(barrier));
        if huge {
            (header.start, header.step, header.unit) =
                (u64::MAX - start, Step(u64::MAX - step), u32::MAX - unit);
            rows = u32::MAX;
        }
        header.rows = rows;
        if !header.has(flags::KEYS) {
            keys.clear();
        } else {
            header.count = keys.len() as u32;
        }
        header.key_bytes = 4 * keys.len() as u32;
        header.value_bytes = 4 * values as u32;
        (header, keys, vec![1.0; values])
    })
}

proptest! {
    #[test]
    fn every_frame_is_answered_once(
        frames in prop::collection::vec(frame(), 1..80),
        sharing in prop_oneof![
            Just(Sharing::Queue),
            Just(Sharing::ReadOnly),
            Just(Sharing::Lanes { lanes: 2 }),
        ],
    ) {
        let mut node = Node::new(sharing);
        let conn = node.connect(0);
        node.cut(1, CutAt::Barriers(vec![member(0), member(1)]));
        let mut asked = 0;
        for (n, (mut header, keys, values)) in frames.into_iter().enumerate() {
            header.request = n as u64;
            asked += usize::from(header.kind != Kind::Barrier);
            if header.kind == Kind::Clock {
                // Early ones are kept, the last one of a connection alone.
                header.epoch = header.epoch.min(node.host.epoch());
                header.phase = header.phase.min(PhaseNo(0));
            }
            let mut out = Vec::new();
            let frame = Frame { conn, header, keys: &keys, values: &values };
            prop_assert_eq!(node.host.on_frame(&frame, &mut out), Flow::Taken);
            node.keep(out);
        }
        // What is still parked or held is answered when everything is dropped.
        let phase = Phase { no: PhaseNo(9), sharing };
        node.cut_end(1, false);
        let begin = BeginPhase { epoch: epoch(1), phase };
        node.act(|host, _, out| host.begin(begin, out)).expect("this epoch");
        prop_assert_eq!(node.later.len(), asked);
    }
}
