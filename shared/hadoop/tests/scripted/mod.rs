//! A scripted server: a test's closure serves each connection.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use heddle_hadoop::proto::common::{
    RequestHeaderProto, RpcRequestHeaderProto, RpcResponseHeaderProto, RpcSaslProto,
};
use heddle_hadoop::rpc::frame::{take_delimited, take_message};
use heddle_hadoop::rpc::{CallOptions, Login, RpcClient, RpcOptions, RpcProxy};
use heddle_hadoop::{HostPort, User};
use prost::Message;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Java name of the protocol in these tests.
pub const PROTOCOL: &str = "test.Protocol";

/// A listening server; connections are served until it is dropped.
pub struct Server {
    pub address: HostPort,
    accepted: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Server {
    /// Serves each connection with `script`, which gets the connection's number (from 0) and the connection.
    pub async fn start<S, F>(script: S) -> Self
    where
        S: Fn(usize, Peer) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let port = listener.local_addr().expect("is bound").port();
        let accepted = Arc::new(AtomicUsize::new(0));
        let count = accepted.clone();
        let task = tokio::spawn(async move {
            let mut serving = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let number = count.fetch_add(1, Ordering::SeqCst);
                serving.spawn(script(number, Peer { stream }));
            }
        });
        Self { address: HostPort::new("127.0.0.1", port), accepted, task }
    }

    /// Number of accepted connections.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// An address at which no process listens.
pub async fn unused_address() -> HostPort {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    HostPort::new("127.0.0.1", listener.local_addr().expect("is bound").port())
}

/// One connection, from the server's side. Dropping it closes it.
pub struct Peer {
    stream: TcpStream,
}

/// A received call.
#[derive(Clone, Debug)]
pub struct Call {
    pub id: i32,
    pub retry: i32,
    pub client_id: Bytes,
    pub method: String,
    pub body: Bytes,
}

impl Peer {
    /// The preamble's last byte: 0, or 0xdf for SASL.
    pub async fn preamble(&mut self) -> u8 {
        let mut bytes = [0; 7];
        self.stream.read_exact(&mut bytes).await.expect("the preamble comes");
        assert_eq!(&bytes[..6], b"hrpc\x09\x00");
        bytes[6]
    }

    /// The next frame, or `None` at the end of the stream.
    pub async fn frame(&mut self) -> Option<Bytes> {
        let length = self.stream.read_u32().await.ok()?;
        let mut frame = vec![0; usize::try_from(length).expect("fits")];
        self.stream.read_exact(&mut frame).await.ok()?;
        Some(frame.into())
    }

    /// The next SASL message.
    pub async fn sasl(&mut self) -> RpcSaslProto {
        let mut frame = self.frame().await.expect("a SASL message comes");
        let head: RpcRequestHeaderProto = take_message(&mut frame, "header").expect("decodes");
        assert_eq!(head.call_id, -33);
        take_message(&mut frame, "sasl").expect("decodes")
    }

    /// The next call; skips contexts and pings. `None` at the end of the stream.
    pub async fn call(&mut self) -> Option<Call> {
        loop {
            let mut frame = self.frame().await?;
            let head: RpcRequestHeaderProto = take_message(&mut frame, "header").expect("decodes");
            if head.call_id < 0 {
                continue;
            }
            let request: RequestHeaderProto = take_message(&mut frame, "request").expect("decodes");
            let body = take_delimited(&mut frame, "body").expect("is there");
            return Some(Call {
                id: head.call_id,
                retry: head.retry_count(),
                client_id: head.client_id,
                method: request.method_name,
                body,
            });
        }
    }

    /// Whether the client sends nothing more and closes.
    pub async fn ends(&mut self) -> bool {
        matches!(
            self.stream.read_u8().await,
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof
        )
    }

    /// Sends bytes unchanged. The client may have closed the connection.
    pub async fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes).await;
    }

    /// Answers a call with its own body.
    pub async fn echo(&mut self, call: &Call) {
        self.send(&success(call.id, &call.body)).await;
    }

    /// Answers a call with an exception.
    pub async fn throw(&mut self, call: &Call, class: &str) {
        self.send(&exception(call.id, 1, class)).await;
    }

    /// Keeps the connection open and silent.
    pub async fn hang(mut self) {
        while self.stream.read_u8().await.is_ok() {}
        std::future::pending::<()>().await;
    }

    /// Answers every call with its own body until the client closes the connection.
    pub async fn echo_all(mut self) {
        self.preamble().await;
        while let Some(call) = self.call().await {
            self.echo(&call).await;
        }
    }

    /// Answers every call with the same exception.
    pub async fn throw_all(mut self, class: &str) {
        self.preamble().await;
        while let Some(call) = self.call().await {
            self.throw(&call, class).await;
        }
    }
}

/// A frame with a response header and what follows it.
pub fn reply(header: &RpcResponseHeaderProto, rest: &[u8]) -> Vec<u8> {
    let header = header.encode_length_delimited_to_vec();
    let length = u32::try_from(header.len() + rest.len()).expect("short");
    [&length.to_be_bytes()[..], &header, rest].concat()
}

/// A successful reply with an encoded message.
pub fn success(id: i32, body: &[u8]) -> Vec<u8> {
    let header =
        RpcResponseHeaderProto { call_id: id.cast_unsigned(), status: 0, ..Default::default() };
    let mut rest = Vec::new();
    prost::encode_length_delimiter(body.len(), &mut rest).expect("a Vec grows");
    rest.extend_from_slice(body);
    reply(&header, &rest)
}

/// A reply with an exception; status 1 is ERROR, 2 is FATAL.
pub fn exception(id: i32, status: i32, class: &str) -> Vec<u8> {
    let header = RpcResponseHeaderProto {
        call_id: id.cast_unsigned(),
        status,
        exception_class_name: Some(class.to_owned()),
        error_msg: Some("as the test says".to_owned()),
        error_detail: (status == 2).then_some(15),
        ..Default::default()
    };
    reply(&header, b"")
}

/// A SASL message of a server.
pub fn sasl(message: &RpcSaslProto) -> Vec<u8> {
    success(-33, &message.encode_to_vec())
}

/// Options with timeouts short enough for tests that wait for them.
pub fn options() -> RpcOptions {
    RpcOptions { connect_timeout: Duration::from_secs(5), ..RpcOptions::default() }
}

/// A proxy to these servers as alice, without security.
pub fn proxy(servers: impl IntoIterator<Item = HostPort>) -> RpcProxy {
    RpcClient::new(options()).proxy(PROTOCOL, servers, Login::simple(User::new("alice")))
}

/// One try with a timeout that only a defect exceeds.
pub fn once() -> CallOptions {
    CallOptions::once(Duration::from_secs(20))
}

/// A request: `String` is a message with one field.
pub async fn echo(
    proxy: &RpcProxy,
    text: &str,
    options: CallOptions,
) -> Result<String, heddle_hadoop::rpc::RpcError> {
    proxy.call("echo", &text.to_owned(), options).await
}
