//! A blocking connection, plain or encrypted, for measurements.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;

use heddle_channel::{ANSWER_BYTES, Dialing, RecordCipher, Records};
use heddle_protocol::handshake::{Channel, Hello, Secret};

/// A socket, with records where the connection is encrypted.
pub(crate) struct BlockingStream {
    socket: TcpStream,
    records: Option<Box<Records>>,
}

impl fmt::Debug for BlockingStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockingStream").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl BlockingStream {
    /// Bytes as they are.
    pub(crate) fn plain(socket: TcpStream) -> Self {
        Self { socket, records: None }
    }

    /// Bytes in records. The verdict of the server comes next.
    pub(crate) fn encrypted(
        mut socket: TcpStream,
        secret: &Secret,
        hello: &Hello,
    ) -> io::Result<Self> {
        let cipher = RecordCipher::of_this_machine();
        let (dialing, opening) =
            Dialing::begin(secret, Channel::Data, hello, cipher).map_err(io::Error::other)?;
        socket.write_all(&opening)?;
        let mut answer = [0; ANSWER_BYTES];
        socket.read_exact(&mut answer)?;
        let records = dialing.finish(&answer).map_err(io::Error::other)?;
        let mut stream = Self { socket, records: Some(Box::new(records)) };
        stream.write_all(&[0])?;
        Ok(stream)
    }
}

impl Read for BlockingStream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let Some(records) = &mut self.records else {
            return self.socket.read(out);
        };
        loop {
            let opened = records.open(out)?;
            if opened > 0 || out.is_empty() {
                return Ok(opened);
            }
            match self.socket.read(records.space())? {
                0 => return Ok(0),
                received => records.filled(received),
            }
        }
    }

    fn read_vectored(&mut self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        if self.records.is_none() {
            return self.socket.read_vectored(slices);
        }
        let first = slices.iter_mut().find(|slice| !slice.is_empty());
        first.map_or(Ok(0), |slice| self.read(slice))
    }
}

impl Write for BlockingStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some(records) = &mut self.records else {
            return self.socket.write_vectored(slices);
        };
        let taken = records.seal(slices)?;
        self.socket.write_all(records.pending())?;
        records.sent(records.pending().len());
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}
