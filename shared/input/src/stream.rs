//! A stream of this process, such as standard input, as a file that is read once.

use std::fmt::Debug;
use std::io::{ErrorKind, Read};

use async_trait::async_trait;
use bytes::Bytes;
use heddle_storage::{Op, Reader, Reason, StorageError};

/// Bytes of a read at the most.
const CHUNK: usize = 256 << 10;

/// Reads what a stream has at the time. A read blocks its thread.
#[derive(Debug)]
pub(crate) struct StreamReader<R> {
    name: String,
    input: R,
}

impl<R> StreamReader<R> {
    pub(crate) fn new(name: &str, input: R) -> Self {
        Self { name: name.to_owned(), input }
    }
}

#[async_trait]
impl<R: Read + Debug + Send> Reader for StreamReader<R> {
    async fn next(&mut self) -> Result<Option<Bytes>, StorageError> {
        let mut chunk = vec![0; CHUNK];
        let read = loop {
            match self.input.read(&mut chunk) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        let len =
            read.map_err(|error| StorageError::new(Op::Read, &self.name, Reason::of_io(&error)))?;
        chunk.truncate(len);
        Ok((len > 0).then(|| chunk.into()))
    }
}
