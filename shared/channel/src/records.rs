//! Records: what an encrypted connection carries, as a pure type.
//!
//! Buffers grow with what a connection carries, since an ApplicationMaster has ten thousand connections of some hundred
//! bytes. A large slice is sealed without being gathered first, and a record is opened straight into the caller's buffer
//! where that is large enough.

use std::io::IoSlice;

use snow::TransportState;

/// Most bytes of a record.
pub const RECORD_BYTES_MAX: usize = 64 * 1024;
/// Most bytes of a record's payload.
pub const PAYLOAD_BYTES_MAX: usize = RECORD_BYTES_MAX - LENGTH_BYTES - TAG_BYTES;
/// Records that a side seals with one key.
pub const RECORDS_PER_KEY: u64 = 1 << 19;
const TAG_BYTES: usize = 16;
/// The sealed length before each payload.
const LENGTH_BYTES: usize = 2 + TAG_BYTES;
/// Slices of at least this many bytes are records of their own; smaller ones are gathered.
const LARGE: usize = 8 * 1024;
/// Sealing stops at this many bytes that wait for the socket.
const PENDING_MAX: usize = 2 * RECORD_BYTES_MAX;
/// Sizes of the buffer for received bytes.
const RECEIVE_MIN: usize = 4 * 1024;
const RECEIVE_MAX: usize = 2 * RECORD_BYTES_MAX;

/// Why a record cannot be opened or sealed. The connection has to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The record is not what the peer sealed.
    #[error("an encrypted record was changed on the way")]
    Changed,
    /// The peer sealed a length that no record has.
    #[error("a record's length must be 1 to {PAYLOAD_BYTES_MAX} (got {0})")]
    Length(u16),
    /// All numbers of records are used.
    #[error("the connection has carried as many records as it can number")]
    Exhausted,
}

impl From<RecordError> for std::io::Error {
    fn from(error: RecordError) -> Self {
        Self::new(std::io::ErrorKind::InvalidData, error)
    }
}

/// Both directions of one connection.
pub struct Records {
    noise: TransportState,
    sealed: ByteQueue,
    /// Small slices of a record that is about to be sealed.
    gathered: Vec<u8>,
    sealed_records: u64,
    received: ByteQueue,
    /// Bytes of the next payload, whose length is opened.
    expected: Option<usize>,
    /// The rest of a record that did not fit into the caller's buffer.
    opened: ByteQueue,
    opened_records: u64,
}

/// Bytes `start .. end` of a vector that never shrinks.
#[derive(Default)]
struct ByteQueue {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl ByteQueue {
    fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    fn len(&self) -> usize {
        self.end - self.start
    }

    /// Removes bytes from the front.
    fn take(&mut self, bytes: usize) {
        self.start += bytes;
        debug_assert!(self.start <= self.end);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Room for this many bytes after the filled ones.
    fn room(&mut self, bytes: usize) -> &mut [u8] {
        let wanted = self.end + bytes;
        if self.bytes.len() < wanted {
            self.bytes.resize(wanted.next_power_of_two(), 0);
        }
        &mut self.bytes[self.end..wanted]
    }
}

impl Records {
    /// The records of a connection whose handshake is complete.
    pub(crate) fn new(noise: TransportState) -> Self {
        Self {
            noise,
            sealed: ByteQueue::default(),
            gathered: Vec::new(),
            sealed_records: 0,
            received: ByteQueue::default(),
            expected: None,
            opened: ByteQueue::default(),
            opened_records: 0,
        }
    }

