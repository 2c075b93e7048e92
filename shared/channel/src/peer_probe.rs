//! Probes of data ports.
//!
//! A probe is a handshake: the pserver must prove the job's secret over the probe's nonce. An open connection alone proves
//! nothing, since the kernel of a stopped process accepts it.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use heddle_protocol::handshake::{
    Channel, Hello, MECHANISM_HMAC, Mechanism, NONCE_BYTES, PROOF_BYTES, Secret,
};
use heddle_protocol::ids::RunId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::stream::{DialError, dial_stream};

/// Timeout of the connection, and of the answer after it. On the same network both take milliseconds.
const LIMIT: Duration = Duration::from_secs(1);

/// What a probe found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeAnswer {
    /// The port refused the connection: no process listens there.
    Refused,
    /// The process has proved the secret over the probe's nonce.
    Answered,
    /// The connection opened, and no proof came within a second.
    NoAnswer,
    /// The connection did not open within a second, or there is no route.
    Silent,
}

/// Probes of the data ports of a job.
#[derive(Clone, Debug)]
pub struct PeerProbe {
    /// The run.
    pub run: RunId,
    /// Its secret.
    pub secret: Secret,
    /// How its data connections are secured.
    pub mechanism: Mechanism,
}

impl PeerProbe {
    /// Probes the data port of a pserver. Takes two seconds at most.
    pub async fn probe(&self, endpoint: SocketAddr) -> ProbeAnswer {
        let stream = match tokio::time::timeout(LIMIT, TcpStream::connect(endpoint)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                return ProbeAnswer::Refused;
            }
            Ok(Err(_)) | Err(_) => return ProbeAnswer::Silent,
        };
        match tokio::time::timeout(LIMIT, self.answers(stream)).await {
            Ok(true) => ProbeAnswer::Answered,
            Ok(false) | Err(_) => ProbeAnswer::NoAnswer,
        }
    }

    /// Whether the process behind the connection proves the secret over a new nonce. A probe is not a member of the job, so
    /// that a pserver that requires encryption refuses it, which only a holder of the secret can.
    async fn answers(&self, mut stream: TcpStream) -> bool {
        let Ok(hello) = Hello::new(self.run, None) else {
            return false;
        };
        match self.mechanism {
            Mechanism::Hmac => {
                let mut first = vec![MECHANISM_HMAC];
                first.extend(hello.encode());
                let mut answer = [0; NONCE_BYTES + PROOF_BYTES];
                stream.write_all(&first).await.is_ok()
                    && stream.read_exact(&mut answer).await.is_ok()
                    && hello.client_proof(&self.secret, Channel::Data, &answer).is_ok()
            }
            Mechanism::Noise => {
                let dialed = dial_stream(stream, &self.secret, Channel::Data, &hello).await;
                matches!(dialed, Ok(_) | Err(DialError::Verdict(Some(_))))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::accept_stream;
    use heddle_protocol::handshake::{HELLO_BYTES, MECHANISM_NOISE, Verdict, random_nonce};
    use tokio::net::TcpListener;

    use super::*;

    fn prober(mechanism: Mechanism) -> PeerProbe {
        let secret = Secret::from_hex(&"01".repeat(32)).expect("64 digits");
        PeerProbe { run: RunId(uuid::Uuid::from_u128(1)), secret, mechanism }
    }

    async fn port() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        (listener, address)
    }

    /// Answers one handshake as a pserver does, with this secret.
    async fn answer_once(listener: TcpListener, secret: Secret) {
        let (mut stream, _) = listener.accept().await.expect("a probe");
        if stream.read_u8().await.expect("a byte") == MECHANISM_NOISE {
            let run = RunId(uuid::Uuid::from_u128(1));
            let incoming = accept_stream(stream, &secret, run, &[Channel::Data]).await;
            if let Ok(mut incoming) = incoming {
                assert_eq!(incoming.hello.member, None);
                incoming.answer(Verdict::NotMember).await.expect("sent");
            }
            return;
        }
        let mut hello = [0; HELLO_BYTES];
        stream.read_exact(&mut hello).await.expect("a hello");
        let hello = Hello::decode(&hello).expect("well-formed");
        let nonce = random_nonce().expect("random numbers");
        let answer = hello.server_answer(&secret, Channel::Data, &nonce);
        stream.write_all(&answer).await.expect("sent");
    }

    #[tokio::test]
    async fn only_a_process_that_proves_the_secret_has_answered() {
        for mechanism in [Mechanism::Hmac, Mechanism::Noise] {
            for (digits, expected) in [("01", ProbeAnswer::Answered), ("02", ProbeAnswer::NoAnswer)]
            {
                let (listener, address) = port().await;
                let secret = Secret::from_hex(&digits.repeat(32)).expect("64 digits");
                let served = tokio::spawn(answer_once(listener, secret));
                assert_eq!(prober(mechanism).probe(address).await, expected, "{mechanism:?}");
                served.await.expect("no panic");
            }
        }
    }

    #[tokio::test]
    async fn s37_connection_that_only_the_kernel_accepts_is_no_answer() {
        let (_listener, address) = port().await;
        assert_eq!(prober(Mechanism::Hmac).probe(address).await, ProbeAnswer::NoAnswer);
    }

    #[tokio::test]
    async fn closed_port_is_refused() {
        let (listener, address) = port().await;
        drop(listener);
        assert_eq!(prober(Mechanism::Hmac).probe(address).await, ProbeAnswer::Refused);
    }
}
