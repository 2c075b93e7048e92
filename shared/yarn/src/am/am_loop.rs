//! Heartbeats in a task of their own, and a stream of their events (Java's `AMRMClientAsync`).
//!
//! Rule: one heartbeat at a time. Changes of the caller are applied between two heartbeats and shorten the pause before the
//! next. The pause is short while containers are wanted, and Java's second otherwise. After containers of an earlier attempt
//! were reported, the next heartbeat waits until the consumer asks for more events.
//!
//! The events wait without a limit: each reports a change of a container or a node, and heartbeats must not depend on the
//! consumer. An ApplicationMaster that is not to survive a consumer that hangs drops the [`AmLoop`].

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::Stream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::{AmError, AmEvent, ApplicationMaster, FinalStatus};

/// Commands that are applied before one heartbeat, so that no number of them delays it.
const COMMANDS_AT_ONCE: usize = 1000;

/// Pauses between heartbeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeartbeatInterval {
    /// While no container is wanted. Default 1 s, as in Java (`AMRMClientAsync`). Must be well below the expiry of
    /// attempts (`yarn.am.liveness-monitor.expiry-interval-ms`).
    pub idle: Duration,
    /// While containers are wanted or changes wait. Default 200 ms.
    pub waiting: Duration,
}

impl Default for HeartbeatInterval {
    fn default() -> Self {
        Self { idle: Duration::from_secs(1), waiting: Duration::from_millis(200) }
    }
}

impl HeartbeatInterval {
    fn pause(self, am: &ApplicationMaster) -> Duration {
        if am.has_news() || am.is_waiting() { self.waiting.min(self.idle) } else { self.idle }
    }
}

/// A change of the ApplicationMaster, made between two heartbeats.
type Change = Box<dyn FnOnce(&mut ApplicationMaster) + Send>;

enum LoopCommand {
    Change(Change),
    Progress(f32),
    Stop,
}

/// A running loop, and the stream of its events. It ends with the attempt, and when it is dropped.
///
/// An error that a later heartbeat may overcome ([`AmError::is_retryable`]) is an item, and the loop continues. Any other
/// error is the last item: the attempt has ended, so do not call [`finish`](Self::finish).
///
/// # Cancel safety
/// [`next`](Self::next) is cancel safe.
pub struct AmLoop {
    handle: AmHandle,
    events: mpsc::UnboundedReceiver<Result<AmEvent, AmError>>,
    taken: u64,
    handled: watch::Sender<u64>,
    task: AbortOnDrop,
}

/// Changes the ApplicationMaster of an [`AmLoop`]. Clones have the same loop.
#[derive(Clone)]
pub struct AmHandle {
    commands: mpsc::UnboundedSender<LoopCommand>,
}