    /// Seals bytes from the front of the slices. Returns their number: all of them, or less when enough bytes wait to be
    /// sent; 0 then means that [`Self::pending`] must be sent first.
    ///
    /// # Errors
    /// [`RecordError::Exhausted`].
    pub fn seal(&mut self, slices: &[IoSlice<'_>]) -> Result<usize, RecordError> {
        let mut taken = 0;
        let mut gathered = std::mem::take(&mut self.gathered);
        'slices: for slice in slices {
            let mut rest: &[u8] = slice;
            while !rest.is_empty() {
                if self.sealed.len() >= PENDING_MAX {
                    break 'slices;
                }
                if rest.len() >= LARGE {
                    if !gathered.is_empty() {
                        self.seal_record(&gathered)?;
                        gathered.clear();
                        continue;
                    }
                    let (record, after) = rest.split_at(rest.len().min(PAYLOAD_BYTES_MAX));
                    self.seal_record(record)?;
                    taken += record.len();
                    rest = after;
                    continue;
                }
                let room = PAYLOAD_BYTES_MAX - gathered.len();
                let (part, after) = rest.split_at(rest.len().min(room));
                gathered.extend_from_slice(part);
                taken += part.len();
                rest = after;
                if gathered.len() == PAYLOAD_BYTES_MAX {
                    self.seal_record(&gathered)?;
                    gathered.clear();
                }
            }
        }
        if !gathered.is_empty() {
            self.seal_record(&gathered)?;
            gathered.clear();
        }
        self.gathered = gathered;
        Ok(taken)
    }

    fn seal_record(&mut self, payload: &[u8]) -> Result<(), RecordError> {
        let length = u16::try_from(payload.len()).map_err(|_| RecordError::Exhausted)?;
        let bytes = LENGTH_BYTES + payload.len() + TAG_BYTES;
        let (head, body) = self.sealed.room(bytes).split_at_mut(LENGTH_BYTES);
        self.noise
            .write_message(&length.to_le_bytes(), head)
            .and_then(|_| self.noise.write_message(payload, body))
            .map_err(|_| RecordError::Exhausted)?;
        self.sealed.end += bytes;
        self.sealed_records += 1;
        if self.sealed_records.is_multiple_of(RECORDS_PER_KEY) {
            self.noise.rekey_outgoing();
        }
        Ok(())
    }

    /// Sealed bytes that must be sent.
    #[must_use]
    pub fn pending(&self) -> &[u8] {
        self.sealed.filled()
    }

    /// This many bytes of [`Self::pending`] are sent.
    pub fn sent(&mut self, bytes: usize) {
        self.sealed.take(bytes);
    }

    /// Room for received bytes; never empty. Call [`Self::filled`] with their number.
    pub fn space(&mut self) -> &mut [u8] {
        let received = &mut self.received;
        if received.start > 0 {
            received.bytes.copy_within(received.start..received.end, 0);
            (received.start, received.end) = (0, received.end - received.start);
        }
        let wanted = self.expected.map_or(LENGTH_BYTES, |payload| payload + TAG_BYTES);
        let is_full = received.end == received.bytes.len();
        if received.bytes.len() < wanted || is_full {
            let doubled = (received.bytes.len() * 2).clamp(RECEIVE_MIN, RECEIVE_MAX);
            let size = doubled.max(wanted).max(received.end + RECEIVE_MIN);
            received.bytes.resize(size, 0);
        }
        &mut received.bytes[received.end..]
    }

    /// This many bytes were received into [`Self::space`].
    pub fn filled(&mut self, bytes: usize) {
        self.received.end += bytes;
    }

    /// Moves received payload to `out`: as much as fits and is complete. Returns the number of bytes; 0 means that more has
    /// to be received.
    ///
    /// # Errors
    /// The connection has to be closed: a record was changed.
    pub fn open(&mut self, out: &mut [u8]) -> Result<usize, RecordError> {
        let mut filled = 0;
        while filled < out.len() {
            if self.opened.len() == 0 {
                filled += match self.open_record(&mut out[filled..])? {
                    Some(straight) => straight,
                    None => break,
                };
                continue;
            }
            let part = self.opened.len().min(out.len() - filled);
            out[filled..filled + part].copy_from_slice(&self.opened.filled()[..part]);
            self.opened.take(part);
            filled += part;
        }
        Ok(filled)
    }

