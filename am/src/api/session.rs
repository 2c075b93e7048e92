//! One connection: routes, the challenge, and a container's session.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use heddle_am_core::ConnectionId;
use heddle_protocol::control::{Operation, ReportEnvelope};
use heddle_protocol::handshake::{
    Channel, HELLO_BYTES, HandshakeError, Hello, Mechanism, NONCE_BYTES, random_nonce,
};
use heddle_protocol::ids::Member;
use heddle_protocol::lines::LineBuffer;
use http_body_util::channel::Channel as BodyChannel;
use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{ALLOW, HeaderValue, LOCATION};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;
use tracing::Instrument as _;

use super::admission::ConnectionPermit;
use super::command_stream::CommandStream;
use super::gate::{PageGate, Way};
use super::public::{self, PageAnswer};
use super::state::{ApiInput, ApiState};
use super::viewers;

/// Longest command of an operator.
const OPERATION_BYTES_MAX: usize = 64 * 1024;

/// The answer to a peer that offers less than the job requires.
const UNPROTECTED: &str =
    "the connections of this job are encrypted (network.protection): this peer offers plain HTTP";

type Body = Either<Full<Bytes>, BodyChannel<Bytes>>;

/// The state of one connection: peer, admission and challenge.
pub(super) struct ConnectionState {
    id: ConnectionId,
    peer: IpAddr,
    gate: Option<Arc<PageGate>>,
    pub(super) place: ConnectionPermit,
    /// What the connection is for, if its bytes are encrypted.
    encrypted: OnceLock<Channel>,
    challenge: Mutex<Option<(Hello, [u8; NONCE_BYTES])>>,
}

impl ConnectionState {
    pub(super) fn new(
        id: ConnectionId,
        peer: IpAddr,
        gate: Option<Arc<PageGate>>,
        place: ConnectionPermit,
    ) -> Self {
        Self { id, peer, gate, place, encrypted: OnceLock::new(), challenge: Mutex::new(None) }
    }

    /// Notes that the bytes of the connection are encrypted, and what it is for. It precedes the first request.
    pub(super) fn set_encrypted(&self, channel: Channel) {
        let _first = self.encrypted.set(channel);
    }

    /// What a peer with this hello is to prove. Connections of the controller are always encrypted.
    fn channel(&self, hello: &Hello) -> Channel {
        match (self.encrypted.get(), hello.member) {
            (Some(Channel::Controller), _) => Channel::Controller,
            (_, Some(_)) => Channel::Control,
            (_, None) => Channel::Operator,
        }
    }

    /// Whether the connection may carry what the secret opens.
    fn satisfies(&self, mechanism: Mechanism) -> bool {
        mechanism == Mechanism::Hmac || self.encrypted.get().is_some()
    }

    fn set(&self, hello: Hello, nonce: [u8; NONCE_BYTES]) {
        *self.challenge.lock().unwrap_or_else(PoisonError::into_inner) = Some((hello, nonce));
    }

    /// Takes the challenge, so that each proof is good once.
    fn take(&self) -> Option<(Hello, [u8; NONCE_BYTES])> {
        self.challenge.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

pub(super) async fn answer(
    request: Request<Incoming>,
    shared: Arc<ApiState>,
    state: Arc<ConnectionState>,
) -> Result<Response<Body>, Infallible> {
    let path = request.uri().path().to_owned();
    let response = match (request.method(), path.as_str()) {
        (&Method::POST, "/v1/hello") => hello(&request, &shared, &state),
        (&Method::POST, "/v1/session") => session(request, &shared, &state).await,
        (&Method::POST, "/v1/operator") => {
            let takes = |client: &ProvenClient| matches!(client, ProvenClient::Operator);
            operator(request, &shared, &state, takes, std::convert::identity).await
        }
        (&Method::POST, "/v1/size") => {
            let takes = |client: &ProvenClient| matches!(client, ProvenClient::Controller);
            operator(request, &shared, &state, takes, Operation::Resize).await
        }
        (&Method::GET, "/v1/status") => {
            let takes =
                |client: &_| matches!(client, ProvenClient::Operator | ProvenClient::Controller);
            proven_page(&request, "/api/v1/job", &shared, &state, takes)
        }
        (&Method::GET, "/v1/events") => {
            let takes = |client: &_| matches!(client, ProvenClient::Operator);
            proven_page(&request, public::EVENTS, &shared, &state, takes)
        }
        (_, path) if path.starts_with("/v1/") => not_allowed("POST"),
        (&Method::GET | &Method::HEAD, path) => pages(&request, path, &shared, &state).await,
        _ => not_allowed("GET, HEAD"),
    };
    Ok(response)
}

fn text(status: StatusCode, message: &str) -> Response<Body> {
    let mut response = Response::new(Either::Left(Full::from(format!("{message}\n"))));
    *response.status_mut() = status;
    public::headers(response.headers_mut(), "text/plain; charset=utf-8");
    response
}

fn not_allowed(methods: &'static str) -> Response<Body> {
    let message = format!("this path takes {methods}");
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, &message);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(methods));
    response
}

