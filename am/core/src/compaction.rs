//! Which journal records still matter: what keeps the journal's snapshots short.
//!
//! A job may roll back ten thousand times, and each rollback is a record with the whole map of shards. A reader asks for
//! the last of most kinds only. **Rule:** a record is dropped when no reader's answer changes by it: see the arms of
//! [`compact`]. The order of what stays is that of what came.

use std::collections::BTreeSet;

use heddle_protocol::ids::PhaseNo;

use crate::record::Record;

/// Commits that stay: the last is what a start is checked against, the others are for readers of the journal.
const COMMITS_KEPT: usize = 8;

/// The records that a reader of all of them needs.
///
/// - `Claim`: the last. The number of trainers that an operator set before a first attempt does not hold after it.
/// - `Restore`: the last, which has epoch, phase and map.
/// - `Views`: after the last `Restore` the first, which has the placement, and those with the last view of a shard.
/// - `UpdatesLost`: after the last `Restore`.
/// - `Evaluated`, `PassTrained`: those that no later `Restore` went below, and that no later `Commit` has in its manifest.
///   `TasksSetAside`: of those without a later `Restore` the last of a phase.
/// - `Commit`: the last few.
/// - `SaveGranted`: the last, and the `SaveEnded` after it.
/// - `Scaled`, `Outcome`: the last, a `Scaled` unless a first attempt was claimed after it.
#[must_use]
pub fn compact(records: Vec<Record>) -> Vec<Record> {
    let (mut claimed, mut restored, mut scaled, mut ended) = (false, None, false, false);
    let mut granted = false;
    let (mut commits, mut saved_before) = (0, PhaseNo(0));
    let last_restore = records.iter().rposition(|it| matches!(it, Record::Restore { .. }));
    let mut after = records.iter().enumerate().skip(last_restore.unwrap_or(0));
    let placement = after.find_map(|(at, it)| matches!(it, Record::Views { .. }).then_some(at));
    let (mut viewed, mut lacking) = (BTreeSet::new(), BTreeSet::new());
    let mut kept: Vec<Record> = records
        .into_iter()
        .enumerate()
        .rev()
        .filter(|(at, record)| match record {
            Record::Claim { attempt, .. } => {
                // What was set for an earlier application.
                scaled |= attempt.0 <= 1;
                !std::mem::replace(&mut claimed, true)
            }
            Record::Restore { phase, .. } => {
                let lowest = restored.map_or(*phase, |lowest| *phase.min(&lowest));
                restored.replace(lowest).is_none()
            }
            Record::Views { views, .. } if restored.is_none() => {
                let is_last = views.iter().filter(|view| viewed.insert(view.shard)).count() > 0;
                is_last || placement == Some(*at)
            }
            Record::Views { .. } => false,
            Record::UpdatesLost(_) => restored.is_none(),
            Record::Evaluated { phase, .. } | Record::PassTrained { phase, .. } => {
                *phase >= saved_before && restored.is_none_or(|lowest| *phase < lowest)
            }
            Record::TasksSetAside { phase, .. } => {
                restored.is_none_or(|lowest| *phase < lowest) && lacking.insert(*phase)
            }
            Record::Commit { phase, .. } => {
                saved_before = saved_before.max(*phase);
                commits += 1;
                commits <= COMMITS_KEPT
            }
            Record::SaveGranted(_) => !std::mem::replace(&mut granted, true),
            Record::SaveEnded { .. } => !granted,
            Record::Scaled { .. } => !std::mem::replace(&mut scaled, true),
            Record::Outcome(_) => !std::mem::replace(&mut ended, true),
        })
        .map(|(_, record)| record)
        .collect();
    kept.reverse();
    kept
}

#[cfg(test)]
mod tests {
    use heddle_protocol::exit_code::ExitCode;
    use heddle_protocol::figure::Figure;
    use heddle_protocol::ids::{
        Attempt, CutId, Epoch, Generation, Incarnation, Member, SaveNo, ShardId, Slot, Step,
        TaskId, Term, ViewVersion,
    };
    use heddle_protocol::set_aside::SetAsideTask;
    use heddle_protocol::view::SetBy;
    use heddle_protocol::view::{EvaluationView, JobState, TrainingPassView};
    use proptest::prelude::*;

    use super::*;
    use crate::outcome::Outcome;
    use crate::record::{GrantedSave, LostUpdates, RecordedView};
    use std::collections::BTreeMap;

    fn view(shard: u32, version: u64) -> RecordedView {
        let primary = Member { slot: Slot::pserver(shard), incarnation: Incarnation(1) };
        RecordedView {
            shard: ShardId(shard),
            term: Term(1),
            version: ViewVersion(version),
            primary,
            in_sync: vec![primary],
            fills: Vec::new(),
            began_at: None,
        }
    }

