//! The session with captured bytes of Hadoop's own client and server, and with malformed bytes.

use bytes::Buf as _;

use super::*;
use crate::proto::common::RequestHeaderProto;
use crate::rpc::error::ProtocolError;
use crate::sasl::fixture::{GOLDEN, Golden, golden_token};
use crate::sasl::{LayerError, Qop};
use proptest::prelude::*;

const PROTOCOL: &str = "org.apache.hadoop.yarn.api.ApplicationMasterProtocolPB";
const CLIENT_ID: [u8; 16] = *b"0123456789abcdef";

fn config(token: Option<Token>, protection: Qop) -> SessionConfig {
    let golden = GOLDEN.iter().find(|golden| golden.qop == protection);
    SessionConfig {
        protocol: PROTOCOL.into(),
        user: User::new("alice"),
        token,
        policy: SecurityPolicy { protection: vec![protection], ..SecurityPolicy::default() },
        cnonce: golden.expect("one for each").cnonce.into(),
        client_id: CLIENT_ID,
        response_max: 1 << 20,
        request_max: 1 << 20,
        caller_context: None,
    }
}

fn simple() -> RpcSession {
    RpcSession::start(config(None, Qop::Auth))
}

fn sent(session: &mut RpcSession) -> String {
    let (_, output) = session.buffers();
    hex::encode(output.split())
}

fn id_hex() -> String {
    hex::encode(CLIENT_ID)
}

/// A frame of a server's reply.
fn reply(header: &RpcResponseHeaderProto, rest: &[u8]) -> Vec<u8> {
    let mut frame = BytesMut::new();
    let header = header.encode_length_delimited_to_vec();
    frame.put_u32(u32::try_from(header.len() + rest.len()).expect("short"));
    frame.extend_from_slice(&header);
    frame.extend_from_slice(rest);
    frame.to_vec()
}

fn response(call_id: i32, status: i32) -> RpcResponseHeaderProto {
    RpcResponseHeaderProto {
        call_id: call_id.cast_unsigned(),
        status,
        ..RpcResponseHeaderProto::default()
    }
}

fn sasl_reply(
    state: SaslState,
    token: &[u8],
    auths: Vec<crate::proto::common::rpc_sasl_proto::SaslAuth>,
) -> Vec<u8> {
    let message = RpcSaslProto {
        version: None,
        state: state as i32,
        token: Some(Bytes::copy_from_slice(token)),
        auths,
    };
    reply(&response(-33, 0), &message.encode_length_delimited_to_vec())
}

fn offer(golden: &Golden) -> Vec<u8> {
    let auth = crate::proto::common::rpc_sasl_proto::SaslAuth {
        method: "TOKEN".into(),
        mechanism: "DIGEST-MD5".into(),
        protocol: Some(String::new()),
        server_id: Some("default".into()),
        challenge: Some(golden.challenge().into()),
    };
    sasl_reply(SaslState::Negotiate, b"", vec![auth])
}

/// A session that has authenticated with the golden token.
fn open(golden: &Golden) -> RpcSession {
    let mut session = RpcSession::start(config(Some(golden_token()), golden.qop));
    session.receive(&offer(golden));
    assert!(session.poll().expect("is an offer").is_none());
    let proof = format!("rspauth={}", golden.rspauth);
    session.receive(&sasl_reply(SaslState::Success, proof.as_bytes(), Vec::new()));
    let event = session.poll().expect("is a proof");
    assert!(matches!(event, Some(SessionEvent::Open(AuthMethod::Token))), "{event:?}");
    session
}

fn register() -> CallFrame {
    // host "h", port 0, tracking URL empty.
    let body = hex::decode("0a0168".to_owned() + "1000" + "1a00").expect("hex");
    CallFrame {
        id: 0,
        retry: 0,
        method: "registerApplicationMaster".into(),
        body: Delimited::of_encoded(&body),
    }
}

fn register_hex() -> String {
    let (method, protocol) = (hex::encode("registerApplicationMaster"), hex::encode(PROTOCOL));
    format!(
        "000000791a0802100018002210{}2800550a19{method}1236{protocol}1801070a016810001a00",
        id_hex()
    )
}

