//! Client of a run's ApplicationMaster: reads the view of the job and sends operations.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use heddle_channel::{ChannelStream, DialError, dial_stream};
use heddle_protocol::control::{Operation, ResizeOrder};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::handshake::{
    Channel, HEADER_ANSWER, HEADER_HELLO, HEADER_PROOF, Hello, NONCE_BYTES, PROOF_BYTES, Secret,
};
use heddle_protocol::ids::RunId;
use heddle_protocol::view::{EventPage, JobView};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::LOCATION;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use tokio::net::TcpStream;

use crate::failure::{CommandFailure, OrFail};
use crate::waiting;

/// An ApplicationMaster of this machine responds in milliseconds unless it hangs.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// The exit code of an operation that the job refuses. The job itself goes on.
pub const REFUSED: ExitCode = ExitCode::Input;
/// A view of ten thousand slots has some MB.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// The address of an ApplicationMaster, and its name in error messages.
#[derive(Clone, Debug)]
pub struct Am {
    /// Addresses of its host, tried in this order; empty before it listens.
    pub addresses: Vec<SocketAddr>,
    /// `the ApplicationMaster of run 1a2b3c4d`.
    pub peer: String,
    /// The next step if it does not respond.
    pub next: String,
    /// How long a checkpoint of its job may take.
    pub checkpoint_timeout: Duration,
}

/// What opens an ApplicationMaster.
#[derive(Clone, Copy)]
pub struct AmKey<'a> {
    run: RunId,
    secret: &'a Secret,
    channel: Channel,
}

impl<'a> AmKey<'a> {
    /// The job's secret, for operators.
    pub fn operator(run: RunId, secret: &'a Secret) -> Self {
        Self { run, secret, channel: Channel::Operator }
    }

    /// The secret of the job's grant, for the controller.
    pub fn controller(run: RunId, secret: &'a Secret) -> Self {
        Self { run, secret, channel: Channel::Controller }
    }
}

impl Am {
    /// Reads the public view of the job; through YARN's proxy if the pages are behind it.
    ///
    /// # Errors
    /// Exit code 6 if it does not respond.
    pub async fn view(&self) -> Result<JobView, CommandFailure> {
        parsed(JobView::from_json(&self.page("/api/v1/status").await?), "the view of a job")
    }

    /// Reads the events of the job from number `from` on, as [`view`](Self::view) does.
    ///
    /// # Errors
    /// Exit code 6 if it does not respond.
    pub async fn events(&self, from: u64) -> Result<EventPage, CommandFailure> {
        let page = self.page(&format!("/api/v1/events?from={from}")).await?;
        parsed(EventPage::from_json(&page), "events of a job")
    }

    async fn page(&self, path: &str) -> Result<Bytes, CommandFailure> {
        let exchange = async {
            let mut sender = self.connect().await?;
            match read(&mut sender, get(path, "heddle")?).await {
                Err(ExchangeError::Elsewhere(url)) => {
                    let (host, path) = parts(&url).ok_or(ExchangeError::NoAddress)?;
                    let mut sender = http(ChannelStream::Plain(dial(&*host).await?)).await?;
                    read(&mut sender, get(path, &host)?).await
                }
                read => read,
            }
        };
        self.limited(ANSWER_LIMIT, exchange).await
    }

    /// Reads the view with a secret, without a proxy.
    ///
    /// # Errors
    /// Exit code 6 if it does not respond, 5 if it rejects the secret.
    pub async fn view_with(&self, key: AmKey<'_>) -> Result<JobView, CommandFailure> {
        let page = self.page_with(key, "/v1/status").await?;
        parsed(JobView::from_json(&page), "the view of a job")
    }

    /// Reads the events of the job from number `from` on, as [`view_with`](Self::view_with) does.
    ///
    /// # Errors
    /// Exit code 6 if it does not respond, 5 if it rejects the secret.
    pub async fn events_with(
        &self,
        key: AmKey<'_>,
        from: u64,
    ) -> Result<EventPage, CommandFailure> {
        let path = format!("/v1/events?from={from}");
        parsed(EventPage::from_json(&self.page_with(key, &path).await?), "events of a job")
    }

