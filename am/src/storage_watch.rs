//! Shows when the ApplicationMaster waits for the storage: its calls may hang for minutes in a client that tries again by itself.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use heddle_protocol::view::{JobEvent, StorageWaitView};
use tokio::sync::mpsc;

use crate::wall_clock::wall_ms;

/// A call that takes longer is shown.
const SHOWN_AFTER: Duration = Duration::from_secs(5);

/// Watches calls to one storage.
pub struct StorageWatch {
    /// The directory whose calls are watched, a URL.
    dir: String,
    /// Why the last try of the present call failed; empty where there was no response.
    error: Mutex<String>,
    notices: mpsc::UnboundedSender<JobEvent>,
}

impl StorageWatch {
    /// Of calls for this directory; what is found goes to `notices`.
    #[must_use]
    pub fn new(dir: String, notices: mpsc::UnboundedSender<JobEvent>) -> Self {
        Self { dir, error: Mutex::default(), notices }
    }

    /// A try of the present call has failed, and another follows.
    pub fn failed(&self, error: String) {
        *self.error.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }

    /// Waits for a call. If it takes longer than five seconds, the wait and its end are shown.
    pub async fn over<T>(&self, call: impl Future<Output = T>) -> T {
        self.after(SHOWN_AFTER, call).await
    }

    async fn after<T>(&self, shown_after: Duration, call: impl Future<Output = T>) -> T {
        self.failed(String::new());
        let since_ms = wall_ms();
        let mut call = std::pin::pin!(call);
        tokio::select! {
            result = &mut call => return result,
            () = tokio::time::sleep(shown_after) => {}
        }
        self.show(since_ms, None);
        let result = call.await;
        self.show(since_ms, Some(wall_ms()));
        result
    }

    fn show(&self, since_ms: u64, ended_ms: Option<u64>) {
        let error = self.error.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let file = self.dir.clone();
        let wait = StorageWaitView { since_ms, ended_ms, trainers: 0, file, error };
        let _driver_is_gone = self.notices.send(JobEvent::StorageWait(wait));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn call_that_hangs_is_shown_with_its_end_and_a_short_one_is_not() {
        let (notices, mut shown) = mpsc::unbounded_channel();
        let watch = StorageWatch::new("hdfs://nn/ckpt".to_owned(), notices);
        assert_eq!(watch.over(async { 1 }).await, 1);
        assert!(shown.try_recv().is_err());
        let (answer, answered) = tokio::sync::oneshot::channel();
        let call = async {
            watch.failed("connection refused".to_owned());
            answered.await
        };
        let (result, begun) = tokio::join!(watch.after(Duration::from_millis(1), call), async {
            let begun = shown.recv().await;
            answer.send(2).expect("it waits");
            begun
        });
        assert_eq!(result, Ok(2));
        let of = |event| match event {
            Some(JobEvent::StorageWait(wait)) => wait,
            other => panic!("{other:?}"),
        };
        let (begun, ended) = (of(begun), of(shown.recv().await));
        assert_eq!((begun.ended_ms, begun.error.as_str()), (None, "connection refused"));
        assert_eq!((begun.since_ms, ended.ended_ms.is_some()), (ended.since_ms, true));
    }
}