/// The server's answer to it: one field, the queue `default`.
fn register_reply() -> Vec<u8> {
    hex::decode(format!("000000251a0800100018093a10{}4000092a0764656661756c74", id_hex()))
        .expect("hex")
}

#[test]
fn a_simple_connection_begins_with_preamble_and_context() {
    let mut session = simple();
    let protocol = hex::encode(PROTOCOL);
    let context = format!(
        "0000005d1a0802100018052210{}2801411207{}1a36{protocol}",
        id_hex(),
        "0a05616c696365"
    );
    // The context has 7 bytes more than that of a token: the user's name.
    assert_eq!(sent(&mut session), format!("6872706309 00 00 {context}").replace(' ', ""));
    assert!(matches!(session.poll(), Ok(Some(SessionEvent::Open(AuthMethod::Simple)))));
}

#[test]
fn a_proxy_user_names_the_real_one() {
    let mut session = RpcSession::start(SessionConfig {
        user: User::proxy("alice", "oozie"),
        ..config(None, Qop::Auth)
    });
    let sent = sent(&mut session);
    assert!(sent.contains("0a05616c69636512056f6f7a6965"), "{sent}");
}

#[test]
fn a_token_connection_equals_javas_bytes() {
    let mut session = RpcSession::start(config(Some(golden_token()), Qop::Auth));
    assert_eq!(
        sent(&mut session),
        "68727063 09 00 df 0000000e 0a 08021000184122002801 02 1001".replace(' ', "")
    );
    let mut session = open(&GOLDEN[0]);
    let protocol = hex::encode(PROTOCOL);
    let context = format!("000000561a0802100018052210{}28013a12001a36{protocol}", id_hex());
    let all = sent(&mut session);
    assert!(all.ends_with(&context), "{all}");
    session.send(&register()).expect("is short");
    assert_eq!(sent(&mut session), register_hex());
    session.receive(&register_reply());
    let event = session.poll();
    let Ok(Some(SessionEvent::Reply { id: 0, result: Ok(mut body) })) = event else {
        panic!("{event:?}")
    };
    assert_eq!(take_delimited(&mut body, "the reply"), Ok(Bytes::from_static(b"\x2a\x07default")));
}

#[test]
fn retries_are_numbered_and_keep_their_id() {
    let mut session = open(&GOLDEN[0]);
    sent(&mut session);
    session.send(&CallFrame { retry: 3, ..register() }).expect("is short");
    let header = format!("1a0802100018002210{}2806", id_hex());
    assert!(sent(&mut session).contains(&header));
}

#[test]
fn the_caller_context_is_in_the_header_of_calls() {
    let mut session = RpcSession::start(SessionConfig {
        caller_context: Some("job-7".into()),
        ..config(None, Qop::Auth)
    });
    sent(&mut session);
    session.send(&register()).expect("is short");
    assert!(sent(&mut session).contains(&format!("3a070a05{}", hex::encode("job-7"))));
}

#[test]
fn pings_are_a_header_only() {
    let mut session = simple();
    sent(&mut session);
    session.ping();
    assert_eq!(sent(&mut session), format!("0000001b1a0802100018072210{}2801", id_hex()));
}

#[test]
fn a_layer_wraps_both_directions() {
    for golden in &GOLDEN[1..] {
        let mut session = open(golden);
        let mut server = golden.server_layer().expect("has a layer");
        session.send(&register()).expect("is short");
        let (_, output) = session.buffers();
        let mut frames = FrameDecoder::new(1 << 20);
        frames.extend(&output.split());
        // NEGOTIATE and INITIATE are behind preamble bytes; find the wrapped ones from the end of INITIATE.
        frames.buffer_mut().advance(7);
        let mut clear = Vec::new();
        while let Some(mut frame) = frames.next_frame().expect("is a frame") {
            let head: RpcRequestHeaderProto = take_message(&mut frame, "header").expect("is one");
            assert_eq!((head.call_id, head.client_id.len()), (-33, 0));
            let message: RpcSaslProto = take_message(&mut frame, "sasl").expect("is one");
            if message.state() == SaslState::Wrap {
                clear.extend(server.unwrap(&message.token.expect("has one")).expect("is good"));
            }
        }
        let clear = hex::encode(clear);
        assert!(clear.starts_with("00000056"), "the context comes first: {clear}");
        assert!(clear.ends_with(&register_hex()), "{clear}");

        // One reply cut into three wrapped pieces, the last of which begins another.
        let bytes = [register_reply(), register_reply()].concat();
        for piece in [&bytes[..3], &bytes[3..50], &bytes[50..]] {
            session.receive(&sasl_reply(SaslState::Wrap, &server.wrap(piece), Vec::new()));
        }
        for _ in 0..2 {
            let event = session.poll();
            assert!(
                matches!(event, Ok(Some(SessionEvent::Reply { id: 0, result: Ok(_) }))),
                "{event:?}"
            );
        }
        assert!(matches!(session.poll(), Ok(None)));
    }
}