    fn record() -> impl Strategy<Value = Record> {
        let epoch = Epoch::first(Generation(1));
        let phase = (0u32..5).prop_map(PhaseNo);
        prop_oneof![
            (1u32..3).prop_map(|attempt| Record::Claim {
                attempt: Attempt(attempt),
                generation: Generation(attempt),
                base: None,
                at_ms: 0,
            }),
            (phase.clone(), 0u32..100).prop_map(move |(phase, count)| Record::Restore {
                epoch: Epoch { count, ..epoch },
                base: None,
                dir: None,
                phase,
                step: Step(0),
                holders: vec![Slot::pserver(count)],
                lost: Vec::new(),
                cause: String::new(),
                at_ms: 0,
            }),
            prop::collection::vec((0u32..3, 1u64..9), 1..4).prop_map(move |views| Record::Views {
                epoch,
                views: views.into_iter().map(|(shard, version)| view(shard, version)).collect(),
                cause: String::new(),
                at_ms: 0,
            }),
            (0u64..100).prop_map(move |updates| Record::UpdatesLost(LostUpdates {
                epoch,
                updates,
                by_shard: Vec::new(),
                at_ms: 0,
            })),
            (phase.clone(), 0u64..100).prop_map(move |(phase, rows)| Record::Evaluated {
                epoch,
                phase,
                scores: EvaluationView {
                    pass: 0,
                    rows,
                    figures: [(Figure::LogLoss, 1.0)].into_iter().collect(),
                },
            }),
            (phase.clone(), 0u64..100).prop_map(|(phase, rows)| Record::PassTrained {
                phase,
                trained: TrainingPassView::new(0, rows, Some(1.0)),
            }),
            (phase.clone(), 0u32..3).prop_map(|(phase, task)| Record::TasksSetAside {
                phase,
                tasks: vec![SetAsideTask {
                    phase,
                    task: TaskId(task),
                    file: String::new(),
                    start: 0,
                    end: 1,
                    error: String::new(),
                }],
            }),
            (phase, 1u32..100).prop_map(|(phase, number)| Record::Commit {
                cut: CutId { generation: Generation(1), number },
                dir: String::new(),
                phase,
                step: Step(0),
                at_ms: 0,
            }),
            (1u32..4).prop_map(|save| Record::SaveGranted(GrantedSave {
                save: SaveNo(save),
                member: Member { slot: Slot::trainer(0), incarnation: Incarnation(1) },
                request: 1,
                block_ms: 1,
                after: CutId::default(),
                at_ms: 0,
            })),
            (1u32..4).prop_map(|save| Record::SaveEnded {
                save: SaveNo(save),
                model: None,
                at_ms: 0
            }),
            (1u32..9).prop_map(|trainers| Record::Scaled {
                trainers,
                pservers: Some(2),
                set_by: SetBy::Operator,
                generation: 0,
                at_ms: 0,
            }),
            Just(Record::Outcome(Outcome {
                state: JobState::Stopped,
                exit_code: ExitCode::Killed,
                message: String::new(),
                model: None,
            })),
        ]
    }

    /// What readers ask the journal.
    fn answers(records: &[Record]) -> String {
        let last = |is: fn(&Record) -> bool| records.iter().rev().find(|record| is(record));
        let (mut scaled, mut scores, mut passes) = (None, Vec::new(), Vec::new());
        let mut set_aside = BTreeMap::new();
        let (mut of_shards, mut lost) = (BTreeMap::new(), Vec::new());
        for record in records {
            match record {
                Record::Claim { attempt, .. } if attempt.0 <= 1 => scaled = None,
                Record::Scaled { trainers, .. } => scaled = Some(*trainers),
                Record::Evaluated { phase, scores: of, .. } => scores.push((*phase, of.rows)),
                Record::PassTrained { phase, trained } => passes.push((*phase, trained.rows)),
                Record::TasksSetAside { phase, tasks } => {
                    set_aside.insert(*phase, tasks.clone());
                }
                // Its manifest has them.
                Record::Commit { phase, .. } => {
                    scores.retain(|(of, _)| of >= phase);
                    passes.retain(|(of, _)| of >= phase);
                }
                Record::Restore { phase, .. } => {
                    set_aside.retain(|of, _| of < phase);
                    scores.retain(|(of, _)| of < phase);
                    passes.retain(|(of, _)| of < phase);
                    of_shards.clear();
                    lost.clear();
                }
                Record::UpdatesLost(of) => lost.push(of.updates),
                Record::Views { views, .. } => {
                    of_shards.extend(views.iter().map(|view| (view.shard, view.version)));
                }
                _ => {}
            }
        }
        let mut saves = crate::model_saves::ModelSaves::default();
        saves.begin(records, crate::time::Now::default());
        let saves = format!("{saves:?}");
        let ended = last(|record| matches!(record, Record::Outcome(_) | Record::Claim { .. }));
        format!(
            "{:?} {:?} {:?} {:?} {ended:?} {scaled:?} {scores:?} {passes:?} {of_shards:?} {lost:?} {set_aside:?} {saves}",
            last(|record| matches!(record, Record::Claim { .. })),
            last(|record| matches!(record, Record::Restore { .. })),
            last(|record| matches!(record, Record::Commit { .. })),
            last(|record| matches!(record, Record::Outcome(_))),
        )
    }

    proptest! {
        #[test]
        fn readers_get_the_same_answers(
            before in prop::collection::vec(record(), 0..30),
            after in prop::collection::vec(record(), 0..6),
        ) {
            let short = compact(before.clone());
            prop_assert_eq!(answers(&short), answers(&before));
            // And so when more is written behind it.
            let all = [before, after.clone()].concat();
            prop_assert_eq!(answers(&[short, after].concat()), answers(&all));
        }
    }
}
