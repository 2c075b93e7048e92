//! Saves of the model that trainers' programs ask for during training: which request is granted, and which save is under way.
//!
//! **Intuition.** Each trainer's program runs the same code and asks at about the same time, after a pass for example. One of
//! them is to save, the others are to go on.
//!
//! **Rule.** The first request is granted, and the same trainer gets the same answer again. Others wait until its block time is over, and
//! until its save is. The save is made from a checkpoint that is cut after the request, so training does not pause. The
//! trainer that asked writes it, under a lease (see `stage::export`); another one does if that one is lost.
//!
//! **Durable.** A grant is a decision of the journal: no trainer receives it before its record is durable, and a new attempt
//! goes on with a save that is not over. A lease has no record, since its number has the generation in it.
//!
//! **Rejected.** A queue of requests: the next checkpoint holds what all of them wanted saved. Election by the lowest number
//! of a trainer: the ApplicationMaster leads anyway.

use heddle_protocol::control::{SaveAnswer, SaveRequest};
use heddle_protocol::ids::{CutId, Generation, Member, SaveLease, SaveNo};
use heddle_protocol::mutation::Mutation;
use heddle_protocol::view::{ModelSavesView, OpenSaveView, PublishedSaveView};

use crate::action::Checkpoint;
use crate::record::{GrantedSave, Record};
use crate::stage::export::ModelExport;
use crate::time::{MonotonicMs, Now};

/// When to ask again while a save is under way longer than its block time.
const ASK_AGAIN_MS: u64 = 1_000;

/// A save that is under way.
#[derive(Clone, Debug, Default)]
struct OpenSave {
    export: ModelExport,
    /// It is made from a cut after this one.
    after: CutId,
    /// What it is made from, once that is committed.
    source: Option<Checkpoint>,
    /// Tries of its cut that failed.
    cut_failures: u32,
}

/// The saves of the job.
#[derive(Clone, Debug, Default)]
pub(crate) struct ModelSaves {
    last: Option<GrantedSave>,
    blocked_until: MonotonicMs,
    open: Option<OpenSave>,
    /// Elections of this attempt.
    elections: u32,
    /// The last save that was published, as far as the journal has it.
    published: Option<PublishedSaveView>,
}

impl ModelSaves {
    /// The attempt starts with this journal: a save that is not over goes on.
    pub(crate) fn begin(&mut self, journal: &[Record], now: Now) {
        self.published = journal.iter().rev().find_map(|record| match record {
            Record::SaveEnded { save, model: Some(dir), .. } => {
                Some(PublishedSaveView { save: *save, dir: dir.clone() })
            }
            _ => None,
        });
        let last = journal.iter().rposition(|it| matches!(it, Record::SaveGranted(_)));
        let Some((at, Record::SaveGranted(granted))) = last.map(|at| (at, &journal[at])) else {
            return;
        };
        let is_over = journal[at..]
            .iter()
            .any(|it| matches!(it, Record::SaveEnded { save, .. } if *save == granted.save));
        let until_ms = granted.at_ms.saturating_add(granted.block_ms);
        let left_ms = until_ms.saturating_sub(now.wall_ms).min(granted.block_ms);
        self.blocked_until = now.mono + left_ms;
        self.open = (!is_over && !Mutation::SaveIsForgotten.is_on())
            .then(|| OpenSave { after: granted.after, ..OpenSave::default() });
        self.last = Some(granted.clone());
    }

    /// The answer to a request, unless it is to be granted as a new save.
    pub(crate) fn answer(
        &self,
        member: Member,
        request: &SaveRequest,
        now: MonotonicMs,
    ) -> Option<SaveAnswer> {
        let last = self.last.as_ref()?;
        let granted = Some(SaveAnswer::Granted { save: last.save });
        let is_its = last.member == member;
        if is_its && last.request == request.request {
            // A repetition: the answer was lost.
            return granted;
        }
        if self.open.is_none() && now >= self.blocked_until {
            return None;
        }
        if is_its {
            return granted;
        }
        let writer = self.open.as_ref().and_then(|open| open.export.writer());
        let holder = writer.map_or(last.member, |writer| writer.member);
        let left_ms = self.blocked_until.since(now);
        let wait_ms = if self.open.is_some() { left_ms.max(ASK_AGAIN_MS) } else { left_ms };
        Some(SaveAnswer::Wait { holder, wait_ms })
    }

    /// Grants a request. `after`: the last cut of the job so far.
    pub(crate) fn grant(
        &mut self,
        member: Member,
        request: &SaveRequest,
        after: CutId,
        now: Now,
    ) -> GrantedSave {
        debug_assert!(self.open.is_none(), "one save is under way at a time");
        let SaveRequest { request, block_ms } = *request;
        let save = self.last.as_ref().map_or(SaveNo(1), |last| last.save.next());
        let granted = GrantedSave { save, member, request, block_ms, after, at_ms: now.wall_ms };
        self.blocked_until = now.mono + block_ms;
        self.open = Some(OpenSave { after, ..OpenSave::default() });
        self.last = Some(granted.clone());
        granted
    }

