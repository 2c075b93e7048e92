//! A step's gradient as frames: every shard gets at least one, and the last for it says so.

use std::collections::BTreeMap;
use std::sync::Arc;

use heddle_protocol::frame::{Header, Kind, flags};
use heddle_protocol::ids::{Part, Step};

use super::in_flight::Purpose;
use super::{Era, Machine, Unit};
use crate::gradient::{Gradient, Payload};
use crate::layout::Rows;

impl Machine {
    /// Queues all parts of a checked gradient and returns how many frames must be acknowledged.
    pub(crate) fn send_parts(
        &mut self,
        era: Era,
        unit: Unit,
        step: Step,
        gradient: &Arc<Gradient>,
        rows: u32,
    ) -> usize {
        let mut header = self.header(era, Kind::Push);
        header.unit = unit.number();
        header.step = step;
        header.rows = rows;
        if let Unit::Lane(lane) = unit {
            header.hand_out = self.hand_out(lane);
        }

        let mut frames: Vec<(Header, Payload)> = Vec::new();
        let mut last = BTreeMap::new();
        for (entry, part) in gradient.tables.iter().enumerate() {
            let Ok(shape) = self.layout.table(part.table) else {
                continue;
            };
            let cols = shape.cols as usize;
            for piece in self.layout.pieces(shape, &part.rows) {
                let mut header = header;
                header.shard = piece.shard;
                header.table = part.table;
                header.start = piece.start;
                // At most PART_VALUES_MAX rows and VALUE_BYTES_MAX bytes, by the cutting.
                header.count = piece.rows.len() as u32;
                header.value_bytes = header.count * shape.cols * 4;
                if matches!(part.rows, Rows::Keys(_)) {
                    header.flags = flags::KEYS;
                    header.key_bytes = header.count * 4;
                }
                if let Some(&before) = last.get(&piece.shard) {
                    let (before, _): &(Header, Payload) = &frames[before];
                    header.part = Part(before.part.0 + 1);
                }
                last.insert(piece.shard, frames.len());
                frames.push((header, Payload::push(gradient, entry, piece.rows, cols)));
            }
        }
        for shard in self.shards() {
            if let Some(&index) = last.get(&shard) {
                frames[index].0.flags |= flags::LAST;
            } else {
                frames.push((Header { shard, flags: flags::LAST, ..header }, Payload::none()));
            }
        }
        let count = frames.len();
        for (header, payload) in frames {
            self.requests.ask(header, payload, Purpose::Push, Some(unit));
        }
        count
    }
}
