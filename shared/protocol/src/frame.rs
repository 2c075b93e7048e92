//! The data plane's frames: a fixed little-endian header of 96 bytes, then raw keys, then f32 values.
//!
//! This module encodes and decodes headers and checks every length before it is used for an allocation. The shard
//! (`heddle-shard`) and the trainer's client (`heddle-client`) give frames their meaning and own the sockets.
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 4 | magic `HDLF` |
//! | 4 | 2 | version, 6 |
//! | 6 | 2 | kind |
//! | 8 | 8 | epoch: generation u32, count u32 |
//! | 16 | 8 | request id, echoed in the reply |
//! | 24 | 4 | phase |
//! | 28 | 4 | unit: the task (ASP, SSP, evaluation) or the lane (BSP) |
//! | 32 | 8 | step; SSP: the number of a pull, a clock |
//! | 40 | 4 | part |
//! | 44 | 4 | shard |
//! | 48 | 2 | table |
//! | 50 | 2 | flags |
//! | 52 | 4 | rows: data records behind a gradient |
//! | 56 | 8 | of a barrier its cut: number u32, generation u32; else the sum of the losses of `rows`, f64 |
//! | 64 | 8 | start: first row of a range |
//! | 72 | 4 | count: rows of the range, or number of keys |
//! | 76 | 2 | status, of replies |
//! | 78 | 2 | 0 |
//! | 80 | 4 | key bytes that follow the header |
//! | 84 | 4 | value bytes that follow the keys |
//! | 88 | 8 | hand-out of the lane: generation u32, count u32 |
//!
//! Between pservers (`pservers.replicas`) an `Entry` precedes each frame that changed a shard: `request` is its number, `step`
//! the primary's term, `start` the commit number. `Followed`, `Position` and `Refused` answer with `request` and `step` alike.
//! Frames of a refill follow an `Entry` too ([`crate::fill_frame`]).
//!
//! | version | changed |
//! | --- | --- |
//! | 6 | bytes 56 to 63 are the losses behind a gradient, but in barriers |
//! | 5 | flag 256: keys are positions of a sparse table, of eight bytes; between pservers kinds 12 to 16, 36 and 37, status 15 |
//! | 4 | kinds `Clock` and `ClockQuery` (SSP); a pull of SSP carries its number in `step` |
//! | 3 | kinds 3, 4 and 5, flag 1 and bytes 78 and 79 have no meaning; keys are always u32 |
//! | 2 | bytes 88 to 95 are the hand-out (reserved in version 1); status `Fenced`; barriers carry their cut's generation |

mod error;

pub use error::FrameError;

use crate::ids::{CutId, Epoch, Generation, HandOut, Part, PhaseNo, ShardId, Step, TableId, Term};
use crate::metrics::LossSum;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 96;
/// First four bytes of every frame.
pub const MAGIC: [u8; 4] = *b"HDLF";
/// The version of this program; any other is rejected.
pub const VERSION: u16 = 6;
/// Values of one push part or one piece of a pull at the most: 256 KiB of f32, which stay in a core's
/// second-level cache between socket and table. A client cuts larger ones into parts of this size.
pub const PART_VALUES_MAX: usize = 64 * 1024;
/// Bytes of values of one frame at the most. A row wider than [`PART_VALUES_MAX`] still fits one frame.
pub const VALUE_BYTES_MAX: u32 = 4 * 1024 * 1024;
/// Bytes of keys of one frame at the most: [`PART_VALUES_MAX`] positions.
pub const KEY_BYTES_MAX: u32 = (PART_VALUES_MAX * POSITION_BYTES) as u32;
/// Bytes of a key of a dense table: a u32 row number.
pub const KEY_BYTES: usize = 4;
/// Bytes of a key of a sparse table: a u64 [position](crate::job_spec::position).
pub const POSITION_BYTES: usize = 8;

