//! SASL messages from arbitrary bytes, each after a length byte, to a client that requires security. The negotiation never
//! succeeds, because the fuzzer does not have the password.
#![no_main]

use heddle_hadoop::Token;
use heddle_hadoop::sasl::{Negotiation, SecurityPolicy, Step};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let policy = SecurityPolicy { required: true, ..SecurityPolicy::default() };
    let token = Token::new(*b"i", *b"a password of some length", "k", "s");
    let (mut negotiation, _) = Negotiation::start(Some(token), policy, "c".into());
    let mut rest = bytes;
    while let Some((length, after)) = rest.split_first() {
        let (message, after) = after.split_at(usize::from(*length).min(after.len()));
        rest = after;
        match negotiation.receive(&message.to_vec().into()) {
            Ok(Step::Send(_)) => {}
            Ok(agreed) => panic!("the client accepted a server without a proof: {agreed:?}"),
            Err(_) => return,
        }
    }
});
