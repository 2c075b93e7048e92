//! Just enough HTTP to ask Hadoop's web ports: one request, one reply, connection closed.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// Longest wait for a connection, and for each piece of the answer.
const TIMEOUT: Duration = Duration::from_secs(30);

/// An answer.
pub(crate) struct Reply {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

impl Reply {
    /// The value of a header; `name` in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(':'));
        let line = lines.find(|(its, _)| its.trim().eq_ignore_ascii_case(name));
        line.map(|(_, value)| value.trim())
    }
}

/// Sends `method path` and returns all of the answer.
pub(crate) fn exchange(address: SocketAddr, method: &str, path: &str) -> Result<Reply> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    // HTTP/1.0: the server closes at the end of the body and does not chunk it.
    write!(
        stream,
        "{method} {path} HTTP/1.0\r\nHost: {address}\r\nAccept: application/json\r\nContent-Length: 0\r\n\r\n"
    )?;
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply)?;
    let reply = String::from_utf8_lossy(&reply);
    let (head, body) = reply.split_once("\r\n\r\n").context("no HTTP head in the reply")?;
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|s| s.parse().ok())
        .context("no HTTP status in the reply")?;
    Ok(Reply { status, head: head.to_owned(), body: body.to_owned() })
}

/// Sends `method path` and returns the body; any status but 200 is an error.
pub(crate) fn request_ok(address: SocketAddr, method: &str, path: &str) -> Result<String> {
    match exchange(address, method, path)? {
        Reply { status: 200, body, .. } => Ok(body),
        Reply { status, body, .. } => {
            bail!("{method} http://{address}{path}: {status} {}", body.lines().next().unwrap_or(""))
        }
    }
}
