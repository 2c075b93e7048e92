//! Peers that do not know the job's secret and hold connections to its ports.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};

/// What a stranger sends on its connection.
#[derive(Clone, Debug)]
pub enum Kind {
    /// Nothing at all.
    Silent,
    /// The beginning of a request's head, of this number of bytes, without an end.
    HalfHead(usize),
    /// A whole request for the metrics; the connection is kept alive.
    Reader,
    /// Many such requests at once, whose answers are never read.
    Deaf,
}

const METRICS: &[u8] = b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n";

impl Kind {
    fn text(&self) -> Vec<u8> {
        match self {
            Self::Silent => Vec::new(),
            Self::HalfHead(bytes) => {
                let mut text = b"GET /metrics HTTP/1.1\r\nhost: x\r\nx-filler: ".to_vec();
                text.resize((*bytes).max(text.len()), b'x');
                text
            }
            Self::Reader => METRICS.to_vec(),
            Self::Deaf => METRICS.repeat(300),
        }
    }
}

/// Connections that are held, and opened again when they are closed, until this is dropped.
#[derive(Debug)]
pub struct Strangers {
    stop: Arc<AtomicBool>,
    opened: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

/// Closed connections that are opened again in a round of 100 ms: a nuisance, not a flood, which would measure the
/// processors that the test itself takes.
const AGAIN_MAX: usize = 2;

impl Strangers {
    /// Opens `count` connections to `address`, and keeps at it.
    ///
    /// # Errors
    /// When not a single one can be opened, or the system gives no thread.
    pub fn hold(address: SocketAddr, count: usize, kind: Kind) -> Result<Self> {
        let mut held = Vec::with_capacity(count);
        let mut last = None;
        for _ in 0..count {
            match open(address, &kind) {
                Ok(stream) => held.push(stream),
                Err(error) => last = Some(error),
            }
        }
        if let (true, Some(error)) = (held.is_empty(), last) {
            return Err(error).context("no connection could be opened");
        }
        let stop = Arc::new(AtomicBool::new(false));
        let opened = Arc::new(AtomicU64::new(held.len() as u64));
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&opened));
        let thread = std::thread::Builder::new().name("strangers".into()).spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                if !matches!(kind, Kind::Deaf) {
                    held.retain_mut(is_open);
                }
                for _ in 0..(count - held.len()).min(AGAIN_MAX) {
                    if let Ok(stream) = open(address, &kind) {
                        counted.fetch_add(1, Ordering::Relaxed);
                        held.push(stream);
                    }
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        })?;
        Ok(Self { stop, opened, thread: Some(thread) })
    }

    /// Connections opened so far.
    #[must_use]
    pub fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }
}

impl Drop for Strangers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

fn open(address: SocketAddr, kind: &Kind) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
    stream.set_nonblocking(true)?;
    // What the other side does not take is not sent.
    match stream.write(&kind.text()) {
        Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
        _ => Ok(stream),
    }
}

/// Whether the other side keeps the connection; its bytes are discarded.
fn is_open(stream: &mut TcpStream) -> bool {
    let mut bytes = [0; 16 * 1024];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        }
    }
}
