//! Just enough HTTP to ask Hadoop's web ports: one request, one reply, connection closed.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// Longest wait for a connection, and for each piece of the answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Sends `method path` and returns the status and the body.
pub(crate) fn request(address: SocketAddr, method: &str, path: &str) -> Result<(u16, String)> {
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
    let (head, body) = reply
        .split_once("\r\n\r\n")
        .context("no HTTP head in the reply")?;
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|s| s.parse().ok())
        .context("no HTTP status in the reply")?;
    Ok((status, body.to_owned()))
}

/// As [`request`], any status but 200 is an error.
pub(crate) fn request_ok(address: SocketAddr, method: &str, path: &str) -> Result<String> {
    match request(address, method, path)? {
        (200, body) => Ok(body),
        (status, body) => bail!(
            "{method} http://{address}{path}: {status} {}",
            body.lines().next().unwrap_or("")
        ),
    }
}