    async fn page_with(&self, key: AmKey<'_>, path: &str) -> Result<Bytes, CommandFailure> {
        let exchange = async {
            let mut sender = self.connect_encrypted(key).await?;
            let proof = prove(&mut sender, key).await?;
            let request = Request::get(path)
                .header(hyper::header::HOST, "heddle")
                .header(HEADER_PROOF, proof)
                .body(Full::default())?;
            read(&mut sender, request).await
        };
        self.limited(ANSWER_LIMIT, exchange).await
    }

    /// Sends an operation; returns when it is done.
    ///
    /// # Errors
    /// Exit code 6 if it does not respond, 5 if it rejects the secret, [`REFUSED`] if it refuses the operation.
    pub async fn operate(
        &self,
        run: RunId,
        secret: &Secret,
        operation: &Operation,
    ) -> Result<(), CommandFailure> {
        let key = AmKey::operator(run, secret);
        self.post(key, "/v1/operator", operation, self.limit_of(operation)).await
    }

    /// Sends an order of the controller; returns when it is done.
    ///
    /// # Errors
    /// The same as of [`operate`](Self::operate).
    pub async fn resize(&self, key: AmKey<'_>, order: &ResizeOrder) -> Result<(), CommandFailure> {
        self.post(key, "/v1/size", order, ANSWER_LIMIT).await
    }

    async fn post(
        &self,
        key: AmKey<'_>,
        path: &str,
        order: &impl Serialize,
        limit: Duration,
    ) -> Result<(), CommandFailure> {
        self.limited(limit, async {
            let mut sender = self.connect_encrypted(key).await?;
            let proof = prove(&mut sender, key).await?;
            let request = Request::post(path)
                .header(hyper::header::HOST, "heddle")
                .header(HEADER_PROOF, proof)
                .body(Full::from(serde_json::to_vec(order)?))?;
            read(&mut sender, request).await
        })
        .await
        .map(|_| ())
    }

    /// The time limit of an operation. An operation that saves is answered when the checkpoint is committed or given
    /// up.
    fn limit_of(&self, operation: &Operation) -> Duration {
        match operation {
            // An open checkpoint may have to finish first.
            Operation::Stop { checkpoint: true } | Operation::Checkpoint => {
                ANSWER_LIMIT + 2 * self.checkpoint_timeout
            }
            Operation::Stop { checkpoint: false }
            | Operation::Kill
            | Operation::Scale { .. }
            | Operation::ScaleAuto
            | Operation::Resize(_)
            | Operation::Chaos(_) => ANSWER_LIMIT,
        }
    }

    async fn connect(&self) -> Result<Sender, ExchangeError> {
        http(ChannelStream::Plain(self.socket().await?)).await
    }