    /// Opens the next record, straight into `out` if that is large enough, else aside. Returns the bytes in `out`; `None` if
    /// the record is not complete.
    fn open_record(&mut self, out: &mut [u8]) -> Result<Option<usize>, RecordError> {
        let payload = match self.expected {
            Some(payload) => payload,
            None => {
                if self.received.len() < LENGTH_BYTES {
                    return Ok(None);
                }
                let mut length = [0; LENGTH_BYTES];
                self.noise
                    .read_message(&self.received.filled()[..LENGTH_BYTES], &mut length)
                    .map_err(|_| RecordError::Changed)?;
                self.received.take(LENGTH_BYTES);
                let length = u16::from_le_bytes([length[0], length[1]]);
                let payload = usize::from(length);
                if payload == 0 || payload > PAYLOAD_BYTES_MAX {
                    return Err(RecordError::Length(length));
                }
                *self.expected.insert(payload)
            }
        };
        let bytes = payload + TAG_BYTES;
        if self.received.len() < bytes {
            return Ok(None);
        }
        // The library decrypts in place: it needs room for the tag, and allocates where there is none.
        let straight = out.len() >= bytes;
        let room = if straight { out } else { self.opened.room(bytes) };
        self.noise
            .read_message(&self.received.filled()[..bytes], room)
            .map_err(|_| RecordError::Changed)?;
        self.received.take(bytes);
        self.expected = None;
        self.opened_records += 1;
        if self.opened_records.is_multiple_of(RECORDS_PER_KEY) {
            self.noise.rekey_incoming();
        }
        if straight {
            return Ok(Some(payload));
        }
        self.opened.end += payload;
        Ok(Some(0))
    }

    /// Whether [`Self::open`] would return bytes without receiving more.
    #[must_use]
    pub fn has_payload(&self) -> bool {
        self.opened.len() > 0
            || match self.expected {
                Some(payload) => self.received.len() >= payload + TAG_BYTES,
                // Its payload may not be complete; the caller then tries once without effect.
                None => self.received.len() > LENGTH_BYTES + TAG_BYTES,
            }
    }

    /// Whether the peer may end here: all that was received is opened.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.received.len() == 0 && self.expected.is_none() && self.opened.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use heddle_protocol::handshake::{Channel, Hello, Secret};
    use heddle_protocol::ids::RunId;
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;
    use crate::opening::{Dialing, RecordCipher, accept};

    fn pair() -> (Records, Records) {
        let secret = Secret::from_hex(&"07".repeat(32)).expect("64 digits");
        let run = RunId(Uuid::nil());
        let hello = Hello::new(run, None).expect("random numbers");
        let begun =
            Dialing::begin(&secret, Channel::Operator, &hello, RecordCipher::of_this_machine());
        let (dialing, opening) = begun.expect("random numbers");
        let accepted = accept(&secret, run, &[Channel::Operator], &opening).expect("accepted");
        (dialing.finish(&accepted.answer).expect("the same secret"), accepted.records)
    }

    fn sealed(records: &mut Records, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let taken = records.seal(&[IoSlice::new(rest)]).expect("few records");
            rest = &rest[taken..];
            out.extend_from_slice(records.pending());
            records.sent(records.pending().len());
        }
        out
    }

