//! The exchanges of a trainer with a pserver over raw TCP, to compare with.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use crate::requests::{Request, Requests};

/// The same exchanges without frames, memory or safety: whole messages over blocking sockets, added into
/// a table or copied from one.
#[derive(Debug)]
pub struct RawPeer {
    stream: TcpStream,
    bytes: usize,
    is_push: bool,
}

/// Bytes of a request without values, and of the answer to a request with values.
const SMALL: usize = 64;

impl RawPeer {
    /// Starts the other end on a thread. Messages have `bytes`.
    ///
    /// # Errors
    /// No port is free.
    pub fn start(bytes: usize, is_push: bool) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let endpoint = listener.local_addr()?;
        std::thread::spawn(move || {
            let serve = || {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                if is_push { raw_push(stream, bytes) } else { raw_pull(stream, bytes) }
            };
            // Ends with an error when the peer is dropped.
            let _ended: io::Result<()> = serve();
        });
        let stream = TcpStream::connect(endpoint)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, bytes, is_push })
    }

    /// One exchange of `bytes`: sends `values` and reads an answer, or fills them.
    ///
    /// # Errors
    /// The connection breaks.
    ///
    /// # Panics
    /// If `values` have another length.
    pub fn exchange(&mut self, values: &mut [f32]) -> io::Result<()> {
        assert_eq!(4 * values.len(), self.bytes);
        let request = Request { is_push: self.is_push, positions: &[] };
        self.request(request, values)?;
        self.reply(request, values)
    }
}

impl Requests for RawPeer {
    fn request(&mut self, request: Request<'_>, values: &[f32]) -> io::Result<()> {
        self.stream.write_all(if request.is_push {
            bytemuck::cast_slice(values)
        } else {
            &[0; SMALL]
        })
    }

    fn reply(&mut self, request: Request<'_>, values: &mut [f32]) -> io::Result<()> {
        let mut small = [0; SMALL];
        let answer =
            if request.is_push { &mut small[..] } else { bytemuck::cast_slice_mut(values) };
        self.stream.read_exact(answer)
    }
}

fn raw_push(mut stream: TcpStream, bytes: usize) -> io::Result<()> {
    let mut message = vec![0.0f32; bytes / 4];
    let mut table = vec![0.0f32; bytes / 4];
    loop {
        stream.read_exact(bytemuck::cast_slice_mut(&mut message))?;
        for (w, g) in table.iter_mut().zip(&message) {
            *w += g;
        }
        stream.write_all(&[0; SMALL])?;
    }
}

fn raw_pull(mut stream: TcpStream, bytes: usize) -> io::Result<()> {
    let table = vec![0.0f32; bytes / 4];
    let mut message = vec![0.0f32; bytes / 4];
    let mut small = [0; SMALL];
    loop {
        stream.read_exact(&mut small)?;
        message.copy_from_slice(&table);
        stream.write_all(bytemuck::cast_slice(&message))?;
    }
}