/// A page, or a redirect to the proxy. hyper omits the body of an answer to HEAD.
async fn pages(
    request: &Request<Incoming>,
    path: &str,
    shared: &ApiState,
    state: &ConnectionState,
) -> Response<Body> {
    let asked = request.uri().path_and_query().map_or(path, |asked| asked.as_str());
    let way = match &state.gate {
        Some(gate) if path != "/metrics" => {
            let user = viewers::user_of(request.headers());
            gate.way(state.peer, asked, user).await
        }
        _ => Way::Serve,
    };
    match way {
        Way::Serve => reading(shared.pages.read(path, request.uri().query())),
        Way::Forbid(user) => {
            let message = format!("user {user:?} may not view this job; see yarn.view-acl");
            text(StatusCode::FORBIDDEN, &message)
        }
        Way::Redirect(url) => {
            let mut response = text(StatusCode::FOUND, "the pages are served through YARN's proxy");
            match HeaderValue::try_from(url) {
                Ok(url) => {
                    response.headers_mut().insert(LOCATION, url);
                    response
                }
                Err(_) => text(StatusCode::NOT_FOUND, "no such page"),
            }
        }
    }
}

/// A page of JSON for a client that proved the secret, from any host.
fn proven_page(
    request: &Request<Incoming>,
    path: &str,
    shared: &ApiState,
    state: &ConnectionState,
    takes: impl Fn(&ProvenClient) -> bool,
) -> Response<Body> {
    match proved(request, shared, state) {
        Ok(client) if takes(&client) => reading(shared.pages.read(path, request.uri().query())),
        Ok(_) => unproven(&ProofError::Secret),
        Err(why) => unproven(&why),
    }
}

fn reading(reading: PageAnswer) -> Response<Body> {
    let mut response = Response::new(Either::Left(Full::from(reading.body)));
    *response.status_mut() = reading.status;
    public::headers(response.headers_mut(), reading.kind);
    response
}

fn hex_header<const N: usize>(headers: &HeaderMap, name: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    hex::decode_to_slice(headers.get(name)?.as_bytes(), &mut bytes).ok()?;
    Some(bytes)
}