/// What a frame is. Requests are below 32, replies from 32 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Kind {
    /// Trainer asks for values of a range or of keys. Replied by `Values` or `Refused`.
    Pull = 1,
    /// One part of a step's gradient: range or keys, values as sums over `rows` records. Replied by `Ack` or `Refused`.
    Push = 2,
    /// BSP: every shard has acknowledged all parts of this lane's step. `rows` are the step's records. Replied by `Ack`.
    Done = 6,
    /// Marks a cut ([`Header::cut`]) in the stream; ASP and SSP. No reply.
    Barrier = 7,
    /// ASP: every shard has acknowledged all of the task. Replied by `Ack`.
    TaskDone = 8,
    /// Asks for the progress of this unit on the shard. Replied by `Progress`.
    Query = 9,
    /// SSP: the sender's clock (`step`); flag `EMPTY`: it has no task and is not counted. No reply unless it is refused.
    Clock = 10,
    /// SSP: asks the data thread of this shard for its lowest clock. Replied by `Progress`.
    ClockQuery = 11,
    /// A primary to its backup: the next frame is its change `request` of the term `step`. All have those up to `start`.
    Entry = 12,
    /// Behind `Entry` only: the shard began `phase`. `table` and `unit` are its sharing ([`crate::begun_frame`]).
    Begun = 13,
    /// Behind `Entry` only: a refill begins with the shard's state at the number of the entry ([`crate::fill_frame`]).
    FillBegin = 14,
    /// Behind `Entry` only: rows of a refill, as they were at the number of the entry.
    FillChunk = 15,
    /// Behind `Entry` only: the refill has sent all rows.
    FillEnd = 16,
    /// Behind `Entry` only: a backup was promoted, at the number of the entry. Replied by `Position`.
    TermBegun = 17,
    /// Reply: the values asked for, in the order asked.
    Values = 32,
    /// Reply: applied, staged or already there (see the status).
    Ack = 33,
    /// Reply to `Query`: `step`, `part` (next part expected) and flags `STAGED`, `DONE`, `END`, and the `rows` behind what is staged.
    /// Reply to `ClockQuery`: `step` is the lowest clock.
    Progress = 34,
    /// Reply: not done; the status is the reason.
    Refused = 35,
    /// Reply to `Entry`: all changes up to the number `request` are applied, in the term `step`.
    Followed = 36,
    /// Reply to `Entry`: it is not the next one, or no change follows. The backup has all changes up to `request` and needs those after it.
    Position = 37,
}

impl Kind {
    /// The kind behind its number on the wire.
    #[must_use]
    pub fn from_u16(number: u16) -> Option<Self> {
        Some(match number {
            1 => Self::Pull,
            2 => Self::Push,
            6 => Self::Done,
            7 => Self::Barrier,
            8 => Self::TaskDone,
            9 => Self::Query,
            10 => Self::Clock,
            11 => Self::ClockQuery,
            12 => Self::Entry,
            13 => Self::Begun,
            14 => Self::FillBegin,
            15 => Self::FillChunk,
            16 => Self::FillEnd,
            17 => Self::TermBegun,
            32 => Self::Values,
            33 => Self::Ack,
            34 => Self::Progress,
            35 => Self::Refused,
            36 => Self::Followed,
            37 => Self::Position,
            _ => return None,
        })
    }

    /// Whether a shard sends it.
    #[must_use]
    pub fn is_reply(self) -> bool {
        self as u16 >= 32
    }

    /// Whether it is held after its trainer's barrier until the cut is taken.
    #[must_use]
    pub fn is_held_by_cuts(self) -> bool {
        match self {
            Self::Push | Self::Done | Self::TaskDone | Self::Clock => true,
            Self::Pull | Self::Query | Self::ClockQuery | Self::Barrier => false,
            Self::Entry | Self::Begun | Self::Followed | Self::Position => false,
            Self::FillBegin | Self::FillChunk | Self::FillEnd | Self::TermBegun => false,
            Self::Values | Self::Ack | Self::Progress | Self::Refused => false,
        }
    }
}