#[test]
fn long_requests_are_split_under_a_layer() {
    let mut session = open(&GOLDEN[2]);
    let mut server = GOLDEN[2].server_layer().expect("has a layer");
    sent(&mut session);
    // The context was the first wrapped message.
    let context = hex::decode(format!(
        "000000561a0802100018052210{}28013a12001a36{}",
        id_hex(),
        hex::encode(PROTOCOL)
    ));
    let mut ahead = GOLDEN[2].exchange().into_layer().expect("has a layer");
    let wrapped = ahead.wrap(&context.expect("hex")).expect("DIGEST-MD5 wraps all messages");
    server.unwrap(&wrapped).expect("is the context");
    let body = Delimited::of_encoded(&vec![7; 200_000]);
    session.send(&CallFrame { body, ..register() }).expect("fits");
    let (_, output) = session.buffers();
    let mut frames = FrameDecoder::new(1 << 20);
    frames.extend(&output.split());
    let mut clear = Vec::new();
    let mut pieces = 0;
    while let Some(mut frame) = frames.next_frame().expect("is a frame") {
        let _: RpcRequestHeaderProto = take_message(&mut frame, "header").expect("is one");
        let message: RpcSaslProto = take_message(&mut frame, "sasl").expect("is one");
        let token = message.token.expect("has one");
        assert!(token.len() <= 65_536, "{}", token.len());
        clear.extend(server.unwrap(&token).expect("is good"));
        pieces += 1;
    }
    assert_eq!(pieces, 4);
    let length = u32::from_be_bytes(clear[..4].try_into().expect("4 bytes"));
    assert_eq!(usize::try_from(length), Ok(clear.len() - 4));
}

#[test]
fn requests_beyond_the_limit_leave_the_output_unchanged() {
    let mut session =
        RpcSession::start(SessionConfig { request_max: 300, ..config(None, Qop::Auth) });
    sent(&mut session);
    let body = Delimited::of_encoded(&[0; 300]);
    assert!(matches!(
        session.send(&CallFrame { body, ..register() }),
        Err(RpcFrameError::TooLong { .. })
    ));
    assert_eq!(sent(&mut session), "");
}

#[test]
fn exceptions_differ_from_fatal_errors() {
    let mut session = simple();
    session.poll().expect("is open");
    let mut header = response(5, 1);
    header.exception_class_name = Some("java.io.IOException".into());
    header.error_msg = Some("no\n\tat X".into());
    session.receive(&reply(&header, b""));
    let event = session.poll();
    let Ok(Some(SessionEvent::Reply { id: 5, result: Err(exception) })) = event else {
        panic!("{event:?}")
    };
    assert_eq!((exception.message(), exception.is_fatal()), ("no", false));
    header.status = 2;
    header.call_id = u32::MAX;
    session.receive(&reply(&header, b""));
    assert!(matches!(
        session.poll(),
        Ok(Some(SessionEvent::Fatal { id: -1, exception })) if exception.is_fatal()
    ));
}

/// Polls to the end and returns the error.
fn fault(session: &mut RpcSession, bytes: &[u8]) -> Option<RpcSessionError> {
    session.receive(bytes);
    loop {
        match session.poll() {
            Ok(Some(_)) => {}
            Ok(None) => return None,
            Err(error) => return Some(error),
        }
    }
}