fn hello(
    request: &Request<Incoming>,
    shared: &ApiState,
    state: &ConnectionState,
) -> Response<Body> {
    if !state.satisfies(shared.mechanism) {
        return text(StatusCode::UPGRADE_REQUIRED, UNPROTECTED);
    }
    let Some(bytes) =
        hex_header::<HELLO_BYTES>(request.headers(), heddle_protocol::handshake::HEADER_HELLO)
    else {
        return text(StatusCode::BAD_REQUEST, "expected a heddle-hello header");
    };
    let (hello, nonce) = match Hello::decode(&bytes).and_then(|hello| Ok((hello, random_nonce()?)))
    {
        Ok(both) => both,
        Err(error) => return text(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    if hello.run != shared.run {
        return text(StatusCode::CONFLICT, "this is the ApplicationMaster of another run");
    }
    let channel = state.channel(&hello);
    let secret = shared.secret.of_peers(shared.run, channel);
    let answer = hello.server_answer(&secret, channel, &nonce);
    state.set(hello, nonce);
    let mut response = text(StatusCode::OK, "");
    if let Ok(value) = hex::encode(answer).parse() {
        response.headers_mut().insert(heddle_protocol::handshake::HEADER_ANSWER, value);
    }
    response
}

/// A peer that has proved its secret.
enum ProvenClient {
    Container(Member),
    Operator,
    /// By the job's grant: it may read the status and order a size.
    Controller,
}

/// Why a request with a proof is rejected.
#[derive(Debug)]
enum ProofError {
    Secret,
    /// The process has as many connections of the job as it can hold. The peer retries.
    NoRoom,
}

impl From<HandshakeError> for ProofError {
    fn from(_: HandshakeError) -> Self {
        Self::Secret
    }
}

fn unproven(why: &ProofError) -> Response<Body> {
    match why {
        ProofError::Secret => text(StatusCode::UNAUTHORIZED, "the job's secret was not proved"),
        ProofError::NoRoom => text(
            StatusCode::SERVICE_UNAVAILABLE,
            "cannot accept another connection: the limit of open files is reached",
        ),
    }
}

/// Checks the proof of the request's head before anything of its body is read.
fn proved(
    request: &Request<Incoming>,
    shared: &ApiState,
    state: &ConnectionState,
) -> Result<ProvenClient, ProofError> {
    let (hello, nonce) = state.take().ok_or(HandshakeError::Proof)?;
    let proof: [u8; 32] = hex_header(request.headers(), heddle_protocol::handshake::HEADER_PROOF)
        .ok_or(HandshakeError::Proof)?;
    let channel = state.channel(&hello);
    let secret = shared.secret.of_peers(shared.run, channel);
    hello.check_client(&secret, channel, &nonce, &proof)?;
    if !state.place.prove() {
        return Err(ProofError::NoRoom);
    }
    Ok(match (channel, hello.member) {
        (Channel::Controller, _) => ProvenClient::Controller,
        (_, Some(member)) => ProvenClient::Container(member),
        (_, None) => ProvenClient::Operator,
    })
}

async fn session(
    request: Request<Incoming>,
    shared: &Arc<ApiState>,
    state: &ConnectionState,
) -> Response<Body> {
    let member = match proved(&request, shared, state) {
        Ok(ProvenClient::Container(member)) => member,
        Err(why @ ProofError::NoRoom) => return unproven(&why),
        Ok(_) | Err(ProofError::Secret) => {
            tracing::warn!("control_connection_rejected");
            return unproven(&ProofError::Secret);
        }
    };
    let (lines, body) = CommandStream::new();
    let opened = ApiInput::SessionOpened { connection: state.id, member, lines };
    if shared.inputs.send(opened).await.is_err() {
        return text(StatusCode::SERVICE_UNAVAILABLE, "the ApplicationMaster is ending");
    }
    let reader = read_lines(request.into_body(), state.id, member, Arc::clone(shared));
    tokio::spawn(reader.instrument(tracing::info_span!("container", slot = %member.slot)));
    Response::new(Either::Right(body))
}

async fn read_lines(
    mut body: Incoming,
    connection: ConnectionId,
    member: Member,
    shared: Arc<ApiState>,
) {
    let mut buffer = LineBuffer::default();
    let ended = 'reading: loop {
        let data = match body.frame().await {
            None => break "closed".to_owned(),
            Some(Err(error)) => break error.to_string(),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => data,
                Err(_trailers) => continue,
            },
        };
        if let Err(error) = buffer.push(&data) {
            break error.to_string();
        }
        while let Some(line) = buffer.next_line() {
            match ReportEnvelope::from_json(&line) {
                Ok(line) => {
                    let input = ApiInput::SessionLine { connection, member, line: Box::new(line) };
                    if shared.inputs.send(input).await.is_err() {
                        return;
                    }
                }
                Err(error) => break 'reading format!("unknown report: {error}"),
            }
        }
    };
    tracing::debug!(%member, ended, "control_connection_ended");
    let _ending = shared.inputs.send(ApiInput::SessionClosed { connection, member }).await;
}

/// An operation of a peer that `takes` accepts; `operation`: of the request's body.
async fn operator<T: DeserializeOwned>(
    request: Request<Incoming>,
    shared: &ApiState,
    state: &ConnectionState,
    takes: fn(&ProvenClient) -> bool,
    operation: fn(T) -> Operation,
) -> Response<Body> {
    match proved(&request, shared, state) {
        Ok(client) if takes(&client) => {}
        Ok(_) => return unproven(&ProofError::Secret),
        Err(why) => return unproven(&why),
    }
    match body_of(request).await {
        Ok(body) => operate(operation(body), shared).await,
        Err(refusal) => refusal,
    }
}

async fn body_of<T: DeserializeOwned>(request: Request<Incoming>) -> Result<T, Response<Body>> {
    let body = Limited::new(request.into_body(), OPERATION_BYTES_MAX).collect().await;
    let body = body.map_err(|error| text(StatusCode::BAD_REQUEST, &error.to_string()))?;
    serde_json::from_slice(&body.to_bytes())
        .map_err(|error| text(StatusCode::BAD_REQUEST, &format!("unknown operation: {error}")))
}

async fn operate(operation: Operation, shared: &ApiState) -> Response<Body> {
    let (answer, answered) = oneshot::channel();
    // Numbers of a job that ends cannot be set. All other operations have been overtaken by the end.
    let ending = match operation {
        Operation::Scale { .. } | Operation::ScaleAuto | Operation::Resize(_) => {
            text(StatusCode::CONFLICT, "the job is ending")
        }
        _ => text(StatusCode::SERVICE_UNAVAILABLE, "the ApplicationMaster is ending"),
    };
    if shared.inputs.send(ApiInput::Operation { operation, answer }).await.is_err() {
        return ending;
    }
    match answered.await {
        Ok(Ok(())) => text(StatusCode::OK, "accepted"),
        Ok(Err(why)) => text(StatusCode::CONFLICT, &why),
        Err(_) => ending,
    }
}
