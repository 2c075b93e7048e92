//! Frames of a refill, which brings a new backup of a shard up to date (`pservers.replicas`).
//!
//! A primary sends them behind an `Entry`, whose `request` is the number of the last change that is in their content:
//!
//! 1. `FillBegin`: `rows` are the bytes of the dedup state, and the values are the words of it, zeros up to a whole word, and
//!    in a BSP phase the highest hand-out that has asked for each lane (generation, count).
//! 2. `FillChunk`: rows of one table with all their planes, plane after plane; positions of a sparse table last, two words
//!    a row. `start` is the first row of the shard's slice, and flag LAST marks the last rows of the table.
//! 3. `FillEnd`.
//!
//! Between them changes follow as usual. All three have the name of the refill ([`FillName`]): the number of the view that ordered
//! it in the bytes of the hand-out, and the attempt in `unit`. Answers to them and to changes behind them have it too, so that an
//! answer to an earlier attempt does not count for a later one.

use crate::frame::Header;
use crate::ids::{Generation, HandOut, ViewVersion};

/// Words of a dedup state and of hand-outs that one `FillBegin` can carry.
pub const STATE_WORDS_MAX: usize = crate::frame::VALUE_BYTES_MAX as usize / 4;

/// The name of an attempt to fill a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FillName {
    /// The version of the view that ordered the refill.
    pub order: ViewVersion,
    /// Counts the beginnings of the primary, from 1.
    pub attempt: u32,
}

impl FillName {
    /// The header with this name.
    #[must_use]
    pub fn on(self, header: Header) -> Header {
        let (generation, count) = ((self.order.0 >> 32) as u32, self.order.0 as u32);
        let hand_out = HandOut { generation: Generation(generation), count };
        Header { hand_out, unit: self.attempt, ..header }
    }

    /// The name in a header.
    #[must_use]
    pub fn of(header: &Header) -> Self {
        let HandOut { generation, count } = header.hand_out;
        let order = ViewVersion(u64::from(generation.0) << 32 | u64::from(count));
        Self { order, attempt: header.unit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Kind, flags};
    use crate::ids::{Epoch, Part, ShardId, TableId, Term};

    #[test]
    fn a_chunk_has_the_documented_layout() {
        let name = FillName { order: ViewVersion(0x0102_0304_0506_0708), attempt: 9 };
        let chunk = Header {
            shard: ShardId(2),
            table: TableId(3),
            part: Part(4),
            start: 5,
            count: 6,
            value_bytes: 24,
            flags: flags::LAST,
            ..Header::new(Kind::FillChunk, Epoch::default())
        };
        let chunk = name.on(chunk);
        let bytes = chunk.encode();
        assert_eq!(hex::encode(&bytes[6..8]), "0f00");
        assert_eq!(hex::encode(&bytes[28..32]), "09000000", "the attempt");
        assert_eq!(hex::encode(&bytes[40..44]), "04000000", "the number of the chunk");
        assert_eq!(hex::encode(&bytes[50..52]), "0400", "the last of the table");
        assert_eq!(hex::encode(&bytes[64..76]), "050000000000000006000000", "the rows");
        assert_eq!(hex::encode(&bytes[88..96]), "0403020108070605", "the order");
        assert_eq!(Header::decode(&bytes), Ok(chunk));
        assert_eq!(FillName::of(&chunk), name);
    }

    #[test]
    fn names_arrive_in_answers() {
        let name = FillName { order: ViewVersion(u64::MAX), attempt: u32::MAX };
        let answer = Header::position(Kind::Followed, Epoch::default(), ShardId(1), Term(2), 3);
        let answer = name.on(answer);
        let arrived = Header::decode(&answer.encode()).expect("a frame");
        assert_eq!((FillName::of(&arrived), arrived.request), (name, 3));
    }
}
