//! Injects a fault at a chosen call of any storage, or suspends at every call so that two users of one storage
//! can be interleaved in every way.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::{Op, Reason, StorageError, WriteError};
use crate::path::StorePath;
use crate::store::{Entry, FileAccess, Mode, Reader, Storage, Writer};

/// The fault at one call that changes the storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InjectedFault {
    /// It is not done, and the caller receives the error.
    NotDone,
    /// It is done, and the response is lost.
    DoneUnknown,
    /// It is not done, and the outcome is unknown to the caller.
    NotDoneUnknown,
    /// The caller dies before it.
    CrashBefore,
    /// It is done; the caller dies before it receives the response.
    CrashAfter,
    /// The caller dies in the middle: a directory that it deletes has lost one file. Local file
    /// systems do that, HDFS does not. Calls without a middle are not done.
    CrashHalfway,
}

impl InjectedFault {
    /// The faults that can occur with any storage.
    pub const ALL: [Self; 5] = [
        Self::NotDone,
        Self::DoneUnknown,
        Self::NotDoneUnknown,
        Self::CrashBefore,
        Self::CrashAfter,
    ];

    /// Whether the caller dies.
    pub fn is_crash(self) -> bool {
        matches!(self, Self::CrashBefore | Self::CrashAfter | Self::CrashHalfway)
    }
}

/// The faults by call; shared by a storage and its writers.
#[derive(Debug, Default)]
pub struct Faults {
    at: BTreeMap<usize, InjectedFault>,
    calls: AtomicUsize,
    dead: AtomicBool,
    log: Mutex<Vec<String>>,
    yields: bool,
}

impl Faults {
    /// No fault: counts the calls.
    pub fn none() -> Arc<Self> {
        Arc::default()
    }

    /// These faults at these calls (counted from 0 over all calls that change something).
    pub fn at(faults: impl IntoIterator<Item = (usize, InjectedFault)>) -> Arc<Self> {
        Arc::new(Self { at: faults.into_iter().collect(), ..Self::default() })
    }

    /// No fault; every call, also a reading one, first yields to [`run_interleaved`].
    pub fn yielding() -> Arc<Self> {
        Arc::new(Self { yields: true, ..Self::default() })
    }

    /// Number of calls so far that change something.
    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    /// Whether the caller has died.
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    /// The calls so far, in words.
    pub fn log(&self) -> Vec<String> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn pause(&self) {
        if self.yields {
            Yield(false).await;
        }
    }

    fn read(&self, op: Op, place: String) -> Result<(), StorageError> {
        if self.is_dead() {
            return Err(StorageError::new(op, place, Reason::Other).because("the caller is dead"));
        }
        Ok(())
    }

    /// Performs `effect` or not, according to this call's fault.
    async fn write<T>(
        &self,
        op: Op,
        place: String,
        effect: impl Future<Output = Result<T, WriteError>>,
    ) -> Result<T, WriteError> {
        self.pause().await;
        self.read(op, place.clone()).map_err(WriteError::NotDone)?;
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let fault = self.at.get(&call).copied();
        let line = format!(
            "{call}: {op} {place}{}",
            fault.map_or(String::new(), |fault| format!(" ({fault:?})"))
        );
        self.log.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        let lost =
            || StorageError::new(op, place.clone(), Reason::Unavailable).because("made to fail");
        match fault {
            None => effect.await,
            Some(InjectedFault::NotDone) => Err(WriteError::NotDone(lost())),
            Some(InjectedFault::NotDoneUnknown) => Err(WriteError::Unknown(lost())),
            Some(InjectedFault::DoneUnknown) => {
                // An error of the storage itself is lost with its response too.
                let _lost = effect.await;
                Err(WriteError::Unknown(lost()))
            }
            Some(InjectedFault::CrashBefore | InjectedFault::CrashHalfway) => {
                self.dead.store(true, Ordering::Relaxed);
                Err(WriteError::Unknown(lost()))
            }
            Some(InjectedFault::CrashAfter) => {
                let _unheard = effect.await;
                self.dead.store(true, Ordering::Relaxed);
                Err(WriteError::Unknown(lost()))
            }
        }
    }
}

/// Ready when it is polled a second time.
struct Yield(bool);

impl Future for Yield {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) {
            Poll::Ready(())
        } else {
            // Concurrent calls are polled again only once they are woken.
            context.waker().wake_by_ref();
            Poll::Pending
        }
    }
}

