//! Cuts a step's gradient into frames. Every shard gets at least one; the last one for a shard has the flag `LAST`.

use std::collections::BTreeMap;
use std::sync::Arc;

use heddle_protocol::frame::{Header, flags};
use heddle_protocol::ids::{Part, ShardId};

use crate::gradient::{Gradient, Payload};
use crate::layout::Layout;

/// The frames of a checked gradient. `header` has the fields that all of them share.
pub(super) fn cut(
    layout: &Layout,
    header: Header,
    gradient: &Arc<Gradient>,
) -> Vec<(Header, Payload)> {
    let mut frames: Vec<(Header, Payload)> = Vec::new();
    let mut last = BTreeMap::new();
    for (entry, part) in gradient.tables.iter().enumerate() {
        let Ok(shape) = layout.table(part.table) else {
            debug_assert!(false, "the gradient was checked");
            continue;
        };
        let cols = shape.cols as usize;
        for piece in layout.pieces(shape, &part.rows) {
            let mut header = header;
            header.shard = piece.shard;
            header.table = part.table;
            header.start = piece.start;
            // At most PART_VALUES_MAX rows and VALUE_BYTES_MAX bytes by construction.
            header.count = piece.rows.len() as u32;
            header.value_bytes = header.count * shape.cols * 4;
            (header.flags, header.key_bytes) = part.rows.key_fields(header.count);
            if let Some(&before) = last.get(&piece.shard) {
                let (before, _): &(Header, Payload) = &frames[before];
                header.part = Part(before.part.0 + 1);
            }
            last.insert(piece.shard, frames.len());
            frames.push((header, Payload::push(gradient, entry, piece.rows, cols)));
        }
    }
    for shard in (0..layout.shards()).map(ShardId) {
        if let Some(&index) = last.get(&shard) {
            frames[index].0.flags |= flags::LAST;
        } else {
            frames.push((Header { shard, flags: flags::LAST, ..header }, Payload::none()));
        }
    }
    frames
}
