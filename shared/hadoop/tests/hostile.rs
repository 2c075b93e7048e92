//! Servers that break the protocol, hang, or impersonate another one: the client returns a typed error and no secret.

mod scripted;

use std::time::Duration;

use heddle_hadoop::proto::common::RpcSaslProto;
use heddle_hadoop::proto::common::rpc_sasl_proto::SaslAuth;
use heddle_hadoop::rpc::error::{AuthError, ConnectError, LostCause, ProtocolError};
use heddle_hadoop::rpc::frame::RpcFrameError;
use heddle_hadoop::rpc::{CallOptions, CallOutcome, Login, RpcClient, RpcError, RpcOptions};
use heddle_hadoop::sasl::{SaslError, SecurityPolicy};
use heddle_hadoop::{Token, User};
use scripted::{
    PROTOCOL, Server, echo, exception, once, options, proxy, sasl, success, unused_address,
};
use tokio::sync::mpsc;

/// A server that answers the first call of each connection with these bytes and then waits.
async fn answers(bytes: impl Fn(i32) -> Vec<u8> + Send + Sync + Clone + 'static) -> Server {
    Server::start(move |_, mut peer| {
        let bytes = bytes.clone();
        async move {
            peer.preamble().await;
            if let Some(call) = peer.call().await {
                peer.send(&bytes(call.id)).await;
                peer.hang().await;
            }
        }
    })
    .await
}

fn protocol_error(error: &RpcError) -> &ProtocolError {
    match error {
        RpcError::Lost { source: LostCause::Protocol(error), .. } => error,
        other => panic!("{other:?}"),
    }
}

async fn broken(bytes: impl Fn(i32) -> Vec<u8> + Send + Sync + Clone + 'static) -> ProtocolError {
    let server = answers(bytes).await;
    // A broken protocol is not retried, even if the call permits it.
    let options = CallOptions::idempotent(Duration::from_secs(20));
    let error = echo(&proxy([server.address.clone()]), "x", options).await.expect_err("is broken");
    assert_eq!(error.outcome(), CallOutcome::Unknown);
    assert_eq!(server.accepted(), 1);
    protocol_error(&error).clone()
}

#[tokio::test]
async fn huge_and_negative_lengths_are_rejected() {
    assert_eq!(broken(|_| vec![0xff; 4]).await, RpcFrameError::Negative(-1).into());
    assert_eq!(broken(|_| vec![0x80, 0, 0, 0]).await, RpcFrameError::Negative(i32::MIN).into());
    let too_long = RpcFrameError::TooLong { length: 0x7fff_ffff, limit: 128 << 20 };
    assert_eq!(broken(|_| vec![0x7f, 0xff, 0xff, 0xff]).await, too_long.into());
}

#[tokio::test]
async fn a_reply_to_an_unknown_call_ends_the_connection() {
    assert_eq!(broken(|id| success(id + 1, b"")).await, ProtocolError::UnknownCall(1));
    assert_eq!(broken(|_| success(i32::MIN, b"")).await, ProtocolError::UnknownCall(i32::MIN));
    assert_eq!(broken(|_| success(-33, b"")).await, ProtocolError::UnexpectedSasl);
}

#[tokio::test]
async fn a_second_reply_ends_the_connection_but_not_the_call() {
    let server = answers(|id| [success(id, b"\x0a\x01y"), success(id, b"")].concat()).await;
    assert_eq!(echo(&proxy([server.address.clone()]), "x", once()).await.expect("came first"), "y");
}

#[tokio::test]
async fn a_web_server_is_recognised() {
    assert_eq!(
        broken(|_| b"HTTP/1.1 404 Not Found\r\n\r\n".to_vec()).await,
        RpcFrameError::Http.into()
    );
}

