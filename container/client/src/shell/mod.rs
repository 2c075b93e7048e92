//! The machine's sockets: one thread with one connection to each data thread of the pservers.
//!
//! The thread runs a single-threaded runtime. It waits for requests of the training program, for sockets and for the
//! machine's next deadline, passes each to the machine and performs the results. It decides nothing. Training loops are
//! synchronous code: they send [`DataRequest`]s to a [`Handle`] and receive [`ClientEvent`]s from a channel.
//!
//! Queues. Requests: a training loop has at most a pull and a step in flight for each lane, or
//! [`crate::machine::UNREACHED_STEPS_MAX`] steps for each task. The channel therefore has no limit of its own, and sending
//! never blocks: a loop can always take the commands of a new epoch. Events: one or two for each request, a few for each
//! outage. Sockets: see the buffers of `connection.rs`.

#![expect(
    clippy::disallowed_types,
    reason = "this is the shell: sockets, time and the thread are here"
)]

mod connection;
mod incoming;
mod outgoing;
mod path_watch;
mod settings;
mod state;

use std::rc::Rc;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam::channel::Receiver;
use heddle_protocol::ids::Slot;
use tokio::sync::mpsc;

use crate::machine::{ClientEvent, DataRequest};
pub use settings::Settings;
use state::ClientState;

/// A running client: a thread with its connections. Dropping it closes them and ends the thread.
#[derive(Debug)]
pub struct Client {
    handle: Handle,
    events: Receiver<ClientEvent>,
    thread: Option<JoinHandle<()>>,
}

/// Sends requests to a client from any thread. Sending never blocks and keeps the order; [`ClientEvent`]s report the results.
/// After the client was dropped it does nothing.
#[derive(Clone, Debug)]
pub struct Handle {
    requests: mpsc::UnboundedSender<ClientInput>,
}

#[derive(Debug)]
enum ClientInput {
    Request(DataRequest),
    Cut { pserver: Slot, ms: u64 },
    Stop,
}

impl Client {
    /// Starts the thread. It opens no connection before [`DataRequest::Work`].
    ///
    /// # Errors
    /// When the thread or its runtime cannot be created.
    pub fn start(settings: Settings) -> std::io::Result<Self> {
        let (requests, inputs) = mpsc::unbounded_channel();
        let (sender, events) = crossbeam::channel::unbounded();
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let body = move || {
            let state = Rc::new(ClientState::new(settings, sender));
            tokio::task::LocalSet::new().block_on(&runtime, run(state, inputs));
        };
        let thread = std::thread::Builder::new().name("client".into()).spawn(body)?;
        Ok(Self { handle: Handle { requests }, events, thread: Some(thread) })
    }

    /// Sends requests to this client.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Events, in order. Disconnects only when the client is gone.
    #[must_use]
    pub fn events(&self) -> &Receiver<ClientEvent> {
        &self.events
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.handle.requests.send(ClientInput::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed already.
            let _ = thread.join();
        }
    }
}

impl Handle {
    /// Sends a request.
    pub fn send(&self, request: DataRequest) {
        // The receiver is gone only after the client was dropped.
        let _ = self.requests.send(ClientInput::Request(request));
    }

    /// Neither reads nor writes on connections to a pserver for `ms`, and opens none: a fault that an operator orders
    /// (`heddle chaos`). A later order replaces it.
    pub fn cut(&self, pserver: Slot, ms: u64) {
        // As in `send`.
        let _ = self.requests.send(ClientInput::Cut { pserver, ms });
    }
}

/// Runs the thread until the client is dropped.
async fn run(state: Rc<ClientState>, mut inputs: mpsc::UnboundedReceiver<ClientInput>) {
    loop {
        let deadline = state.sleep_until();
        let sleep = async {
            match deadline {
                Some(at) => {
                    tokio::time::sleep(Duration::from_millis(at.saturating_sub(state.now_ms())))
                        .await
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            input = inputs.recv() => {
                let Some(mut input) = input else { return };
                // All that is there, before the first frame is written: the frames leave in one system call.
                loop {
                    match input {
                        ClientInput::Request(request) => {
                            state.machine.borrow_mut().on(request, state.now_ms());
                        }
                        ClientInput::Cut { pserver, ms } => state.cut(pserver, ms),
                        ClientInput::Stop => return,
                    }
                    match inputs.try_recv() {
                        Ok(next) => input = next,
                        Err(_) => break,
                    }
                }
            }
            () = sleep => state.machine.borrow_mut().timer(state.now_ms()),
            () = state.earlier_deadline.notified() => {}
        }
        while let Some(new) = state.next_connection() {
            tokio::task::spawn_local(connection::run(Rc::clone(&state), new));
        }
        state.deliver();
    }
}