/// A task that ends with its owner.
struct AbortOnDrop(JoinHandle<ApplicationMaster>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl AmLoop {
    /// Starts the heartbeats of a registered attempt. Needs a tokio runtime.
    #[must_use]
    pub fn spawn(am: ApplicationMaster, interval: HeartbeatInterval) -> Self {
        let (commands, queue) = mpsc::unbounded_channel();
        let (sink, events) = mpsc::unbounded_channel();
        let (handled, taken) = watch::channel(0);
        let heartbeats = Heartbeats {
            am,
            interval,
            commands: queue,
            events: sink,
            sent: 0,
            handled: taken,
            progress: 0.0,
        };
        let task = AbortOnDrop(tokio::spawn(heartbeats.run()));
        Self { handle: AmHandle { commands }, events, taken: 0, handled, task }
    }

    /// A handle for changes, also from other tasks.
    #[must_use]
    pub fn handle(&self) -> AmHandle {
        self.handle.clone()
    }

    /// The next event; `None` after the end of the loop.
    pub async fn next(&mut self) -> Option<Result<AmEvent, AmError>> {
        std::future::poll_fn(|context| self.poll_event(context)).await
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<AmEvent, AmError>>> {
        let polled = self.events.poll_recv(context);
        match &polled {
            Poll::Ready(_) => self.taken += 1,
            Poll::Pending => {
                let taken = self.taken;
                self.handled.send_if_modified(|now| std::mem::replace(now, taken) != taken);
            }
        }
        polled
    }

    /// Ends the heartbeats, then the application ([`ApplicationMaster::finish`]).
    ///
    /// # Errors
    /// See [`ApplicationMaster::finish`]; the error of the attempt's end if that came first.
    ///
    /// # Panics
    /// If a change panicked that was passed to [`AmHandle::with`].
    pub async fn finish(
        mut self,
        status: FinalStatus,
        diagnostics: &str,
        tracking_url: &str,
    ) -> Result<(), AmError> {
        let _has_ended = self.handle.commands.send(LoopCommand::Stop);
        let mut am = match (&mut self.task.0).await {
            Ok(am) => am,
            Err(failed) => match failed.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // Only the drop of this value aborts the task, or the end of the runtime, which polls nothing after it.
                Err(_) => return Err(AmError::Shutdown),
            },
        };
        while let Ok(event) = self.events.try_recv() {
            if let Err(error) = event
                && !error.is_retryable()
            {
                return Err(error);
            }
        }
        am.finish(status, diagnostics, tracking_url).await
    }
}

impl Stream for AmLoop {
    type Item = Result<AmEvent, AmError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_event(context)
    }
}

impl AmHandle {
    /// Changes the ApplicationMaster between two heartbeats, such as `|am| am.want(id, ask, 1)`, and returns at once. Does
    /// nothing after the end of the loop.
    pub fn change(&self, change: impl FnOnce(&mut ApplicationMaster) + Send + 'static) {
        let _has_ended = self.commands.send(LoopCommand::Change(Box::new(change)));
    }

    /// [Changes](Self::change) the session, and returns what the function returns, after the heartbeat that is in flight: up to
    /// [`CallTimeouts::call`](crate::CallTimeouts::call) while no ResourceManager responds. `None` after the end of the loop.
    ///
    /// # Cancel safety
    /// The change takes place if the returned future is dropped.
    pub async fn with<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut ApplicationMaster) -> T + Send + 'static,
    ) -> Option<T> {
        let (sender, result) = oneshot::channel();
        self.change(move |am| {
            // The caller may have lost interest.
            let _dropped = sender.send(change(am));
        });
        result.await.ok()
    }

    /// Sets the progress that heartbeats report, 0 … 1.
    pub fn set_progress(&self, progress: f32) {
        let _has_ended = self.commands.send(LoopCommand::Progress(progress));
    }
}

/// The task of a loop.
struct Heartbeats {
    am: ApplicationMaster,
    interval: HeartbeatInterval,
    commands: mpsc::UnboundedReceiver<LoopCommand>,
    events: mpsc::UnboundedSender<Result<AmEvent, AmError>>,
    /// Number of events that were sent.
    sent: u64,
    /// Number of events that the consumer had taken when it last waited for more.
    handled: watch::Receiver<u64>,
    progress: f32,
}

impl Heartbeats {
    async fn run(mut self) -> ApplicationMaster {
        loop {
            for _ in 0..COMMANDS_AT_ONCE {
                let Ok(command) = self.commands.try_recv() else { break };
                if self.apply(command) {
                    return self.am;
                }
            }
            let mut has_recovered = false;
            match self.am.allocate(self.progress).await {
                Ok(all) => {
                    for event in all {
                        has_recovered |= matches!(event, AmEvent::Recovered(_));
                        self.send(Ok(event));
                    }
                }
                Err(error) => {
                    let ends = !error.is_retryable();
                    self.send(Err(error));
                    if ends {
                        return self.am;
                    }
                }
            }
            if self.pause(has_recovered).await {
                return self.am;
            }
        }
    }