    /// Receives bytes in pieces, and reads into buffers of `read` bytes.
    fn opened(
        records: &mut Records,
        bytes: &[u8],
        piece: usize,
        read: usize,
    ) -> Result<Vec<u8>, RecordError> {
        let (mut out, mut rest) = (Vec::new(), bytes);
        let mut buffer = vec![0; read];
        loop {
            let n = records.open(&mut buffer)?;
            out.extend_from_slice(&buffer[..n]);
            if n > 0 {
                continue;
            }
            if rest.is_empty() {
                return Ok(out);
            }
            let space = records.space();
            let n = space.len().min(rest.len()).min(piece);
            space[..n].copy_from_slice(&rest[..n]);
            records.filled(n);
            rest = &rest[n..];
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn bytes_are_the_same_for_any_split(
            sizes in prop::collection::vec(
                prop_oneof![0usize..200, 7_000usize..9_000, 60_000usize..200_000],
                1..6,
            ),
            piece in prop_oneof![1usize..40, 1_000usize..300_000],
            read in prop_oneof![1usize..100, 10_000usize..300_000],
        ) {
            let (mut from, mut to) = pair();
            let part = |(&size, n): (&usize, u8)| (0..size).map(|i| (i as u8) ^ n).collect();
            let parts: Vec<Vec<u8>> = sizes.iter().zip(1u8..).map(part).collect();
            let sent = parts.concat();
            let mut wire = Vec::new();
            let mut taken = 0;
            while taken < sent.len() {
                let mut skip = taken;
                let slices: Vec<_> = parts.iter().map(|part| {
                    let rest = &part[skip.min(part.len())..];
                    skip -= part.len() - rest.len();
                    IoSlice::new(rest)
                }).collect();
                let n = from.seal(&slices).expect("few records");
                prop_assert!(n > 0);
                taken += n;
                wire.extend_from_slice(from.pending());
                prop_assert!(from.pending().len() <= PENDING_MAX + 2 * RECORD_BYTES_MAX);
                from.sent(from.pending().len());
            }
            let got = opened(&mut to, &wire, piece, read).expect("unchanged");
            prop_assert!(got == sent);
            prop_assert!(to.is_complete() && !to.has_payload());
        }

        #[test]
        fn one_changed_byte_is_found(
            size in 1usize..70_000,
            at in any::<prop::sample::Index>(),
            bit in 0u8..8,
        ) {
            let (mut from, mut to) = pair();
            let mut wire = sealed(&mut from, &vec![5; size]);
            let at = at.index(wire.len());
            wire[at] ^= 1 << bit;
            prop_assert_eq!(opened(&mut to, &wire, wire.len(), 100_000), Err(RecordError::Changed));
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let (_, mut to) = pair();
            let result = opened(&mut to, &bytes, 400, 50);
            prop_assert!(bytes.len() < LENGTH_BYTES || result == Err(RecordError::Changed));
        }
    }

    /// With a plain length the reader would wait for the rest of a longer record.
    #[test]
    fn a_changed_length_is_found_when_it_arrives() {
        let (mut from, mut to) = pair();
        let mut wire = sealed(&mut from, b"acknowledged");
        wire[1] ^= 0x40;
        assert_eq!(opened(&mut to, &wire[..LENGTH_BYTES], 100, 100), Err(RecordError::Changed));
    }

    #[test]
    fn records_left_out_repeated_or_swapped_are_found() {
        for order in [&[1][..], &[0, 0], &[1, 0], &[0, 2]] {
            let (mut from, mut to) = pair();
            let records: Vec<_> = (0..3u8).map(|n| sealed(&mut from, &[n; 30])).collect();
            let wire: Vec<u8> = order.iter().flat_map(|&n| records[n].clone()).collect();
            assert_eq!(opened(&mut to, &wire, 1000, 1000), Err(RecordError::Changed), "{order:?}");
        }
    }

    #[test]
    fn a_cut_record_is_not_complete() {
        for missing in [1, 16, 20] {
            let (mut from, mut to) = pair();
            let wire = sealed(&mut from, b"values");
            let cut = &wire[..wire.len() - missing];
            assert_eq!(opened(&mut to, cut, 3, 100), Ok(Vec::new()));
            assert!(!to.is_complete());
        }
    }

    #[test]
    fn keys_change_on_both_sides_at_the_same_record() {
        let (mut from, mut to) = pair();
        from.sealed_records = RECORDS_PER_KEY - 2;
        to.opened_records = RECORDS_PER_KEY - 2;
        for n in 0..4u8 {
            let wire = sealed(&mut from, &[n; 10]);
            assert_eq!(opened(&mut to, &wire, 1000, 1000), Ok(vec![n; 10]));
        }
        // Without the change on one side the next record cannot be opened.
        to.opened_records = RECORDS_PER_KEY - 1;
        let wire = sealed(&mut from, &[4; 10]);
        assert_eq!(opened(&mut to, &wire, 1000, 1000), Ok(vec![4; 10]));
        let wire = sealed(&mut from, &[5; 10]);
        assert_eq!(opened(&mut to, &wire, 1000, 1000), Err(RecordError::Changed));
    }

    #[test]
    fn a_small_connection_has_small_buffers() {
        let (mut from, mut to) = pair();
        let wire = sealed(&mut from, &[1; 100]);
        opened(&mut to, &wire, 1000, 1000).expect("unchanged");
        let all = from.sealed.bytes.len() + from.gathered.capacity();
        assert!(all <= 512, "{all}");
        assert!(to.received.bytes.len() <= RECEIVE_MIN);
    }
}