    /// A connection for what the secret opens: always encrypted, whatever `network.protection` states, so that the
    /// command line need not know it and a peer on the path cannot choose.
    async fn connect_encrypted(&self, key: AmKey<'_>) -> Result<Sender, ExchangeError> {
        let hello = Hello::new(key.run, None)?;
        let socket = self.socket().await?;
        match dial_stream(socket, key.secret, key.channel, &hello).await {
            Ok(stream) => http(stream).await,
            Err(DialError::Channel(error)) => {
                Err(ExchangeError::Refused(StatusCode::UNAUTHORIZED, error.to_string()))
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn socket(&self) -> Result<TcpStream, ExchangeError> {
        let mut trouble = ExchangeError::NoAddress;
        // An address of a network that this machine does not reach must leave time for the others.
        let each = ANSWER_LIMIT / 2 / u32::try_from(self.addresses.len().max(1)).unwrap_or(1);
        for address in &self.addresses {
            match tokio::time::timeout(each, dial(*address)).await {
                Ok(Ok(socket)) => return Ok(socket),
                Ok(Err(error)) => trouble = error,
                Err(late) => trouble = late.into(),
            }
        }
        Err(trouble)
    }

    async fn limited<T>(
        &self,
        limit: Duration,
        exchange: impl Future<Output = Result<T, ExchangeError>>,
    ) -> Result<T, CommandFailure> {
        let peer = &self.peer;
        let unreachable = |why: &str| {
            CommandFailure::new(ExitCode::Unreachable, format!("{peer} {why}")).next(&self.next)
        };
        let exchange = tokio::time::timeout(limit, exchange);
        match waiting::on(peer, exchange).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(ExchangeError::Elsewhere(url))) => Err(unreachable(&format!("is behind {url}"))),
            Ok(Err(ExchangeError::NoAddress)) => Err(unreachable("is not listening yet")),
            Ok(Err(ExchangeError::Refused(StatusCode::UNAUTHORIZED, text))) => {
                Err(CommandFailure::new(ExitCode::Denied, format!("{peer}: {text}")))
            }
            Ok(Err(ExchangeError::Refused(StatusCode::CONFLICT, text))) => {
                Err(CommandFailure::new(REFUSED, format!("{peer} refuses: {text}")))
            }
            Ok(Err(ExchangeError::Refused(status, text))) => {
                Err(unreachable(&format!("answered {status}: {text}")))
            }
            Ok(Err(ExchangeError::Other(error))) => Err(CommandFailure::caused(
                ExitCode::Unreachable,
                format!("{peer} does not respond"),
                &*error,
            )),
            Err(_) => Err(unreachable(&format!("did not respond within {} s", limit.as_secs()))),
        }
    }
}

type Sender = SendRequest<Full<Bytes>>;

/// Why an exchange failed.
enum ExchangeError {
    NoAddress,
    /// The pages are at this URL.
    Elsewhere(String),
    Refused(StatusCode, String),
    Other(Box<dyn std::error::Error + Send + Sync>),
}

impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> From<E> for ExchangeError {
    fn from(error: E) -> Self {
        Self::Other(error.into())
    }
}

/// A connection to an ApplicationMaster or to YARN's proxy.
async fn dial(to: impl tokio::net::ToSocketAddrs) -> Result<TcpStream, ExchangeError> {
    Ok(tokio::time::timeout(ANSWER_LIMIT, TcpStream::connect(to)).await??)
}

/// HTTP on a connection.
async fn http(stream: ChannelStream) -> Result<Sender, ExchangeError> {
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::spawn(async move {
        // The request that uses this connection reports its failure.
        let _ended = connection.await;
    });
    Ok(sender)
}

fn get(path: &str, host: &str) -> Result<Request<Full<Bytes>>, ExchangeError> {
    let request = Request::get(path).header(hyper::header::HOST, host);
    Ok(request.body(Full::default())?)
}

/// Host with port, and path, of a plain URL.
fn parts(url: &str) -> Option<(String, &str)> {
    let rest = url.strip_prefix("http://")?;
    let (host, path) = rest.split_at(rest.find('/')?);
    let host = match host.contains(':') {
        true => host.to_owned(),
        false => format!("{host}:80"),
    };
    Some((host, path))
}

/// The proof of the secret for the next request on this connection; valid once.
async fn prove(sender: &mut Sender, key: AmKey<'_>) -> Result<String, ExchangeError> {
    let hello = Hello::new(key.run, None)?;
    let request = Request::post("/v1/hello")
        .header(hyper::header::HOST, "heddle")
        .header(HEADER_HELLO, hex::encode(hello.encode()))
        .body(Full::default())?;
    let response = sender.send_request(request).await?;
    let mut answer = [0; NONCE_BYTES + PROOF_BYTES];
    let header = response.headers().get(HEADER_ANSWER).cloned();
    let status = response.status();
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await?;
    let Some(header) = header else {
        let text = String::from_utf8_lossy(&body.to_bytes()).trim().to_owned();
        return Err(ExchangeError::Refused(status, text));
    };
    hex::decode_to_slice(header.as_bytes(), &mut answer)?;
    let proof = hello
        .client_proof(key.secret, key.channel, &answer)
        .map_err(|error| ExchangeError::Refused(StatusCode::UNAUTHORIZED, error.to_string()))?;
    Ok(hex::encode(proof))
}

fn parsed<T>(read: Result<T, serde_json::Error>, what: &str) -> Result<T, CommandFailure> {
    let fact = format!("cannot read the ApplicationMaster's answer as {what}");
    read.or_fail(ExitCode::Unreachable, fact)
}

async fn read(sender: &mut Sender, request: Request<Full<Bytes>>) -> Result<Bytes, ExchangeError> {
    let response = sender.send_request(request).await?;
    let status = response.status();
    if let (true, Some(url)) = (status.is_redirection(), response.headers().get(LOCATION)) {
        return Err(ExchangeError::Elsewhere(url.to_str()?.to_owned()));
    }
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await?.to_bytes();
    match status {
        StatusCode::OK => Ok(body),
        _ => Err(ExchangeError::Refused(status, String::from_utf8_lossy(&body).trim().to_owned())),
    }
}

/// A runtime for one exchange.
///
/// # Errors
/// The system cannot create an event queue.
pub fn runtime() -> Result<tokio::runtime::Runtime, CommandFailure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .or_fail_with(CommandFailure::of_system, "cannot create an event queue")
}

