//! The table of calls without a reply, by call id.
//!
//! A call whose deadline has passed, or whose caller has dropped it, stays in the table until its reply arrives. So a
//! late reply differs from a reply to an unknown call. The table has no socket and no clock; the time is an argument.

use std::collections::HashMap;

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::error::RpcError;

/// The undecoded body of a reply, or why there is none.
pub(super) type CallResult = Result<Bytes, RpcError>;

/// The table of one connection.
#[derive(Default)]
pub(super) struct OutstandingCalls {
    calls: HashMap<i32, Outstanding>,
}

struct Outstanding {
    /// `None` once the deadline has passed.
    waiting: Option<WaitingCaller>,
    /// Replies that the server still owes: 2 when a call was tried again on this connection before its first reply.
    owed: u32,
}

/// A caller that waits for the reply of its call.
pub(super) struct WaitingCaller {
    pub reply: oneshot::Sender<CallResult>,
    pub method: String,
    pub deadline: Instant,
    pub started: Instant,
    pub sent: Instant,
}

/// The reply is to a call that is not in the table.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UnknownReply;

impl OutstandingCalls {
    /// Adds a sent call. A retry has the id of the first try and takes the reply that arrives first.
    pub(super) fn add(&mut self, id: i32, waiting: WaitingCaller) {
        let entry = self.calls.entry(id).or_insert(Outstanding { waiting: None, owed: 0 });
        entry.waiting = Some(waiting);
        entry.owed += 1;
    }

    /// Accepts a reply and returns its caller, unless the deadline has passed.
    pub(super) fn reply(&mut self, id: i32) -> Result<Option<WaitingCaller>, UnknownReply> {
        let entry = self.calls.get_mut(&id).ok_or(UnknownReply)?;
        entry.owed -= 1;
        let waiting = entry.waiting.take();
        if entry.owed == 0 {
            self.calls.remove(&id);
        }
        Ok(waiting)
    }

    /// Removes one call, with or without a reply.
    pub(super) fn remove(&mut self, id: i32) -> Option<WaitingCaller> {
        self.calls.remove(&id)?.waiting
    }

    /// Removes the callers whose deadline has passed. The server still owes their replies.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<WaitingCaller> {
        let has_expired = |waiting: &mut WaitingCaller| waiting.deadline <= now;
        self.calls.values_mut().filter_map(|call| call.waiting.take_if(has_expired)).collect()
    }

    /// Removes all callers.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = WaitingCaller> {
        self.calls.drain().filter_map(|(_, call)| call.waiting)
    }

    /// Whether no caller waits.
    pub(super) fn is_idle(&self) -> bool {
        self.calls.values().all(|call| call.waiting.is_none())
    }

    /// The earliest deadline of the waiting callers.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let waiting = self.calls.values().filter_map(|call| call.waiting.as_ref());
        waiting.map(|waiting| waiting.deadline).min()
    }

    /// Calls in the table, expired ones included.
    pub(super) fn len(&self) -> usize {
        self.calls.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn waiting(now: Instant, after_ms: u64) -> WaitingCaller {
        WaitingCaller {
            reply: oneshot::channel().0,
            method: after_ms.to_string(),
            deadline: now + Duration::from_millis(after_ms),
            started: now,
            sent: now,
        }
    }

    fn method(waiting: Option<WaitingCaller>) -> Option<String> {
        waiting.map(|waiting| waiting.method)
    }

    #[test]
    fn each_reply_reaches_its_caller_once() {
        let now = Instant::now();
        let mut calls = OutstandingCalls::default();
        calls.add(1, waiting(now, 10));
        calls.add(2, waiting(now, 20));
        assert_eq!(calls.reply(2).map(method), Ok(Some("20".into())));
        assert_eq!(calls.reply(2).map(method), Err(UnknownReply));
        assert_eq!(calls.reply(3).map(method), Err(UnknownReply));
        assert_eq!(calls.next_deadline(), Some(now + Duration::from_millis(10)));
    }

    #[test]
    fn the_reply_to_an_expired_call_has_no_caller() {
        let now = Instant::now();
        let mut calls = OutstandingCalls::default();
        calls.add(1, waiting(now, 10));
        calls.add(2, waiting(now, 20));
        let late = calls.expire(now + Duration::from_millis(15));
        assert_eq!(late.len(), 1);
        assert!(!calls.is_idle());
        assert_eq!(calls.reply(1).map(method), Ok(None));
        assert_eq!(calls.reply(1).map(method), Err(UnknownReply));
        assert_eq!(calls.len(), 1);
    }

    #[test]
    fn a_retry_on_one_connection_is_owed_two_replies() {
        let now = Instant::now();
        let mut calls = OutstandingCalls::default();
        calls.add(1, waiting(now, 10));
        calls.expire(now + Duration::from_millis(10));
        calls.add(1, waiting(now, 30));
        assert_eq!(calls.reply(1).map(method), Ok(Some("30".into())));
        assert!(calls.is_idle());
        assert_eq!(calls.reply(1).map(method), Ok(None));
        assert_eq!(calls.reply(1).map(method), Err(UnknownReply));
    }
}