#[tokio::test]
async fn a_reply_cut_at_any_byte_leaves_the_outcome_unknown() {
    let whole = success(0, b"\x0a\x01y").len();
    let server = Server::start(move |number, mut peer| async move {
        peer.preamble().await;
        let call = peer.call().await.expect("a call comes");
        peer.send(&success(call.id, b"\x0a\x01y")[..number]).await;
    })
    .await;
    for _ in 0..whole {
        // A new client each time: its call has the id 0, so the reply has the length computed above.
        let error = echo(&proxy([server.address.clone()]), "x", once()).await.expect_err("was cut");
        assert_eq!(error.outcome(), CallOutcome::Unknown, "{error:?}");
        assert!(
            matches!(error, RpcError::Lost { source: LostCause::Closed | LostCause::Io(_), .. }),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn a_malformed_reply_fails_only_its_call() {
    let server = Server::start(|_, mut peer| async move {
        peer.preamble().await;
        while let Some(call) = peer.call().await {
            let body = if call.id == 0 { b"\x0a\x7f".to_vec() } else { call.body.to_vec() };
            peer.send(&success(call.id, &body)).await;
        }
    })
    .await;
    let proxy = proxy([server.address.clone()]);
    let error = echo(&proxy, "x", once()).await.expect_err("is cut within");
    assert!(matches!(error, RpcError::Reply { .. }), "{error:?}");
    assert_eq!(error.outcome(), CallOutcome::Answered);
    assert_eq!(echo(&proxy, "x", once()).await.expect("is whole"), "x");
    assert_eq!(server.accepted(), 1);
}

#[tokio::test]
async fn a_hanging_server_costs_one_deadline() {
    let server = Server::start(|number, mut peer| async move {
        if number == 0 {
            peer.preamble().await;
            peer.hang().await;
        } else {
            peer.echo_all().await;
        }
    })
    .await;
    let proxy = proxy([server.address.clone()]);
    let error =
        echo(&proxy, "x", CallOptions::once(Duration::from_millis(100))).await.expect_err("hangs");
    assert!(matches!(error, RpcError::Deadline { sent: true, .. }), "{error:?}");
    assert_eq!(error.outcome(), CallOutcome::Unknown);
    assert_eq!(echo(&proxy, "x", once()).await.expect("goes to a new connection"), "x");
}

#[tokio::test]
async fn a_retried_call_leaves_a_hanging_server() {
    let hanging = Server::start(|_, peer| peer.hang()).await;
    let good = Server::start(|_, peer| peer.echo_all()).await;
    let proxy = proxy([hanging.address.clone(), good.address.clone()]);
    let options = CallOptions::idempotent(Duration::from_secs(20))
        .with_attempt_timeout(Duration::from_millis(100));
    assert_eq!(echo(&proxy, "x", options).await.expect("the other answers"), "x");
    assert_eq!(proxy.server(), Some(&good.address));
}

/// A client with a token that requires security.
fn secured(
    policy: SecurityPolicy,
    options: RpcOptions,
    server: &Server,
) -> heddle_hadoop::rpc::RpcProxy {
    let token = Token::new(*b"identifier", *b"password", "kind", "");
    let login = Login::token(User::new("alice"), token, policy);
    RpcClient::new(options).proxy(PROTOCOL, [server.address.clone()], login)
}

fn required() -> SecurityPolicy {
    SecurityPolicy { required: true, ..SecurityPolicy::default() }
}

fn sasl_error(error: RpcError) -> SaslError {
    match error {
        RpcError::Auth { source: AuthError::Sasl(error), .. } => error,
        other => panic!("{other:?}"),
    }
}

fn auth(method: &str, mechanism: &str, challenge: Option<&'static str>) -> SaslAuth {
    SaslAuth {
        method: method.into(),
        mechanism: mechanism.into(),
        protocol: Some(String::new()),
        server_id: Some("default".into()),
        challenge: challenge.map(|text| text.as_bytes().into()),
    }
}

fn message(state: i32, token: &'static [u8], auths: Vec<SaslAuth>) -> RpcSaslProto {
    RpcSaslProto { version: None, state, token: Some(token.into()), auths }
}

const CHALLENGE: &str =
    "realm=\"default\",nonce=\"n\",qop=\"auth\",charset=utf-8,algorithm=md5-sess";

/// Answers the messages of a secured client in turn. Returns the client's error, after a check that the client sent no
/// bytes after its last message.
async fn negotiation(answers: Vec<Vec<u8>>) -> RpcError {
    let (done, mut ended) = mpsc::channel(1);
    let server = Server::start(move |_, mut peer| {
        let (answers, done) = (answers.clone(), done.clone());
        async move {
            assert_eq!(peer.preamble().await, 0xdf);
            for answer in answers {
                peer.sasl().await;
                peer.send(&answer).await;
            }
            done.send(peer.ends().await).await.expect("the test waits");
        }
    })
    .await;
    let proxy = secured(required(), options(), &server);
    let error = echo(&proxy, "secret", once()).await.expect_err("must not go through");
    assert_eq!(error.outcome(), CallOutcome::NotExecuted);
    assert_eq!(ended.recv().await, Some(true), "the client sent more than it should");
    error
}

#[tokio::test]
async fn a_secured_client_rejects_simple() {
    let offered = sasl(&message(1, b"", vec![auth("SIMPLE", "", None)]));
    assert_eq!(sasl_error(negotiation(vec![offered]).await), SaslError::SimpleRefused);
    let success_at_once = sasl(&message(0, b"", Vec::new()));
    assert_eq!(sasl_error(negotiation(vec![success_at_once]).await), SaslError::SimpleRefused);
}

#[tokio::test]
async fn success_without_the_right_proof_is_rejected() {
    let offered = sasl(&message(1, b"", vec![auth("TOKEN", "DIGEST-MD5", Some(CHALLENGE))]));
    for proof in [&b""[..], b"rspauth=", b"rspauth=0123456789abcdef0123456789abcdef"] {
        let error = negotiation(vec![offered.clone(), sasl(&message(0, proof, Vec::new()))]).await;
        assert!(matches!(sasl_error(error), SaslError::Digest(_)));
    }
}

#[tokio::test]
async fn unknown_states_methods_and_mechanisms_are_rejected() {
    let unknown = negotiation(vec![sasl(&message(77, b"", Vec::new()))]).await;
    assert_eq!(sasl_error(unknown), SaslError::UnknownState(77));
    let kerberos =
        sasl(&message(1, b"", vec![auth("KERBEROS", "GSSAPI", None), auth("MAGIC", "X", None)]));
    assert!(matches!(
        sasl_error(negotiation(vec![kerberos]).await),
        SaslError::NoCommonMethod { .. }
    ));
    let scram = sasl(&message(1, b"", vec![auth("TOKEN", "SCRAM", None)]));
    assert_eq!(sasl_error(negotiation(vec![scram]).await), SaslError::Mechanism("SCRAM".into()));
    let nonsense = sasl(&message(1, b"", vec![auth("TOKEN", "DIGEST-MD5", Some("\"\"\""))]));
    assert!(matches!(sasl_error(negotiation(vec![nonsense]).await), SaslError::Digest(_)));
}

#[tokio::test]
async fn a_rejected_token_has_the_servers_message() {
    let class = "org.apache.hadoop.security.token.SecretManager$InvalidToken";
    let offered = sasl(&message(1, b"", vec![auth("TOKEN", "DIGEST-MD5", Some(CHALLENGE))]));
    let error = negotiation(vec![offered, exception(-33, 2, class)]).await;
    assert!(matches!(
        &error,
        RpcError::Auth { source: AuthError::Refused(exception), .. }
            if exception.is_invalid_token()
    ));
    assert!(error.is_remote("InvalidToken") && !error.is_retryable());
}

#[tokio::test]
async fn replies_before_authentication_are_rejected() {
    let error = negotiation(vec![success(0, b"\x0a\x01y")]).await;
    let RpcError::Connect { source: ConnectError::Handshake(LostCause::Protocol(error)), .. } =
        error
    else {
        panic!("{error:?}")
    };
    assert_eq!(error, ProtocolError::EarlyReply(0));
}

#[tokio::test]
async fn a_handshake_that_hangs_or_ends_is_a_failed_connect() {
    let hanging = Server::start(|_, peer| peer.hang()).await;
    let options = RpcOptions { connect_timeout: Duration::from_millis(100), ..options() };
    let error =
        echo(&secured(required(), options, &hanging), "x", once()).await.expect_err("hangs");
    assert!(
        matches!(error, RpcError::Connect { source: ConnectError::TimedOut(_), .. }),
        "{error:?}"
    );

    let closing = Server::start(|_, mut peer| async move {
        peer.preamble().await;
        peer.sasl().await;
        peer.send(&[0, 0, 0, 9, 1]).await;
    })
    .await;
    let error = echo(&secured(required(), scripted::options(), &closing), "x", once())
        .await
        .expect_err("closes");
    assert!(
        matches!(
            error,
            RpcError::Connect { source: ConnectError::Handshake(LostCause::Closed), .. }
        ),
        "{error:?}"
    );
    assert!(error.is_retryable() && error.outcome() == CallOutcome::NotExecuted);
}

#[tokio::test]
async fn a_refused_connect_differs_from_an_unknown_host() {
    let error =
        echo(&proxy([unused_address().await]), "x", once()).await.expect_err("no process listens");
    assert!(matches!(error, RpcError::Connect { source: ConnectError::Refused, .. }), "{error:?}");
    let unknown = heddle_hadoop::HostPort::new("no.such.host.invalid", 1);
    let error = echo(&proxy([unknown]), "x", once()).await.expect_err("has no address");
    assert!(
        matches!(error, RpcError::Connect { source: ConnectError::Resolve(_), .. }),
        "{error:?}"
    );
}