#[cfg(test)]
mod tests {
    use heddle_am::api;
    use heddle_am::event_log::{EventLog, EventOutput};
    use heddle_channel::PeerTimeout;
    use heddle_protocol::handshake::Mechanism;
    use heddle_protocol::ids::Attempt;

    use super::*;

    #[test]
    fn all_addresses_of_a_host_are_tried() {
        let runtime = runtime().expect("a runtime");
        runtime.block_on(async {
            let listens = tokio::net::TcpListener::bind("127.0.0.1:0").await;
            let listens = listens.expect("a port");
            let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await;
            let closed = closed.expect("a port").local_addr().expect("bound");
            let am = |addresses| Am {
                addresses,
                peer: "the test's".to_owned(),
                next: String::new(),
                checkpoint_timeout: Duration::ZERO,
            };
            let both = vec![closed, listens.local_addr().expect("bound")];
            assert!(am(both).connect().await.is_ok());
            assert!(am(vec![closed]).connect().await.is_err());
            assert!(matches!(am(Vec::new()).connect().await, Err(ExchangeError::NoAddress)));
        });
    }

    /// The secret of a job's grant, which a service user can read.
    #[test]
    fn controllers_secret_opens_the_status_and_the_size_alone() {
        runtime().expect("a runtime").block_on(async {
            let (run, secret) =
                (RunId(uuid::Uuid::from_u128(7)), Secret::random().expect("random"));
            let granted = secret.of_peers(run, Channel::Controller);
            let listener = api::bind(std::net::Ipv4Addr::LOCALHOST.into(), &[]).await;
            let listener = listener.expect("a free port");
            let address = listener.local_addr().expect("bound");
            let (inputs, mut orders) = tokio::sync::mpsc::channel(4);
            let view = JobView::starting(run, "job", Attempt(1), 0);
            let (_keep, views) = tokio::sync::watch::channel(std::sync::Arc::new(view));
            let pages = api::Pages::new(views, EventLog::new(Attempt(1), EventOutput::LogOnly));
            let (mechanism, timeout) = (Mechanism::Hmac, PeerTimeout::default());
            let state = api::ApiState { run, secret, mechanism, timeout, inputs, pages };
            let capacity = api::Capacity::default();
            tokio::spawn(api::serve(listener, std::sync::Arc::new(state), None, capacity));
            tokio::spawn(async move {
                while let Some(api::ApiInput::Operation { operation, answer }) = orders.recv().await
                {
                    assert!(matches!(operation, Operation::Resize(_)), "{operation:?}");
                    answer.send(Ok(())).expect("it waits");
                }
            });
            let am = Am {
                addresses: vec![address],
                peer: "the test's".to_owned(),
                next: String::new(),
                checkpoint_timeout: Duration::ZERO,
            };
            let key = || AmKey::controller(run, &granted);
            assert_eq!(am.view_with(key()).await.expect("the status").name, "job");
            let order = ResizeOrder { generation: 1, trainers: 2, pservers: 1 };
            am.resize(key(), &order).await.expect("the size");
            let events = am.events_with(key(), 0).await.expect_err("refused");
            assert_eq!(events.exit, ExitCode::Denied);
            for path in ["/v1/operator", "/v1/session"] {
                let refused = am.post(key(), path, &Operation::Kill, ANSWER_LIMIT).await;
                assert_eq!(refused.expect_err(path).exit, ExitCode::Denied);
            }
            let as_operator = am.operate(run, &granted, &Operation::Kill).await;
            assert!(as_operator.is_err(), "another channel has another secret");
        });
    }

    #[test]
    fn proxy_url_is_split_into_host_and_path() {
        let url = "http://rm:8088/proxy/redirect/application_1_1/api/v1/status";
        let path = "/proxy/redirect/application_1_1/api/v1/status";
        assert_eq!(parts(url), Some(("rm:8088".to_owned(), path)));
        assert_eq!(parts("http://rm/x"), Some(("rm:80".to_owned(), "/x")));
        assert_eq!(parts("https://rm/x"), None);
        assert_eq!(parts("http://rm"), None);
    }
}