fn protocol_fault(session: &mut RpcSession, bytes: &[u8]) -> ProtocolError {
    match fault(session, bytes) {
        Some(RpcSessionError::Protocol(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn lengths_are_checked_first() {
    let fault = |bytes: [u8; 4]| protocol_fault(&mut simple(), &bytes);
    assert_eq!(fault([0xff; 4]), RpcFrameError::Negative(-1).into());
    assert_eq!(fault([0x80, 0, 0, 0]), RpcFrameError::Negative(i32::MIN).into());
    let length = 0x7fff_ffff;
    assert_eq!(
        fault([0x7f, 0xff, 0xff, 0xff]),
        RpcFrameError::TooLong { length, limit: 1 << 20 }.into()
    );
    assert_eq!(fault(*b"HTTP"), RpcFrameError::Http.into());
}

#[test]
fn before_authentication_frames_must_be_short() {
    let mut session = RpcSession::start(config(Some(golden_token()), Qop::Auth));
    let too_long = RpcFrameError::TooLong { length: 1 << 19, limit: 256 << 10 };
    assert_eq!(protocol_fault(&mut session, &[0, 8, 0, 0]), too_long.into());
    assert!(fault(&mut open(&GOLDEN[0]), &[0, 8, 0, 0]).is_none());
}

#[test]
fn an_announced_length_allocates_no_memory() {
    let mut session = simple();
    session.receive(&[0, 0x10, 0, 0]);
    assert!(matches!(session.poll(), Ok(Some(SessionEvent::Open(_)))));
    assert!(matches!(session.poll(), Ok(None)));
    assert!(session.buffers().0.capacity() < 1024);
}

#[test]
fn malformed_bytes_are_a_typed_error() {
    let foreign =
        RpcResponseHeaderProto { client_id: Some(Bytes::from_static(&[1; 16])), ..response(0, 0) };
    for (bytes, expected) in [
        (reply(&response(-33, 0), &[2, 0x10, 5]), ProtocolError::UnexpectedSasl),
        (reply(&response(0, 7), b""), ProtocolError::UnknownStatus(7)),
        (reply(&foreign, b"\0"), ProtocolError::ForeignClient),
    ] {
        assert_eq!(protocol_fault(&mut simple(), &bytes), expected);
    }
    let empty = protocol_fault(&mut simple(), &[0, 0, 0, 0]);
    assert!(matches!(empty, ProtocolError::Frame(RpcFrameError::Malformed { .. })), "{empty:?}");
}

#[test]
fn a_reply_before_authentication_is_rejected() {
    let mut session = RpcSession::start(config(Some(golden_token()), Qop::Auth));
    assert_eq!(protocol_fault(&mut session, &register_reply()), ProtocolError::EarlyReply(0));
}

#[test]
fn a_layer_rejects_unprotected_and_changed_messages() {
    for golden in &GOLDEN[1..] {
        assert_eq!(
            protocol_fault(&mut open(golden), &register_reply()),
            ProtocolError::Unprotected
        );
        let plain = sasl_reply(SaslState::Success, b"x", Vec::new());
        assert_eq!(protocol_fault(&mut open(golden), &plain), ProtocolError::Unprotected);
        let mut fatal = response(-1, 2);
        fatal.exception_class_name = Some("forged".into());
        assert_eq!(
            protocol_fault(&mut open(golden), &reply(&fatal, b"")),
            ProtocolError::Unprotected
        );
        let mut token = golden.server_layer().expect("has a layer").wrap(&register_reply());
        token[0] ^= 1;
        let changed =
            protocol_fault(&mut open(golden), &sasl_reply(SaslState::Wrap, &token, Vec::new()));
        assert_eq!(changed, LayerError::Integrity.into());
        // Lengths inside the protection are bounded too.
        let huge = golden.server_layer().expect("has a layer").wrap(&[0x7f, 0xff, 0xff, 0xff]);
        let huge =
            protocol_fault(&mut open(golden), &sasl_reply(SaslState::Wrap, &huge, Vec::new()));
        assert!(matches!(huge, ProtocolError::Frame(RpcFrameError::TooLong { .. })), "{huge:?}");
    }
}

#[test]
fn debug_output_has_neither_secrets_nor_payloads() {
    let token = Token::new(*b"identifier", *b"canary-password", "k", "s");
    let mut session = RpcSession::start(config(Some(token.clone()), Qop::Auth));
    session.receive(b"canary-reply");
    let call = CallFrame { body: Delimited::of_encoded(b"canary-request"), ..register() };
    let event = SessionEvent::Reply { id: 1, result: Ok(Bytes::from_static(b"canary-body")) };
    let login = crate::rpc::Login::token(User::new("alice"), token, SecurityPolicy::default());
    let shown = format!("{session:?} {call:?} {event:?} {login:?}");
    // As text, and as the numbers of `c`, `a`, `n`.
    assert!(!shown.contains("canary") && !shown.contains("99, 97, 110"), "{shown}");
}

/// The bytes of a server on a working connection.
fn conversation() -> Vec<Vec<u8>> {
    let proof = format!("rspauth={}", GOLDEN[0].rspauth);
    vec![
        offer(&GOLDEN[0]),
        sasl_reply(SaslState::Success, proof.as_bytes(), Vec::new()),
        register_reply(),
    ]
}

#[test]
fn a_conversation_cut_at_any_byte_waits_for_more() {
    let bytes = conversation().concat();
    for cut in 0..bytes.len() {
        let mut session = RpcSession::start(config(Some(golden_token()), Qop::Auth));
        assert!(fault(&mut session, &bytes[..cut]).is_none(), "{cut}");
        assert!(fault(&mut session, &bytes[cut..]).is_none(), "{cut}");
    }
}

#[test]
fn frames_that_are_themselves_cut_are_errors() {
    let frames = conversation();
    for (index, frame) in frames.iter().enumerate() {
        for cut in 4..frame.len() {
            let mut session = RpcSession::start(config(Some(golden_token()), Qop::Auth));
            for before in &frames[..index] {
                assert!(fault(&mut session, before).is_none());
            }
            let mut short = frame[..cut].to_vec();
            short[..4].copy_from_slice(&u32::try_from(cut - 4).expect("short").to_be_bytes());
            let end = fault(&mut session, &short);
            // The caller decodes the body of a reply and rejects it there.
            let is_callers = index == 2 && cut >= 31;
            assert_eq!(end.is_none(), is_callers, "frame {index} cut at {cut}: {end:?}");
        }
    }
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(
        with_token: bool,
        good in 0_usize..3,
        frames in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..60), 0..6),
    ) {
        let mut session = RpcSession::start(config(with_token.then(golden_token), Qop::Auth));
        for frame in conversation().iter().take(if with_token { good } else { 0 }) {
            prop_assert!(fault(&mut session, frame).is_none());
        }
        for frame in frames {
            let mut bytes = u32::try_from(frame.len()).unwrap_or(0).to_be_bytes().to_vec();
            bytes.extend_from_slice(&frame);
            if fault(&mut session, &bytes).is_some() {
                break;
            }
        }
    }

    #[test]
    fn changed_bytes_of_a_good_conversation_never_panic(
        position: prop::sample::Index,
        change in 1_u8..,
    ) {
        let mut bytes = conversation().concat();
        let position = position.index(bytes.len());
        bytes[position] ^= change;
        let mut session = RpcSession::start(config(Some(golden_token()), Qop::Auth));
        let _ = fault(&mut session, &bytes);
    }

    #[test]
    fn requests_decode_as_they_were_meant(
        id in 0_i32..,
        retry in 0_i32..,
        method in "[a-z]{1,20}",
        body: Vec<u8>,
    ) {
        let mut session = simple();
        session.buffers().1.clear();
        let encoded = Delimited::of_encoded(&body);
        let frame = CallFrame { id, retry, method: method.clone(), body: encoded };
        session.send(&frame).expect("fits");
        let mut frames = FrameDecoder::new(1 << 20);
        frames.extend(session.buffers().1);
        let mut frame = frames.next_frame().expect("is one").expect("is whole");
        let head: RpcRequestHeaderProto = take_message(&mut frame, "header").expect("is one");
        let request: RequestHeaderProto = take_message(&mut frame, "request").expect("is one");
        prop_assert_eq!((head.call_id, head.retry_count()), (id, retry));
        prop_assert_eq!((request.method_name, request.client_protocol_version), (method, 1));
        prop_assert_eq!(take_delimited(&mut frame, "body").expect("is one"), Bytes::from(body));
    }
}