    /// The number of an election, above all before.
    pub(crate) fn next_lease(&mut self, generation: Generation) -> SaveLease {
        self.elections += 1;
        SaveLease { generation, count: self.elections }
    }

    /// The save that is under way.
    pub(crate) fn open(&self) -> Option<&GrantedSave> {
        self.last.as_ref().filter(|_| self.open.is_some())
    }

    /// The export of the save that is under way.
    pub(crate) fn export(&mut self) -> Option<&mut ModelExport> {
        self.open.as_mut().map(|open| &mut open.export)
    }

    /// The save that is under way is made from a cut after this one.
    pub(crate) fn after(&self) -> Option<CutId> {
        self.open.as_ref().map(|open| open.after)
    }

    /// What the save that is under way is made from, once that is committed.
    pub(crate) fn source(&self) -> Option<&Checkpoint> {
        self.open.as_ref()?.source.as_ref()
    }

    /// The save that is under way is made from this checkpoint.
    pub(crate) fn set_source(&mut self, source: Checkpoint) {
        if let Some(open) = &mut self.open {
            open.source = Some(source);
        }
    }

    /// The checkpoint is damaged: the save is made from one that is cut after it. Returns the failures so far.
    pub(crate) fn source_is_damaged(&mut self, after: CutId) -> u32 {
        if let Some(open) = &mut self.open {
            (open.after, open.source) = (after, None);
        }
        self.cut_failed()
    }

    /// A cut that would have served has failed. Returns how many have.
    pub(crate) fn cut_failed(&mut self) -> u32 {
        self.open.as_mut().map_or(0, |open| {
            open.cut_failures += 1;
            open.cut_failures
        })
    }

    /// The save that was under way is over. `dir`: where it is published.
    pub(crate) fn end(&mut self, dir: Option<String>) {
        let save = self.open().map(|open| open.save);
        if let (Some(save), Some(dir)) = (save, dir) {
            self.published = Some(PublishedSaveView { save, dir });
        }
        self.open = None;
    }

    /// The saves as they are reported; none before the first.
    pub(crate) fn view(&self) -> Option<ModelSavesView> {
        let writer = self.open.as_ref().and_then(|open| open.export.writer());
        let writer = writer.map(|writer| writer.member.slot);
        let open = self.open().map(|open| OpenSaveView { save: open.save, writer });
        let published = self.published.clone();
        (open.is_some() || published.is_some()).then_some(ModelSavesView { open, published })
    }
}

#[cfg(test)]
mod tests {
    use heddle_protocol::ids::{Incarnation, Slot};

    use super::*;

    fn trainer(index: u32) -> Member {
        Member { slot: Slot::trainer(index), incarnation: Incarnation(1) }
    }

    fn at(ms: u64) -> Now {
        Now { mono: MonotonicMs(ms), wall_ms: 1_000_000 + ms }
    }

    fn ask(request: u64) -> SaveRequest {
        SaveRequest { request, block_ms: 5_000 }
    }

    #[test]
    fn first_request_wins_until_block_time_and_save_are_over() {
        let mut saves = ModelSaves::default();
        let answer = |saves: &ModelSaves, index, request, ms| {
            saves.answer(trainer(index), &ask(request), MonotonicMs(ms))
        };
        assert_eq!(answer(&saves, 0, 1, 0), None);
        let granted = saves.grant(trainer(0), &ask(1), CutId::default(), at(0));
        assert_eq!(granted.save, SaveNo(1));
        let yes = Some(SaveAnswer::Granted { save: SaveNo(1) });
        assert_eq!(answer(&saves, 0, 1, 9_000), yes, "the same request");
        assert_eq!(answer(&saves, 0, 2, 9_000), yes, "its save is under way");
        let wait = |wait_ms| Some(SaveAnswer::Wait { holder: trainer(0), wait_ms });
        assert_eq!(answer(&saves, 1, 1, 2_000), wait(3_000));
        assert_eq!(answer(&saves, 1, 1, 9_000), wait(1_000), "the save takes longer");
        saves.end(None);
        assert_eq!(answer(&saves, 1, 1, 4_000), wait(1_000));
        assert_eq!(answer(&saves, 1, 1, 5_000), None);
        assert_eq!(saves.grant(trainer(1), &ask(1), CutId::default(), at(5_000)).save, SaveNo(2));
    }

    #[test]
    fn next_attempt_goes_on_with_a_save_that_is_not_over() {
        let mut before = ModelSaves::default();
        let granted = before.grant(trainer(0), &ask(1), CutId::default(), at(0));
        let mut journal = vec![Record::SaveGranted(granted)];
        let mut saves = ModelSaves::default();
        saves.begin(&journal, at(2_000));
        assert_eq!(saves.open().map(|open| open.save), Some(SaveNo(1)));
        assert_eq!(saves.blocked_until, MonotonicMs(5_000));
        journal.push(Record::SaveEnded { save: SaveNo(1), model: None, at_ms: 0 });
        let mut saves = ModelSaves::default();
        saves.begin(&journal, at(2_000));
        assert!(saves.open().is_none());
        assert_eq!(saves.grant(trainer(1), &ask(1), CutId::default(), at(9_000)).save, SaveNo(2));
    }
}
