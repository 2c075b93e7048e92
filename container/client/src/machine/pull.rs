//! Pulls: cut into frames by shard, put together in the caller's buffers.

use std::ops::Range;
use std::sync::Arc;

use heddle_protocol::frame::{Kind, flags};
use heddle_protocol::ids::TableId;

use super::in_flight::Purpose;
use super::{Era, Event, Machine, PullAt, PullId, PullItem, Unit};
use crate::gradient::Payload;
use crate::layout::Rows;

/// A pull under way.
#[derive(Debug)]
pub(crate) struct PullState {
    items: Vec<ItemState>,
    missing: usize,
    /// Whose it is, if it waits for a step: dropped with the lane's work.
    unit: Option<Unit>,
}

#[derive(Debug)]
struct ItemState {
    table: TableId,
    rows: SharedRows,
    values: Vec<f32>,
}

/// Rows whose keys frames share.
#[derive(Debug)]
enum SharedRows {
    Range(Range<u64>),
    Keys(Arc<Vec<u32>>),
}

impl PullState {
    /// A run of one item's values.
    pub(crate) fn values(&mut self, item: usize, values: Range<usize>) -> Option<&mut [f32]> {
        self.items.get_mut(item)?.values.get_mut(values)
    }

    fn finish(self) -> Vec<PullItem> {
        let whole = |item: ItemState| PullItem {
            table: item.table,
            rows: match item.rows {
                SharedRows::Range(range) => Rows::Range(range),
                SharedRows::Keys(keys) => Rows::Keys(Arc::unwrap_or_clone(keys)),
            },
            values: item.values,
        };
        self.items.into_iter().map(whole).collect()
    }
}

impl Machine {
    /// Asks for values; answered by [`Event::Pulled`], with all items as given. A wrong request is answered by
    /// [`Event::Fault`]; one of another era, or of a step that the lane is beyond, by nothing.
    pub fn pull(&mut self, era: Era, pull: PullId, at: PullAt, items: Vec<PullItem>) {
        if !self.is_now(era) {
            return;
        }
        let unit = match at {
            PullAt::Now => None,
            PullAt::Before(lane, step) if self.lane_may_pull(lane, step) => Some(Unit::Lane(lane)),
            PullAt::Before(..) => return,
        };
        let mut header = self.header(era, Kind::Pull);
        match at {
            PullAt::Now => header.flags = flags::FREE,
            PullAt::Before(lane, step) => {
                header.unit = lane.0;
                header.step = step;
            }
        }
        let mut state = PullState { items: Vec::with_capacity(items.len()), missing: 0, unit };
        for (index, mut item) in items.into_iter().enumerate() {
            let shape = match self.layout.check(item.table, &item.rows) {
                Ok(shape) => shape,
                Err(error) => return self.fault(error.into()),
            };
            let cols = shape.cols as usize;
            let pieces = self.layout.pieces(shape, &item.rows);
            item.values.resize(item.rows.len() * cols, 0.0);
            let rows = match item.rows {
                Rows::Range(range) => SharedRows::Range(range),
                Rows::Keys(keys) => SharedRows::Keys(Arc::new(keys)),
            };
            for piece in pieces {
                let mut header = header;
                header.shard = piece.shard;
                header.table = item.table;
                header.start = piece.start;
                // At most PART_VALUES_MAX rows, by the cutting.
                header.count = piece.rows.len() as u32;
                let payload = match &rows {
                    SharedRows::Range(_) => Payload::none(),
                    SharedRows::Keys(keys) => {
                        header.flags |= flags::KEYS;
                        header.key_bytes = header.count * 4;
                        Payload::keys(keys, piece.rows.clone())
                    }
                };
                let values = piece.rows.start * cols..piece.rows.end * cols;
                self.requests.ask(
                    header,
                    payload,
                    Purpose::Pull { pull, item: index, values },
                    unit,
                );
                state.missing += 1;
            }
            state.items.push(ItemState { table: item.table, rows, values: item.values });
        }
        if state.missing == 0 {
            self.events.push_back(Event::Pulled { pull, items: state.finish() });
        } else {
            self.pulls.insert(pull, state);
        }
    }

    /// One frame of a pull was answered.
    pub(crate) fn pulled(&mut self, pull: PullId) {
        let Some(state) = self.pulls.get_mut(&pull) else {
            return;
        };
        state.missing -= 1;
        if state.missing == 0
            && let Some(state) = self.pulls.remove(&pull)
        {
            self.events.push_back(Event::Pulled { pull, items: state.finish() });
        }
    }

    /// Drops the pulls of a lane or task.
    pub(crate) fn forget_pulls(&mut self, unit: Unit) {
        self.pulls.retain(|_, state| state.unit != Some(unit));
    }
}
