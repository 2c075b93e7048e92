//! Pulls in progress: cut into frames by shard, assembled in the caller's buffers.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use heddle_protocol::frame::{Header, Kind, flags};
use heddle_protocol::ids::{Step, TableId};

use super::context::MachineContext;
use super::event::ClientEvent;
use super::in_flight::RequestPurpose;
use super::request::{PullAt, PullId, PullItem};
use super::unit::Unit;
use crate::gradient::{Payload, PulledKeys};
use crate::layout::Rows;

/// All pulls in progress.
#[derive(Debug, Default)]
pub(super) struct Pulls(BTreeMap<PullId, PullState>);

#[derive(Debug)]
struct PullState {
    items: Vec<ItemState>,
    /// Frames without a reply.
    missing: usize,
    /// The lane or (SSP) task that waits for it, if the pull is of a step: both are dropped together.
    unit: Option<Unit>,
}

#[derive(Debug)]
struct ItemState {
    table: TableId,
    rows: SharedRows,
    values: Vec<f32>,
}

/// Rows whose keys the frames share.
#[derive(Debug)]
enum SharedRows {
    Range(Range<u64>),
    Keys(Arc<PulledKeys>),
}

impl PullState {
    fn finish(self) -> Vec<PullItem> {
        let whole = |item: ItemState| PullItem {
            table: item.table,
            rows: match item.rows {
                SharedRows::Range(range) => Rows::Range(range),
                SharedRows::Keys(keys) => match Arc::unwrap_or_clone(keys) {
                    PulledKeys::Rows(keys) => Rows::Keys(keys),
                    PulledKeys::Positions(positions) => Rows::Positions(positions),
                },
            },
            values: item.values,
        };
        self.items.into_iter().map(whole).collect()
    }
}

impl Pulls {
    /// Sends the frames of a pull. The caller has checked that a lane's pull is of its next step. `number`: of a task's pull
    /// that waits for clocks.
    pub(super) fn pull(
        &mut self,
        pull: PullId,
        at: PullAt,
        number: Option<u64>,
        items: Vec<PullItem>,
        context: &mut MachineContext,
    ) {
        let mut header = context.header(Kind::Pull);
        let unit = match at {
            PullAt::Step(task, _) if number.is_some() => {
                header.unit = task.0;
                header.step = Step(number.unwrap_or_default());
                Some(Unit::Task(task))
            }
            PullAt::Now | PullAt::Step(..) => {
                header.flags = flags::FREE;
                None
            }
            PullAt::Before(lane, step) => {
                header.unit = lane.0;
                header.step = step;
                Some(Unit::Lane(lane))
            }
        };
        let invalid = |item: &PullItem| context.layout.check(item.table, &item.rows).err();
        if let Some(error) = items.iter().find_map(invalid) {
            return context.fault(error.into());
        }
        let mut state = PullState { items: Vec::with_capacity(items.len()), missing: 0, unit };
        for (index, item) in items.into_iter().enumerate() {
            state.pull_item(header, pull, index, item, context);
        }
        if state.missing == 0 {
            context.events.push_back(ClientEvent::Pulled { pull, items: state.finish() });
        } else {
            self.0.insert(pull, state);
        }
    }

    /// The destination of a frame's values.
    pub(super) fn values(
        &mut self,
        pull: PullId,
        item: usize,
        values: Range<usize>,
    ) -> Option<&mut [f32]> {
        self.0.get_mut(&pull)?.items.get_mut(item)?.values.get_mut(values)
    }

    /// A frame of a pull was answered.
    pub(super) fn answered(&mut self, pull: PullId, context: &mut MachineContext) {
        let Some(state) = self.0.get_mut(&pull) else {
            debug_assert!(false, "a pull is dropped together with its frames");
            return;
        };
        state.missing -= 1;
        if state.missing == 0
            && let Some(state) = self.0.remove(&pull)
        {
            context.events.push_back(ClientEvent::Pulled { pull, items: state.finish() });
        }
    }

    /// Drops the pulls of a lane or task.
    pub(super) fn drop_unit(&mut self, unit: Unit) {
        self.0.retain(|_, state| state.unit != Some(unit));
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

impl PullState {
    /// Sends the frames of one checked item. `index`: of the item in its pull.
    fn pull_item(
        &mut self,
        header: Header,
        pull: PullId,
        index: usize,
        mut item: PullItem,
        context: &mut MachineContext,
    ) {
        let Ok(shape) = context.layout.table(item.table) else {
            debug_assert!(false, "the item was checked");
            return;
        };
        let cols = shape.cols as usize;
        let pieces = context.layout.pieces(shape, &item.rows);
        item.values.resize(item.rows.len() * cols, 0.0);
        let (key_flags, key_bytes) = item.rows.key_fields(1);
        let rows = match item.rows {
            Rows::Range(range) => SharedRows::Range(range),
            Rows::Keys(keys) => SharedRows::Keys(Arc::new(PulledKeys::Rows(keys))),
            Rows::Positions(positions) => {
                SharedRows::Keys(Arc::new(PulledKeys::Positions(positions)))
            }
        };
        for piece in pieces {
            let mut header = header;
            header.shard = piece.shard;
            header.table = item.table;
            header.start = piece.start;
            // At most PART_VALUES_MAX rows by construction.
            header.count = piece.rows.len() as u32;
            let payload = match &rows {
                SharedRows::Range(_) => Payload::none(),
                SharedRows::Keys(keys) => {
                    header.flags |= key_flags;
                    header.key_bytes = header.count * key_bytes;
                    Payload::keys(keys, piece.rows.clone())
                }
            };
            let values = piece.rows.start * cols..piece.rows.end * cols;
            context.requests.send(
                header,
                payload,
                RequestPurpose::Pull { pull, item: index, values },
                self.unit,
            );
            self.missing += 1;
        }
        self.items.push(ItemState { table: item.table, rows, values: item.values });
    }
}
