//! Whatever a peer sends in place of a change or of a part of a refill, no panic follows, and the trainer gets no answer.

use super::*;
use heddle_protocol::frame::HEADER_BYTES;
use proptest::prelude::*;
use proptest::sample::Index;

/// What is done to the frame.
#[derive(Clone, Debug)]
struct Damage {
    /// Bytes of the header of the entry and of its change: where, and what is there instead.
    entry: Vec<(Index, u8)>,
    change: Vec<(Index, u8)>,
    /// Words of the values.
    words: Vec<(Index, u32)>,
    /// Length of the values, as a share of 200 %.
    len: Option<Index>,
}

fn damage() -> impl Strategy<Value = Damage> {
    let bytes = || prop::collection::vec((any::<Index>(), any::<u8>()), 0..4);
    let words = prop::collection::vec((any::<Index>(), any::<u32>()), 0..6);
    let len = prop::option::weighted(0.3, any::<Index>());
    (bytes(), bytes(), words, len).prop_map(|(entry, change, words, len)| Damage {
        entry,
        change,
        words,
        len,
    })
}

/// The header with other bytes, if it is still one.
fn damaged(header: Header, bytes: &[(Index, u8)]) -> Header {
    let mut encoded = header.encode();
    for (at, byte) in bytes {
        encoded[at.index(HEADER_BYTES)] = *byte;
    }
    Header::decode(&encoded).unwrap_or(header)
}

fn damage_values(values: &mut Vec<f32>, damage: &Damage) {
    for (at, word) in &damage.words {
        if !values.is_empty() {
            let at = at.index(values.len());
            values[at] = f32::from_bits(*word);
        }
    }
    if let Some(len) = damage.len {
        values.resize(len.index(2 * values.len() + 2), f32::from_bits(!0));
    }
}

/// A primary sends its state, rows and changes to a backup; the part with this number arrives damaged, others follow.
fn refill_with(sharing: Sharing, at: usize, damage: &Damage) {
    let mut copies = Copies::alone(2, sharing, config(SGD));
    copies.view(1, filling(1, 2, &[0], 1, 2));
    copies.push(0, 1, whole(0, 0), -1.0);
    copies.view(0, filling(1, 2, &[0], 1, 2));
    let answers = copies.answers.len();
    for number in 0..at + 6 {
        let Some(entry) = copies.entries(0, 1, 1).pop() else { break };
        let conn = copies.streams[0].2;
        let whole = entry.change.frame();
        let (mut head, mut header, mut values) = (entry.head, whole.header, whole.values.to_vec());
        if number == at {
            head = damaged(head, &damage.entry);
            header = damaged(header, &damage.change);
            damage_values(&mut values, damage);
        }
        let head = Frame { conn, header: head, keys: &[], values: &[] };
        let change = Frame { conn, header, keys: whole.keys, values: &values };
        for frame in [head, change] {
            // A later epoch, which may never come: the connection waits.
            if copies.act(1, |set, _, out| set.on_frame(&frame, out)) != Flow::Taken {
                return;
            }
        }
        copies.acknowledge();
    }
    assert!(copies.answers[answers..].iter().all(|(host, _)| *host == 0), "{:?}", copies.answers);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn damaged_part_of_a_refill_does_no_harm(is_bsp: bool, at in 0usize..5, damage in damage()) {
        let sharing = if is_bsp { Sharing::Lanes { lanes: 2 } } else { Sharing::Queue };
        refill_with(sharing, at, &damage);
    }
}
