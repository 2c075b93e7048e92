//! The dedup state: what a shard has applied of its phase, saved with its values. Repeated requests are detected by it.
//!
//! Little-endian:
//!
//! | bytes | field |
//! | --- | --- |
//! | 4 | magic `HDLM` |
//! | 2 | version, 3 |
//! | 1 | sharing of the phase: 0 lanes, 1 queue, 2 read-only |
//! | 1 | 0 |
//! | 4 | phase |
//! | 8 | steps applied in training phases, of all phases together (not in version 1, which reads as 0) |
//! | 4 | lanes: number of lanes `n` |
//! | 8 | lanes: job steps applied |
//! | `n` | lanes: 1 if the lane has ended, else 0 |
//! | 4 | number of lanes whose records are counted: `n`, or 0 (not before version 3) |
//! | 16 each | their records u64 and the sum of their losses f64, of all steps of the phase that are applied |
//! | 4 | queue: number of unfinished tasks |
//! | 16 each | their task u32, next part u32, step u64, ascending by task |
//! | 4 | queue: number of runs of done tasks |
//! | 8 each | their first and last task, u32, ascending, neither touching nor overlapping |

use heddle_protocol::ids::{Part, PhaseNo, Step, TaskId};
use heddle_protocol::metrics::{LossSum, RecordSums};

use crate::task_progress::{NextPart, TaskProgress};

const MAGIC: [u8; 4] = *b"HDLM";
const VERSION: u16 = 3;

/// The dedup state of one phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DedupState {
    pub(crate) phase: PhaseNo,
    /// Steps applied in training phases.
    pub(crate) steps: u64,
    pub(crate) seen: Seen,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// BSP.
    Lanes(SeenLanes),
    /// ASP: how far each task is applied.
    Queue(TaskProgress),
    /// Evaluation changes nothing.
    ReadOnly,
}

/// BSP: what is applied of the lanes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SeenLanes {
    /// Job steps.
    pub(crate) step: Step,
    /// Whether each lane has ended.
    pub(crate) ended: Vec<bool>,
    /// What the steps of each lane add up to. One shard of the job counts it; empty on others, and where a version that did not
    /// count has begun the phase.
    pub(crate) totals: Vec<RecordSums>,
}

/// Why bytes are not a dedup state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DedupError {
    /// The magic is wrong.
    #[error("the dedup state must start with HDLM")]
    Magic,
    /// Written by a later version of the program.
    #[error("the version of the dedup state must be at most {VERSION} (got {0})")]
    Version(u16),
    /// Bytes are missing, or left over.
    #[error("the dedup state is truncated or has extra bytes")]
    Length,
    /// Numbers contradict each other.
    #[error("the dedup state is malformed: {0}")]
    Malformed(&'static str),
}

impl DedupState {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        let (no_lanes, no_tasks) = (SeenLanes::default(), TaskProgress::default());
        let (sharing, lanes, tasks) = match &self.seen {
            Seen::Lanes(lanes) => (0u8, lanes, &no_tasks),
            Seen::Queue(tasks) => (1, &no_lanes, tasks),
            Seen::ReadOnly => (2, &no_lanes, &no_tasks),
        };
        out.extend([sharing, 0]);
        out.extend(self.phase.0.to_le_bytes());
        out.extend(self.steps.to_le_bytes());
        out.extend((lanes.ended.len() as u32).to_le_bytes());
        out.extend(lanes.step.0.to_le_bytes());
        out.extend(lanes.ended.iter().map(|&ended| u8::from(ended)));
        out.extend((lanes.totals.len() as u32).to_le_bytes());
        for total in &lanes.totals {
            out.extend(total.rows.to_le_bytes());
            out.extend(total.loss.get().to_le_bytes());
        }
        out.extend((tasks.unfinished.len() as u32).to_le_bytes());
        for (task, next) in &tasks.unfinished {
            out.extend(task.0.to_le_bytes());
            out.extend(next.part.0.to_le_bytes());
            out.extend(next.step.0.to_le_bytes());
        }
        out.extend((tasks.done.len() as u32).to_le_bytes());
        for (first, last) in &tasks.done {
            out.extend(first.to_le_bytes());
            out.extend(last.to_le_bytes());
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, DedupError> {
        let mut input = Unread(bytes);
        if input.take::<4>()? != MAGIC {
            return Err(DedupError::Magic);
        }
        let version = u16::from_le_bytes(input.take()?);
        if version == 0 || version > VERSION {
            return Err(DedupError::Version(version));
        }
        let [sharing, zero] = input.take()?;
        if zero != 0 {
            return Err(DedupError::Malformed("the reserved byte is not 0"));
        }
        let phase = PhaseNo(input.u32()?);
        let steps = if version == 1 { 0 } else { input.u64()? };
        let lanes = input.u32()? as usize;
        let step = Step(input.u64()?);
        let mut ended = Vec::new();
        for &byte in input.bytes(lanes)? {
            match byte {
                0 | 1 => ended.push(byte == 1),
                _ => return Err(DedupError::Malformed("the end of a lane is neither 0 nor 1")),
            }
        }
        let totals = if version < 3 { Vec::new() } else { input.totals(lanes)? };
        let tasks = input.tasks()?;
        if !input.0.is_empty() {
            return Err(DedupError::Length);
        }
        let seen = match sharing {
            0 => Seen::Lanes(SeenLanes { step, ended, totals }),
            1 => Seen::Queue(tasks),
            2 => Seen::ReadOnly,
            _ => return Err(DedupError::Malformed("unknown sharing")),
        };
        Ok(Self { phase, steps, seen })
    }
}

/// The steps that a saved shard had applied in training phases, of all phases together.
///
/// # Errors
/// The bytes are not a dedup state.
pub fn applied_steps(state: &[u8]) -> Result<u64, DedupError> {
    DedupState::decode(state).map(|state| state.steps)
}

/// The unread bytes.
struct Unread<'a>(&'a [u8]);