/// Bits of [`Header::flags`].
pub mod flags {
    /// Keys follow: u32 row numbers, sorted, unique. Without it the frame is about the range `start .. start + count`.
    pub const KEYS: u16 = 1 << 0;
    /// The last part of this step for this shard. Every step sends each shard exactly one, maybe empty.
    pub const LAST: u16 = 1 << 2;
    /// In `Done`: the lane's data ends with this step; in `Progress`: the lane has ended.
    pub const END: u16 = 1 << 3;
    /// In `Pull`: served at once, whatever the step and the clocks.
    pub const FREE: u16 = 1 << 4;
    /// In `Progress`: the unit's step is staged wholly on this shard.
    pub const STAGED: u16 = 1 << 5;
    /// In `Progress`: BSP, `Done` arrived for this step; ASP, the task is marked done.
    pub const DONE: u16 = 1 << 6;
    /// In `Done`: the step has no gradient (the lane had no data). In `Clock`: the trainer has no task.
    pub const EMPTY: u16 = 1 << 7;
    /// With `KEYS`: the table is sparse, and its keys are u64 positions, sorted, unique.
    pub const POSITIONS: u16 = 1 << 8;
    /// All bits that have a meaning.
    pub const ALL: u16 = 0x1ff & !(1 << 1);
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Status {
    /// Done as asked. Also the value in requests.
    Ok = 0,
    /// The shard has it already; counts as acknowledged.
    Already = 1,
    /// Staging budget is full: send this part again a little later. Stops no other lane.
    Later = 2,
    /// The frame's epoch is not the shard's. Never counts as acknowledged.
    WrongEpoch = 3,
    /// The frame's phase is not the shard's.
    WrongPhase = 4,
    /// The step is behind the shard's: the sender is superseded, or must query where the unit stands.
    Stale = 5,
    /// A part or step ahead of what the shard expects: a fault of the sender.
    OutOfOrder = 6,
    /// The sender is not a member of the job any more.
    NotMember = 7,
    /// A key or range outside the shard's rows of that table, keys not sorted and unique, or an unknown table.
    BadRange = 8,
    /// Lengths do not fit each other.
    BadLength = 9,
    /// NaN or infinity in the gradient; the part counts as seen and is not added.
    NotFinite = 10,
    /// The shard is not here.
    WrongShard = 11,
    /// A kind that this shard does not serve in its phase.
    Unsupported = 12,
    /// The shard is being restored or has not begun the phase; ask again a little later.
    NotReady = 13,
    /// A later hand-out of the lane has queried this shard: the sender must not run the lane any more.
    Fenced = 14,
    /// Replication: the copy has received a higher term (`step`) than that of the stream, whose sender is not the primary any more.
    WrongTerm = 15,
}

impl Status {
    /// The status behind its number on the wire.
    #[must_use]
    pub fn from_u16(number: u16) -> Option<Self> {
        Some(match number {
            0 => Self::Ok,
            1 => Self::Already,
            2 => Self::Later,
            3 => Self::WrongEpoch,
            4 => Self::WrongPhase,
            5 => Self::Stale,
            6 => Self::OutOfOrder,
            7 => Self::NotMember,
            8 => Self::BadRange,
            9 => Self::BadLength,
            10 => Self::NotFinite,
            11 => Self::WrongShard,
            12 => Self::Unsupported,
            13 => Self::NotReady,
            14 => Self::Fenced,
            15 => Self::WrongTerm,
            _ => return None,
        })
    }
}

/// The fixed part of a frame. Fields that a kind does not use are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the frame is.
    pub kind: Kind,
    /// The sender's epoch.
    pub epoch: Epoch,
    /// Chosen by the trainer, echoed by the shard.
    pub request: u64,
    /// The phase of the job.
    pub phase: PhaseNo,
    /// The task (ASP, evaluation) or the lane (BSP).
    pub unit: u32,
    /// Minibatch of the task, or job step of the phase (BSP).
    pub step: Step,
    /// Which push frame of the step to this shard.
    pub part: Part,
    /// The shard that receives or sends the frame.
    pub shard: ShardId,
    /// The table.
    pub table: TableId,
    /// Bits of [`flags`].
    pub flags: u16,
    /// Data records behind a gradient (pushes) or behind the lane's step (`Done`).
    pub rows: u32,
    /// BSP: the losses of `rows` added up, for the lane's sums.
    pub loss: LossSum,
    /// The cut of a `Barrier`. All of its name counts: each generation counts from 1, and a barrier can arrive late.
    pub cut: CutId,
    /// First row of a range, numbered within the whole table.
    pub start: u64,
    /// Rows of the range, or number of keys.
    pub count: u32,
    /// Of replies.
    pub status: Status,
    /// Bytes of keys that follow.
    pub key_bytes: u32,
    /// Bytes of f32 values that follow the keys.
    pub value_bytes: u32,
    /// The hand-out under which the sender runs the lane (BSP: `Query`, `Push`, `Done`).
    pub hand_out: HandOut,
}