    /// Applies commands until the next heartbeat; whether the loop is to stop.
    ///
    /// A recovered container that the consumer adopts needs no replacement. So the next heartbeat, which would request
    /// one, waits until the consumer has handled the events, up to the longer interval.
    async fn pause(&mut self, has_recovered: bool) -> bool {
        let heartbeat = Instant::now();
        loop {
            let is_handled = *self.handled.borrow_and_update() >= self.sent;
            let next = match has_recovered && !is_handled {
                true => heartbeat + self.interval.idle,
                false => heartbeat + self.interval.pause(&self.am),
            };
            tokio::select! {
                // Any number of commands must not delay the heartbeat.
                biased;
                () = sleep_until(next) => return false,
                command = self.commands.recv() => match command {
                    Some(command) => if self.apply(command) { return true },
                    None => return true,
                },
                changed = self.handled.changed() => if changed.is_err() { return true },
            }
        }
    }

    /// Whether the command stops the loop.
    fn apply(&mut self, command: LoopCommand) -> bool {
        match command {
            LoopCommand::Change(change) => change(&mut self.am),
            LoopCommand::Progress(progress) => self.progress = progress,
            LoopCommand::Stop => return true,
        }
        false
    }

    fn send(&mut self, event: Result<AmEvent, AmError>) {
        self.sent += 1;
        // The receiver ends with this task.
        let _dropped = self.events.send(event);
    }
}

#[cfg(test)]
mod tests {
    use heddle_hadoop::configuration::{Configuration, Environment};
    use heddle_hadoop::rpc::RpcOptions;
    use heddle_hadoop::{Token, User};

    use super::*;
    use crate::am::Ask;
    use crate::cluster::Cluster;
    use crate::container::AskId;
    use crate::resource::{Memory, Resources, VCores};
    use crate::timeouts::CallTimeouts;

    /// An attempt whose ResourceManager does not listen.
    fn am() -> ApplicationMaster {
        let mut configuration = Configuration::with_defaults(Environment::empty());
        // Port 1 (tcpmux) refuses connections.
        configuration.set("yarn.resourcemanager.scheduler.address", "127.0.0.1:1", "test");
        let limits = CallTimeouts { call: Duration::from_millis(50), ..CallTimeouts::default() };
        let options = RpcOptions::default();
        let cluster = Cluster::with(&configuration, User::new("alice"), options, limits).unwrap();
        ApplicationMaster::new(&cluster, Token::new("", "", "YARN_AM_RM_TOKEN", ""))
    }

    fn ask() -> Ask {
        Ask { resources: Resources::new(Memory::mib(64), VCores(1)), ..Ask::default() }
    }

    #[test]
    fn heartbeats_are_frequent_while_containers_are_wanted() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _inside = runtime.enter();
        let interval = HeartbeatInterval::default();
        let mut am = am();
        assert_eq!(interval.pause(&am), interval.idle);
        am.want(AskId(1), ask(), 1);
        assert_eq!(interval.pause(&am), interval.waiting);
        am.want(AskId(1), ask(), 0);
        assert!(!am.is_waiting());
    }

    #[tokio::test]
    async fn loop_outlives_an_unreachable_resourcemanager() {
        let interval =
            HeartbeatInterval { idle: Duration::from_millis(5), waiting: Duration::from_millis(1) };
        let mut events = AmLoop::spawn(am(), interval);
        let handle = events.handle();
        for _ in 0..2 {
            let error = events.next().await.expect("it continues").expect_err("nothing listens");
            assert!(error.is_retryable(), "{error:?}");
        }
        handle.change(|am| am.want(AskId(1), ask(), 3));
        handle.set_progress(0.5);
        assert_eq!(handle.with(|am| am.counts(AskId(1))).await, Some(Some((3, 0))));
        drop(events);
        assert_eq!(handle.with(|am| am.counts(AskId(1))).await, None, "the loop has ended");
    }
}