impl<'a> Unread<'a> {
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

    fn totals(&mut self, lanes: usize) -> Result<Vec<RecordSums>, DedupError> {
        let count = self.u32()? as usize;
        if count != 0 && count != lanes {
            return Err(DedupError::Malformed("not all lanes are counted"));
        }
        let mut totals = Vec::new();
        for _ in 0..count {
            let rows = self.u64()?;
            let loss = LossSum::new(f64::from_bits(self.u64()?));
            totals.push(RecordSums { rows, loss });
        }
        Ok(totals)
    }

    fn tasks(&mut self) -> Result<TaskProgress, DedupError> {
        let mut tasks = TaskProgress::default();
        for _ in 0..self.u32()? {
            let task = TaskId(self.u32()?);
            let part = Part(self.u32()?);
            let step = Step(self.u64()?);
            if tasks.unfinished.last_key_value().is_some_and(|(&last, _)| last >= task) {
                return Err(DedupError::Malformed("tasks are not in order"));
            }
            tasks.unfinished.insert(task, NextPart { step, part });
        }
        for _ in 0..self.u32()? {
            let (first, last) = (self.u32()?, self.u32()?);
            let apart = tasks.done.last_key_value().is_none_or(|(_, &before)| {
                before.checked_add(1).is_some_and(|touching| touching < first)
            });
            if first > last || !apart {
                return Err(DedupError::Malformed("runs of done tasks are not in order"));
            }
            tasks.done.insert(first, last);
        }
        if tasks.unfinished.keys().any(|&task| tasks.is_done(task)) {
            return Err(DedupError::Malformed("a task is both unfinished and done"));
        }
        Ok(tasks)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn memory() -> impl Strategy<Value = DedupState> {
        let tasks = (
            prop::collection::btree_map(0u32..100, (any::<u64>(), any::<u32>()), 0..10),
            prop::collection::vec(0u32..100, 0..60),
        );
        let queue = tasks.prop_map(|(unfinished, done)| {
            let mut tasks = TaskProgress::default();
            for (task, (step, part)) in unfinished {
                tasks
                    .unfinished
                    .insert(TaskId(task), NextPart { step: Step(step), part: Part(part) });
            }
            for task in done {
                tasks.finish(TaskId(task));
            }
            Seen::Queue(tasks)
        });
        let sums = (any::<u64>(), any::<u64>())
            .prop_map(|(rows, loss)| RecordSums { rows, loss: LossSum::new(f64::from_bits(loss)) });
        let lanes =
            (any::<u64>(), prop::collection::vec((any::<bool>(), sums), 0..20), any::<bool>())
                .prop_map(|(step, lanes, counts)| {
                    let ended = lanes.iter().map(|(ended, _)| *ended).collect();
                    let totals = lanes.iter().filter(|_| counts).map(|(_, sums)| *sums).collect();
                    Seen::Lanes(SeenLanes { step: Step(step), ended, totals })
                });
        (any::<u32>(), any::<u64>(), prop_oneof![queue, lanes, Just(Seen::ReadOnly)])
            .prop_map(|(phase, steps, seen)| DedupState { phase: PhaseNo(phase), steps, seen })
    }

    #[test]
    fn layout_is_the_documented_one() {
        let mut tasks = TaskProgress::default();
        tasks.advance(TaskId(7), Step(9), Part(1), false);
        tasks.finish(TaskId(3));
        tasks.finish(TaskId(4));
        let memory = DedupState { phase: PhaseNo(2), steps: 5, seen: Seen::Queue(tasks) };
        let head = |version| [b"HDLM", &[version, 0, 1, 0, 2, 0, 0, 0][..]].concat();
        let mut rest = vec![0; 12];
        rest.extend(b"\x01\0\0\0\x07\0\0\0\x02\0\0\0\x09\0\0\0\0\0\0\0");
        rest.extend(b"\x01\0\0\0\x03\0\0\0\x04\0\0\0");
        let steps = [5, 0, 0, 0, 0, 0, 0, 0];
        let older = DedupState::decode(&[&head(2)[..], &steps, &rest].concat());
        assert_eq!(older.as_ref(), Ok(&memory));
        let first = DedupState::decode(&[&head(1)[..], &rest].concat());
        assert_eq!(first, Ok(DedupState { steps: 0, ..memory.clone() }));
        let (lanes, tasks) = rest.split_at(12);
        let none = [0; 4];
        assert_eq!(memory.encode(), [&head(3)[..], &steps, lanes, &none, tasks].concat());
    }

    proptest! {
        #[test]
        fn encoded_state_decodes_to_itself(memory in memory()) {
            prop_assert_eq!(DedupState::decode(&memory.encode()), Ok(memory));
        }

        #[test]
        fn every_truncation_is_rejected(memory in memory()) {
            let bytes = memory.encode();
            for len in 0..bytes.len() {
                prop_assert!(DedupState::decode(&bytes[..len]).is_err());
            }
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            memory in memory(),
            at in 0usize..200,
            byte: u8,
        ) {
            let _ = DedupState::decode(&bytes);
            let mut bytes = memory.encode();
            let at = at % bytes.len();
            bytes[at] = byte;
            let _ = DedupState::decode(&bytes);
        }
    }
}