impl Header {
    /// A header of this kind with every other field zero.
    #[must_use]
    pub fn new(kind: Kind, epoch: Epoch) -> Self {
        Self {
            kind,
            epoch,
            request: 0,
            phase: PhaseNo(0),
            unit: 0,
            step: Step(0),
            part: Part(0),
            shard: ShardId(0),
            table: TableId(0),
            flags: 0,
            rows: 0,
            loss: LossSum::default(),
            cut: CutId::default(),
            start: 0,
            count: 0,
            status: Status::Ok,
            key_bytes: 0,
            value_bytes: 0,
            hand_out: HandOut::default(),
        }
    }

    /// The reply to this request: same epoch, request, phase, unit, step, part, shard and table, no payload.
    #[must_use]
    pub fn reply(&self, kind: Kind, status: Status) -> Self {
        let loss = LossSum::default();
        Self { kind, status, flags: 0, rows: 0, loss, key_bytes: 0, value_bytes: 0, ..*self }
    }

    /// The clock of a trainer, which counts unless it has no task.
    #[must_use]
    pub fn clock(epoch: Epoch, phase: PhaseNo, clock: u64, has_task: bool) -> Self {
        let flags = if has_task { 0 } else { flags::EMPTY };
        Self { phase, step: Step(clock), flags, ..Self::new(Kind::Clock, epoch) }
    }

    /// The head of a replicated change of a shard: the frame with the change follows it.
    #[must_use]
    pub fn entry(epoch: Epoch, shard: ShardId, term: Term, number: u64, committed: u64) -> Self {
        let step = Step(term.0);
        Self { shard, step, request: number, start: committed, ..Self::new(Kind::Entry, epoch) }
    }

    /// A backup's answer: it has all changes of the shard up to `number`.
    #[must_use]
    pub fn position(kind: Kind, epoch: Epoch, shard: ShardId, term: Term, number: u64) -> Self {
        Self { shard, step: Step(term.0), request: number, ..Self::new(kind, epoch) }
    }

    /// Replication: the term of an `Entry` or of an answer to one.
    #[must_use]
    pub fn term(&self) -> Term {
        Term(self.step.0)
    }

    /// The barrier of a cut.
    #[must_use]
    pub fn barrier(cut: CutId, epoch: Epoch) -> Self {
        Self { cut, ..Self::new(Kind::Barrier, epoch) }
    }