/// Runs two futures that use [yielding](Faults::yielding) storages, one call at a time. Before each
/// step `choose` returns whether the second is next (it is not called once one has ended).
///
/// # Panics
/// If a future waits for anything but its storage.
pub fn run_interleaved<A, B>(
    first: impl Future<Output = A>,
    second: impl Future<Output = B>,
    mut choose: impl FnMut() -> bool,
) -> (A, B) {
    const STEPS_MAX: usize = 100_000;
    let (mut first, mut second) = (pin!(first), pin!(second));
    let (mut a, mut b) = (None, None);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..STEPS_MAX {
        let second_goes = match (&a, &b) {
            (Some(_), Some(_)) => break,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (None, None) => choose(),
        };
        if second_goes {
            if let Poll::Ready(value) = second.as_mut().poll(&mut context) {
                b = Some(value);
            }
        } else if let Poll::Ready(value) = first.as_mut().poll(&mut context) {
            a = Some(value);
        }
    }
    match (a, b) {
        (Some(a), Some(b)) => (a, b),
        _ => panic!("not ended after {STEPS_MAX} steps"),
    }
}

/// A storage whose calls fail according to its [`Faults`].
#[derive(Debug)]
pub struct Faulty {
    inner: Arc<dyn Storage>,
    faults: Arc<Faults>,
}

impl Faulty {
    /// One user's access to `inner`.
    pub fn over(inner: Arc<dyn Storage>, faults: Arc<Faults>) -> Arc<dyn Storage> {
        Arc::new(Self { inner, faults })
    }
}

#[async_trait]
impl Storage for Faulty {
    fn show(&self, path: &StorePath) -> String {
        self.inner.show(path)
    }

    async fn create(&self, path: &StorePath, mode: Mode) -> Result<Box<dyn Writer>, WriteError> {
        let place = self.show(path);
        let effect = self.inner.create(path, mode);
        let inner = self.faults.write(Op::Create, place.clone(), effect).await?;
        Ok(Box::new(FaultyWriter { inner, faults: Arc::clone(&self.faults), place }))
    }

    async fn open(&self, path: &StorePath, offset: u64) -> Result<Box<dyn Reader>, StorageError> {
        self.faults.pause().await;
        self.faults.read(Op::Open, self.show(path))?;
        self.inner.open(path, offset).await
    }

    async fn read_range(
        &self,
        path: &StorePath,
        offset: u64,
        len: usize,
    ) -> Result<Bytes, StorageError> {
        self.faults.pause().await;
        self.faults.read(Op::Read, self.show(path))?;
        self.inner.read_range(path, offset, len).await
    }

    async fn stat(&self, path: &StorePath) -> Result<Entry, StorageError> {
        self.faults.pause().await;
        self.faults.read(Op::Stat, self.show(path))?;
        self.inner.stat(path).await
    }

    async fn access(&self, path: &StorePath) -> Result<Option<FileAccess>, StorageError> {
        self.faults.read(Op::Stat, self.show(path))?;
        self.inner.access(path).await
    }

    async fn list(&self, path: &StorePath) -> Result<Vec<Entry>, StorageError> {
        self.faults.pause().await;
        self.faults.read(Op::List, self.show(path))?;
        self.inner.list(path).await
    }

    async fn mkdir(&self, path: &StorePath, mode: Mode) -> Result<(), WriteError> {
        self.faults.write(Op::Mkdir, self.show(path), self.inner.mkdir(path, mode)).await
    }

    async fn rename(&self, from: &StorePath, to: &StorePath) -> Result<(), WriteError> {
        let place = format!("{} to {}", self.show(from), self.show(to));
        self.faults.write(Op::Rename, place, self.inner.rename(from, to)).await
    }

    fn default_mode(&self) -> Mode {
        self.inner.default_mode()
    }

    async fn replace(&self, from: &StorePath, to: &StorePath) -> Result<(), WriteError> {
        let place = format!("{} over {}", self.show(from), self.show(to));
        self.faults.write(Op::Rename, place, self.inner.replace(from, to)).await
    }

    async fn delete_file(&self, path: &StorePath) -> Result<(), WriteError> {
        self.faults.write(Op::Delete, self.show(path), self.inner.delete_file(path)).await
    }

    async fn delete_dir(&self, path: &StorePath) -> Result<(), WriteError> {
        if self.faults.at.get(&self.faults.calls()) == Some(&InjectedFault::CrashHalfway)
            && !self.faults.is_dead()
        {
            let children = self.inner.list(path).await.unwrap_or_default();
            if let Some(first) = children.first() {
                let _one = self.inner.delete_file(&first.path).await;
            }
        }
        self.faults.write(Op::Delete, self.show(path), self.inner.delete_dir(path)).await
    }
}

#[derive(Debug)]
struct FaultyWriter {
    inner: Box<dyn Writer>,
    faults: Arc<Faults>,
    place: String,
}

#[async_trait]
impl Writer for FaultyWriter {
    async fn write(&mut self, data: Bytes) -> Result<(), WriteError> {
        self.faults.write(Op::Write, self.place.clone(), self.inner.write(data)).await
    }

    async fn sync(&mut self) -> Result<(), WriteError> {
        self.faults.write(Op::Sync, self.place.clone(), self.inner.sync()).await
    }

    async fn close(self: Box<Self>) -> Result<(), WriteError> {
        let Self { inner, faults, place } = *self;
        faults.write(Op::Close, place, inner.close()).await
    }
}
