//! A path between two processes of a job on which bytes are recorded and changed.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// A direction on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the side that connected.
    ToServer,
    /// To it.
    ToClient,
}

/// One byte to change.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// Of the connections in the order of their arrival, from 0.
    pub connection: usize,
    /// Which of its directions.
    pub direction: Direction,
    /// The byte's position, from 0.
    pub at: usize,
}

/// What a connection has carried.
#[derive(Clone, Debug, Default)]
pub struct Carried {
    /// All bytes to the server.
    pub to_server: Vec<u8>,
    /// All bytes to the client.
    pub to_client: Vec<u8>,
    /// Whether a side has closed it.
    pub ended: bool,
}

/// A listener that forwards connections. Its threads end with the connections, the last with the process.
pub struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    target: Mutex<Option<SocketAddr>>,
    known: Condvar,
    changes: Vec<Change>,
    carried: Mutex<Vec<Carried>>,
}

impl Shared {
    fn carried(&self) -> MutexGuard<'_, Vec<Carried>> {
        self.carried.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server, once it is known.
    fn target(&self) -> io::Result<SocketAddr> {
        let target = self.target.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .known
            .wait_timeout_while(target, Duration::from_secs(60), |target| target.is_none());
        let (target, _) = waited.unwrap_or_else(PoisonError::into_inner);
        target.ok_or_else(|| io::ErrorKind::TimedOut.into())
    }
}

impl Relay {
    /// A relay that makes these changes. Connections wait for [`Self::forward_to`].
    ///
    /// # Errors
    /// There is no port.
    pub fn start(changes: &[Change]) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            target: Mutex::default(),
            known: Condvar::new(),
            changes: changes.to_vec(),
            carried: Mutex::default(),
        });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for (number, client) in listener.incoming().map_while(Result::ok).enumerate() {
                accepting.carried().push(Carried::default());
                let shared = Arc::clone(&accepting);
                thread::spawn(move || {
                    // A server that is not there is a connection that closes.
                    let _over = forward(client, number, &shared);
                });
            }
        });
        Ok(Self { address, shared })
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Names the server.
    pub fn forward_to(&self, server: SocketAddr) {
        *self.shared.target.lock().unwrap_or_else(PoisonError::into_inner) = Some(server);
        self.shared.known.notify_all();
    }

    /// What each connection has carried so far.
    pub fn carried(&self) -> Vec<Carried> {
        self.shared.carried().clone()
    }
}

fn forward(client: TcpStream, number: usize, shared: &Arc<Shared>) -> io::Result<()> {
    let server = TcpStream::connect(shared.target()?)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from, to) = (client.try_clone()?, server.try_clone()?);
    let other = Arc::clone(shared);
    thread::spawn(move || {
        let _over = pass(from, to, number, Direction::ToServer, &other);
    });
    pass(server, client, number, Direction::ToClient, shared)
}

fn pass(
    mut from: TcpStream,
    mut to: TcpStream,
    number: usize,
    direction: Direction,
    shared: &Shared,
) -> io::Result<()> {
    let mut bytes = vec![0; 1 << 16];
    let mut passed = 0;
    while let Ok(length @ 1..) = from.read(&mut bytes) {
        for change in &shared.changes {
            let here = change.connection == number
                && change.direction == direction
                && (passed..passed + length).contains(&change.at);
            if here {
                bytes[change.at - passed] ^= 0x10;
            }
        }
        passed += length;
        if let Some(carried) = shared.carried().get_mut(number) {
            match direction {
                Direction::ToServer => carried.to_server.extend_from_slice(&bytes[..length]),
                Direction::ToClient => carried.to_client.extend_from_slice(&bytes[..length]),
            }
        }
        if to.write_all(&bytes[..length]).is_err() {
            break;
        }
    }
    if let Some(carried) = shared.carried().get_mut(number) {
        carried.ended = true;
    }
    let _closed = (to.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both));
    Ok(())
}
