//! Arbitrary bytes of a server, in pieces, to a session with SIMPLE and to one with a token.
#![no_main]

use heddle_hadoop::rpc::session::{RpcSession, SessionConfig};
use heddle_hadoop::sasl::SecurityPolicy;
use heddle_hadoop::{Token, User};
use libfuzzer_sys::fuzz_target;

fn session(token: Option<Token>) -> RpcSession {
    RpcSession::start(SessionConfig {
        protocol: "p".into(),
        user: User::new("u"),
        token,
        policy: SecurityPolicy::default(),
        cnonce: "c".into(),
        client_id: [7; 16],
        response_max: 1 << 16,
        request_max: 1 << 16,
        caller_context: None,
    })
}

fuzz_target!(|bytes: &[u8]| {
    for token in [None, Some(Token::new(*b"i", *b"p", "k", "s"))] {
        let mut session = session(token);
        for piece in bytes.chunks(7) {
            session.receive(piece);
            loop {
                match session.poll() {
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(_) => return,
                }
            }
        }
        if session.is_open() {
            session.ping();
        }
    }
});
