//! A path to a server on which replies get lost: the server has done what it was asked, and the caller does not know.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

/// Forwards connections to a server. Its threads end with the connections, the last with the process.
pub struct Lossy {
    address: SocketAddr,
    lose: Arc<AtomicU32>,
}

impl Lossy {
    /// In front of `server`, on a port of its own.
    ///
    /// # Errors
    /// There is no port.
    pub fn before(server: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let lose = Arc::new(AtomicU32::new(0));
        let losing = Arc::clone(&lose);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                // A server that is not there is a connection that closes.
                if let Ok(server) = TcpStream::connect(server) {
                    let _over = forward(client, server, &losing);
                }
            }
        });
        Ok(Self { address, lose })
    }

    /// Where callers connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next `count` replies are swallowed, and their connections closed. A reply is what comes after a request on
    /// one connection; the handshake counts too.
    pub fn lose(&self, count: u32) {
        self.lose.store(count, Ordering::SeqCst);
    }

    /// How many are still to be lost.
    pub fn left(&self) -> u32 {
        self.lose.load(Ordering::SeqCst)
    }
}

fn forward(client: TcpStream, server: TcpStream, lose: &Arc<AtomicU32>) -> io::Result<()> {
    let (mut from_client, mut to_server) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || {
        let _over = io::copy(&mut from_client, &mut to_server);
        let _closed = to_server.shutdown(Shutdown::Write);
    });
    let (mut from_server, mut to_client, lose) = (server, client, Arc::clone(lose));
    thread::spawn(move || {
        let mut bytes = vec![0; 1 << 16];
        while let Ok(length @ 1..) = from_server.read(&mut bytes) {
            let lost =
                lose.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
            if lost.is_ok() || to_client.write_all(&bytes[..length]).is_err() {
                break;
            }
        }
        let _closed = (to_client.shutdown(Shutdown::Both), from_server.shutdown(Shutdown::Both));
    });
    Ok(())
}