    /// Whether all bits of `flag` are set.
    #[must_use]
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag == flag
    }

    /// Bytes that follow the header.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        self.key_bytes as usize + self.value_bytes as usize
    }

    /// The header as it travels.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0u8; HEADER_BYTES];
        out[0..4].copy_from_slice(&MAGIC);
        out[4..6].copy_from_slice(&VERSION.to_le_bytes());
        out[6..8].copy_from_slice(&(self.kind as u16).to_le_bytes());
        out[8..12].copy_from_slice(&self.epoch.generation.0.to_le_bytes());
        out[12..16].copy_from_slice(&self.epoch.count.to_le_bytes());
        out[16..24].copy_from_slice(&self.request.to_le_bytes());
        out[24..28].copy_from_slice(&self.phase.0.to_le_bytes());
        out[28..32].copy_from_slice(&self.unit.to_le_bytes());
        out[32..40].copy_from_slice(&self.step.0.to_le_bytes());
        out[40..44].copy_from_slice(&self.part.0.to_le_bytes());
        out[44..48].copy_from_slice(&self.shard.0.to_le_bytes());
        out[48..50].copy_from_slice(&self.table.0.to_le_bytes());
        out[50..52].copy_from_slice(&self.flags.to_le_bytes());
        out[52..56].copy_from_slice(&self.rows.to_le_bytes());
        match self.kind {
            Kind::Barrier => {
                out[56..60].copy_from_slice(&self.cut.number.to_le_bytes());
                out[60..64].copy_from_slice(&self.cut.generation.0.to_le_bytes());
            }
            _ => out[56..64].copy_from_slice(&self.loss.get().to_le_bytes()),
        }
        out[64..72].copy_from_slice(&self.start.to_le_bytes());
        out[72..76].copy_from_slice(&self.count.to_le_bytes());
        out[76..78].copy_from_slice(&(self.status as u16).to_le_bytes());
        out[80..84].copy_from_slice(&self.key_bytes.to_le_bytes());
        out[84..88].copy_from_slice(&self.value_bytes.to_le_bytes());
        out[88..92].copy_from_slice(&self.hand_out.generation.0.to_le_bytes());
        out[92..96].copy_from_slice(&self.hand_out.count.to_le_bytes());
        out
    }

    /// Reads a header and checks what can be checked without knowing the tables: magic, version,
    /// kind, flags, status, and that keys and values are within bounds and fit their count.
    ///
    /// # Errors
    /// [`FrameError`]; the connection is of no use afterwards, since the next frame's start is unknown.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, FrameError> {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let u64_at = |at: usize| u64::from(u32_at(at)) | (u64::from(u32_at(at + 4)) << 32);
        if bytes[0..4] != MAGIC {
            return Err(FrameError::Magic(u32_at(0).to_le_bytes()));
        }
        if u16_at(4) != VERSION {
            return Err(FrameError::Version(u16_at(4)));
        }
        let kind = Kind::from_u16(u16_at(6)).ok_or(FrameError::Kind(u16_at(6)))?;
        let (cut, loss) = match kind {
            Kind::Barrier => {
                let generation = Generation(u32_at(60));
                (CutId { generation, number: u32_at(56) }, LossSum::default())
            }
            _ => (CutId::default(), LossSum::new(f64::from_bits(u64_at(56)))),
        };
        let header = Self {
            kind,
            epoch: Epoch { generation: Generation(u32_at(8)), count: u32_at(12) },
            request: u64_at(16),
            phase: PhaseNo(u32_at(24)),
            unit: u32_at(28),
            step: Step(u64_at(32)),
            part: Part(u32_at(40)),
            shard: ShardId(u32_at(44)),
            table: TableId(u16_at(48)),
            flags: u16_at(50),
            rows: u32_at(52),
            loss,
            cut,
            start: u64_at(64),
            count: u32_at(72),
            status: Status::from_u16(u16_at(76)).ok_or(FrameError::Status(u16_at(76)))?,
            key_bytes: u32_at(80),
            value_bytes: u32_at(84),
            hand_out: HandOut { generation: Generation(u32_at(88)), count: u32_at(92) },
        };
        if u16_at(78) != 0 {
            return Err(FrameError::Reserved(u16_at(78)));
        }
        header.check()?;
        Ok(header)
    }

    fn check(&self) -> Result<(), FrameError> {
        if self.flags & !flags::ALL != 0 {
            return Err(FrameError::Flags(self.flags));
        }
        if self.key_bytes > KEY_BYTES_MAX {
            return Err(FrameError::TooLong { what: "keys", bytes: self.key_bytes });
        }
        if self.value_bytes > VALUE_BYTES_MAX {
            return Err(FrameError::TooLong { what: "values", bytes: self.value_bytes });
        }
        let key_bytes = match (self.has(flags::KEYS), self.has(flags::POSITIONS)) {
            (true, true) => POSITION_BYTES,
            (true, false) => KEY_BYTES,
            (false, false) => 0,
            (false, true) => return Err(FrameError::Flags(self.flags)),
        };
        if u64::from(self.key_bytes) != u64::from(self.count) * key_bytes as u64 {
            return Err(FrameError::Keys { count: self.count, bytes: self.key_bytes });
        }
        if !self.value_bytes.is_multiple_of(4) {
            return Err(FrameError::Values(self.value_bytes));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> Header {
        Header {
            kind: Kind::Push,
            epoch: Epoch { generation: Generation(3), count: 2 },
            request: 0x0102_0304_0506_0708,
            phase: PhaseNo(4),
            unit: 5,
            step: Step(6),
            part: Part(7),
            shard: ShardId(8),
            table: TableId(9),
            flags: flags::KEYS | flags::LAST,
            rows: 512,
            loss: LossSum::new(1.0),
            cut: CutId::default(),
            start: 12,
            count: 2,
            status: Status::Ok,
            key_bytes: 8,
            value_bytes: 8,
            hand_out: HandOut { generation: Generation(3), count: 13 },
        }
    }

    #[test]
    fn the_layout_is_the_documented_one() {
        let bytes = sample().encode();
        let golden = concat!(
            "48444c46",
            "0600",
            "0200",
            "0300000002000000",
            "0807060504030201",
            "04000000",
            "05000000",
            "0600000000000000",
            "07000000",
            "08000000",
            "0900",
            "0500",
            "00020000",
            "000000000000f03f",
            "0c00000000000000",
            "02000000",
            "0000",
            "0000",
            "08000000",
            "08000000",
            "030000000d000000",
        );
        assert_eq!(hex::encode(bytes), golden);
        assert_eq!(Header::decode(&bytes), Ok(sample()));
    }

    #[test]
    fn a_barrier_carries_the_whole_name_of_its_cut() {
        let cut = CutId { generation: Generation(0x0102_0304), number: 0x0506_0708 };
        let bytes = Header::barrier(cut, Epoch::first(Generation(1))).encode();
        assert_eq!(hex::encode(&bytes[56..64]), "0807060504030201");
        assert_eq!(Header::decode(&bytes).map(|header| header.cut), Ok(cut));
    }

    #[test]
    fn replicated_changes_have_the_documented_layout() {
        let epoch = Epoch::first(Generation(1));
        let entry = Header::entry(epoch, ShardId(2), Term(3), 4, 5);
        let bytes = entry.encode();
        assert_eq!(hex::encode(&bytes[6..8]), "0c00");
        assert_eq!(hex::encode(&bytes[16..24]), "0400000000000000", "the number");
        assert_eq!(hex::encode(&bytes[32..40]), "0300000000000000", "the term");
        assert_eq!(hex::encode(&bytes[64..72]), "0500000000000000", "the commit number");
        assert_eq!(Header::decode(&bytes), Ok(entry));
        assert_eq!(entry.term(), Term(3));
        let followed = Header::position(Kind::Followed, epoch, ShardId(2), Term(3), 4);
        assert_eq!(Header::decode(&followed.encode()), Ok(followed));
        assert!(followed.kind.is_reply() && !entry.kind.is_reply());
    }

    #[test]
    fn excessive_lengths_are_refused() {
        let mut header = sample();
        header.value_bytes = u32::MAX - 3;
        assert_eq!(
            Header::decode(&header.encode()),
            Err(FrameError::TooLong { what: "values", bytes: u32::MAX - 3 })
        );
        header = sample();
        header.count = u32::MAX;
        assert_eq!(
            Header::decode(&header.encode()),
            Err(FrameError::Keys { count: u32::MAX, bytes: 8 })
        );
        header = sample();
        header.value_bytes = 7;
        assert_eq!(Header::decode(&header.encode()), Err(FrameError::Values(7)));
    }

    proptest! {
        #[test]
        fn any_bytes_decode_to_an_error_or_to_what_encodes_the_same(
            mut bytes in prop::collection::vec(any::<u8>(), HEADER_BYTES),
            fix in any::<bool>(),
        ) {
            if fix {
                bytes[0..4].copy_from_slice(&MAGIC);
                bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
                bytes[7] = 0;
                bytes[51] = 0;
                bytes[76..80].fill(0);
            }
            let bytes: [u8; HEADER_BYTES] = bytes.try_into().expect("the strategy makes that many");
            if let Ok(header) = Header::decode(&bytes) {
                prop_assert!(header.payload_bytes() <= (KEY_BYTES_MAX + VALUE_BYTES_MAX) as usize);
                if fix {
                    prop_assert_eq!(header.encode(), bytes);
                }
            }
        }
    }
}
