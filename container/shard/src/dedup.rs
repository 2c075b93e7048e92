//! The once-only memory as bytes: what a shard has seen of its phase, saved with its values.
//!
//! Little-endian:
//!
//! | bytes | field |
//! | --- | --- |
//! | 4 | magic `HDLM` |
//! | 2 | version, 1 |
//! | 1 | sharing of the phase: 0 lanes, 1 queue, 2 read-only |
//! | 1 | 0 |
//! | 4 | phase |
//! | 4 | lanes: number of lanes `n` |
//! | 8 | lanes: job steps applied |
//! | `n` | lanes: 1 if the lane has ended, else 0 |
//! | 4 | queue: number of unfinished tasks |
//! | 16 each | their task u32, next part u32, step u64, ascending by task |
//! | 4 | queue: number of runs of done tasks |
//! | 8 each | their first and last task, u32, ascending, neither touching nor overlapping |

use heddle_protocol::ids::{Part, PhaseNo, Step, TaskId};

use crate::task_progress::{NextPart, TaskProgress};

const MAGIC: [u8; 4] = *b"HDLM";
const VERSION: u16 = 1;

/// What has been seen of one phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DedupState {
    pub(crate) phase: PhaseNo,
    pub(crate) seen: Seen,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// BSP: steps applied, and which lanes have ended.
    Lanes { step: Step, ended: Vec<bool> },
    /// ASP.
    Queue(TaskProgress),
    /// Evaluation changes nothing.
    ReadOnly,
}

/// Bytes that are not a once-only memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DedupError {
    /// The magic is wrong.
    #[error("once-only memory does not begin with HDLM")]
    Magic,
    /// Written by a later program.
    #[error("once-only memory has version {0}, this program reads version {VERSION}")]
    Version(u16),
    /// It ends early or goes on after its end.
    #[error("once-only memory has a wrong length")]
    Length,
    /// Numbers that contradict each other.
    #[error("once-only memory is malformed: {0}")]
    Malformed(&'static str),
}

