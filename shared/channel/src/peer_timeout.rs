//! How soon the kernel closes a connection whose peer is out of reach.
//!
//! Keep-alive notices a silent path, `TCP_USER_TIMEOUT` (RFC 5482) one on which sent bytes are not acknowledged, such as a
//! path that is cut one way. Both ends set both, so that a cut in either direction ends the connection at both. Neither
//! notices a stopped process, for which its kernel acknowledges; heartbeats do.

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// Time without an acknowledgement after which the kernel closes a connection: `liveness.dead`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerTimeout(pub Duration);

impl Default for PeerTimeout {
    /// That of a job file without the key.
    fn default() -> Self {
        Self(heddle_protocol::job_spec::LivenessSpec::default().dead.as_duration())
    }
}

impl PeerTimeout {
    /// Sets the options of a connected socket, and `TCP_NODELAY`: a message must not wait for the acknowledgement of the
    /// one before.
    ///
    /// # Errors
    /// The system refuses an option.
    pub fn apply(self, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        // The kernel counts keep-alive in whole seconds.
        let second = Duration::from_secs(1);
        let keepalive = TcpKeepalive::new()
            .with_time((self.0 / 2).max(second))
            .with_interval((self.0 / 4).max(second))
            .with_retries(2);
        let socket = SockRef::from(stream);
        socket.set_tcp_keepalive(&keepalive)?;
        #[cfg(target_os = "linux")]
        socket.set_tcp_user_timeout(Some(self.0))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn options_follow_the_timeout() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let stream = TcpStream::connect(address).await.expect("it listens");
        for (dead_ms, idle_s) in [(10_000, 5), (500, 1)] {
            let dead = Duration::from_millis(dead_ms);
            PeerTimeout(dead).apply(&stream).expect("it takes options");
            let socket = SockRef::from(&stream);
            assert_eq!(socket.tcp_user_timeout().expect("readable"), Some(dead));
            let idle = socket.tcp_keepalive_time().expect("readable");
            assert_eq!(idle, Duration::from_secs(idle_s));
        }
    }
}
