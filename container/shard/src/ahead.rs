//! BSP: pushes of the next step, from lanes that are done with the current one.

use std::collections::VecDeque;

use crate::effect::Conn;
use crate::frame::{Frame, WaitingFrame};

/// Pushes that wait until the current step is applied.
pub(crate) struct AheadPushes {
    frames: VecDeque<WaitingFrame>,
    bytes: usize,
    bytes_max: usize,
}

impl AheadPushes {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { frames: VecDeque::new(), bytes: 0, bytes_max }
    }

    /// Keeps a copy of a push. False if there is no room.
    pub(crate) fn keep(&mut self, frame: &Frame<'_>) -> bool {
        let waiting = frame.to_waiting();
        if self.bytes + waiting.bytes() > self.bytes_max {
            return false;
        }
        self.bytes += waiting.bytes();
        self.frames.push_back(waiting);
        true
    }

    /// Removes all pushes, in order.
    pub(crate) fn take_all(&mut self) -> VecDeque<WaitingFrame> {
        self.bytes = 0;
        std::mem::take(&mut self.frames)
    }

    /// Drops the pushes of a closed connection.
    pub(crate) fn disconnect(&mut self, conn: Conn) {
        self.frames.retain(|waiting| waiting.conn != conn);
        self.bytes = self.frames.iter().map(WaitingFrame::bytes).sum();
    }
}