impl DedupState {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        let (sharing, lanes, step) = match &self.seen {
            Seen::Lanes { step, ended } => (0u8, ended.len() as u32, *step),
            Seen::Queue(_) => (1, 0, Step(0)),
            Seen::ReadOnly => (2, 0, Step(0)),
        };
        out.extend([sharing, 0]);
        out.extend(self.phase.0.to_le_bytes());
        out.extend(lanes.to_le_bytes());
        out.extend(step.0.to_le_bytes());
        let none = TaskProgress::default();
        let marks = match &self.seen {
            Seen::Lanes { ended, .. } => {
                out.extend(ended.iter().map(|&ended| u8::from(ended)));
                &none
            }
            Seen::Queue(marks) => marks,
            Seen::ReadOnly => &none,
        };
        out.extend((marks.unfinished.len() as u32).to_le_bytes());
        for (task, mark) in &marks.unfinished {
            out.extend(task.0.to_le_bytes());
            out.extend(mark.part.0.to_le_bytes());
            out.extend(mark.step.0.to_le_bytes());
        }
        out.extend((marks.done.len() as u32).to_le_bytes());
        for (first, last) in &marks.done {
            out.extend(first.to_le_bytes());
            out.extend(last.to_le_bytes());
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, DedupError> {
        let mut input = Input(bytes);
        if input.take::<4>()? != MAGIC {
            return Err(DedupError::Magic);
        }
        let version = u16::from_le_bytes(input.take()?);
        if version != VERSION {
            return Err(DedupError::Version(version));
        }
        let [sharing, zero] = input.take()?;
        if zero != 0 {
            return Err(DedupError::Malformed("a byte that has no meaning is set"));
        }
        let phase = PhaseNo(input.u32()?);
        let lanes = input.u32()? as usize;
        let step = Step(input.u64()?);
        let mut ended = Vec::new();
        for &byte in input.bytes(lanes)? {
            match byte {
                0 | 1 => ended.push(byte == 1),
                _ => return Err(DedupError::Malformed("a lane has neither ended nor not")),
            }
        }
        let marks = input.marks()?;
        if !input.0.is_empty() {
            return Err(DedupError::Length);
        }
        let seen = match sharing {
            0 => Seen::Lanes { step, ended },
            1 => Seen::Queue(marks),
            2 => Seen::ReadOnly,
            _ => return Err(DedupError::Malformed("an unknown sharing of work")),
        };
        Ok(Self { phase, seen })
    }
}

/// The bytes that are not read yet.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn bytes(&mut self, len: usize) -> Result<&'a [u8], DedupError> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(DedupError::Length)?;
        self.0 = rest;
        Ok(taken)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], DedupError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(DedupError::Length)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u32(&mut self) -> Result<u32, DedupError> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, DedupError> {
        self.take().map(u64::from_le_bytes)
    }

    fn marks(&mut self) -> Result<TaskProgress, DedupError> {
        let mut marks = TaskProgress::default();
        for _ in 0..self.u32()? {
            let task = TaskId(self.u32()?);
            let part = Part(self.u32()?);
            let step = Step(self.u64()?);
            if marks.unfinished.last_key_value().is_some_and(|(&last, _)| last >= task) {
                return Err(DedupError::Malformed("tasks are not in order"));
            }
            marks.unfinished.insert(task, NextPart { step, part });
        }
        for _ in 0..self.u32()? {
            let (first, last) = (self.u32()?, self.u32()?);
            let apart = marks.done.last_key_value().is_none_or(|(_, &before)| {
                before.checked_add(1).is_some_and(|touching| touching < first)
            });
            if first > last || !apart {
                return Err(DedupError::Malformed("runs of done tasks are not in order"));
            }
            marks.done.insert(first, last);
        }
        if let Some(task) = marks.unfinished.keys().find(|&&task| marks.is_done(task)) {
            let _ = task;
            return Err(DedupError::Malformed("a task is both unfinished and done"));
        }
        Ok(marks)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn memory() -> impl Strategy<Value = DedupState> {
        let marks = (
            prop::collection::btree_map(0u32..100, (any::<u64>(), any::<u32>()), 0..10),
            prop::collection::vec(0u32..100, 0..60),
        );
        let queue = marks.prop_map(|(unfinished, done)| {
            let mut marks = TaskProgress::default();
            for (task, (step, part)) in unfinished {
                marks
                    .unfinished
                    .insert(TaskId(task), NextPart { step: Step(step), part: Part(part) });
            }
            for task in done {
                marks.finish(TaskId(task));
            }
            Seen::Queue(marks)
        });
        let lanes = (any::<u64>(), prop::collection::vec(any::<bool>(), 0..20))
            .prop_map(|(step, ended)| Seen::Lanes { step: Step(step), ended });
        (any::<u32>(), prop_oneof![queue, lanes, Just(Seen::ReadOnly)])
            .prop_map(|(phase, seen)| DedupState { phase: PhaseNo(phase), seen })
    }

    #[test]
    fn the_layout_is_the_documented_one() {
        let mut marks = TaskProgress::default();
        marks.advance(TaskId(7), Step(9), Part(1), false);
        marks.finish(TaskId(3));
        marks.finish(TaskId(4));
        let memory = DedupState { phase: PhaseNo(2), seen: Seen::Queue(marks) };
        let mut golden = b"HDLM\x01\0\x01\0\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0".to_vec();
        golden.extend(b"\x01\0\0\0\x07\0\0\0\x02\0\0\0\x09\0\0\0\0\0\0\0");
        golden.extend(b"\x01\0\0\0\x03\0\0\0\x04\0\0\0");
        assert_eq!(memory.encode(), golden);
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(memory in memory()) {
            prop_assert_eq!(DedupState::decode(&memory.encode()), Ok(memory));
        }

        #[test]
        fn every_truncation_is_refused(memory in memory()) {
            let bytes = memory.encode();
            for len in 0..bytes.len() {
                prop_assert!(DedupState::decode(&bytes[..len]).is_err());
            }
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), memory in memory(), at in 0usize..200, byte: u8) {
            let _ = DedupState::decode(&bytes);
            let mut bytes = memory.encode();
            let at = at % bytes.len();
            bytes[at] = byte;
            let _ = DedupState::decode(&bytes);
        }
    }
}
