//! The client's side of the SASL exchange before the first call of a connection.
//!
//! ```text
//!  start ─NEGOTIATE─▶ Offered? ─SUCCESS─▶ SIMPLE, unless security is required
//!                        │NEGOTIATE(auths): the first supported method
//!                        ├─ TOKEN with challenge ──INITIATE(response)──▶ Proof? ─SUCCESS(rspauth)─▶ agreed
//!                        ├─ TOKEN without ──INITIATE()──▶ Challenge? ─CHALLENGE─RESPONSE──▶ Proof?
//!                        ├─ KERBEROS ──INITIATE(ticket)──▶ Kerberos ─CHALLENGE─RESPONSE─ twice ─SUCCESS──▶ agreed
//!                        └─ SIMPLE ──INITIATE()──▶ agreed (the server sends no reply)
//! ```
//!
//! Every other message is an error. **No downgrade**: a client that requires security accepts neither SIMPLE from the
//! list nor a SUCCESS before the server has proved that it has the token's password or its own Kerberos key.

use bytes::Bytes;
use prost::Message;

use super::digest::{DigestError, DigestExchange};
use super::kerberos_exchange::{KerberosExchange, KerberosFailure};
use super::layer::Layer;
use super::offer::{Offer, OfferedAuth};
use super::policy::SecurityPolicy;
use crate::kerberos::KerberosTicket;
use crate::proto::common::RpcSaslProto;
use crate::proto::common::rpc_sasl_proto::SaslState;
use crate::token::Token;

/// The authentication method of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AuthMethod {
    /// The server accepts the user name that the client sends.
    Simple,
    /// A token; its owner is the user.
    Token,
    /// A Kerberos ticket; its principal is the user.
    Kerberos,
}

/// Why authentication fails. Another try with the same input fails again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SaslError {
    /// The server offers SIMPLE, or gives up authentication, and the configuration requires security.
    #[error(
        "the server asks for SIMPLE authentication, but this configuration requires security \
         (hadoop.security.authentication; ipc.client.fallback-to-simple-auth-allowed would permit it)"
    )]
    SimpleRefused,
    /// The client supports none of the server's methods.
    #[error(
        "cannot authenticate: the server offers {offered:?} (the token is {}, the Kerberos ticket \
         is {}, SIMPLE is {})",
        if *has_token { "present" } else { "missing" },
        if *has_ticket { "present" } else { "missing" },
        if *simple_allowed { "allowed" } else { "not allowed" }
    )]
    NoCommonMethod {
        /// Methods in the server's order, such as `TOKEN`, `KERBEROS`.
        offered: Vec<String>,
        /// Whether the client had a token for this connection.
        has_token: bool,
        /// Whether the client had a Kerberos ticket for this server.
        has_ticket: bool,
        /// Whether the client may fall back to SIMPLE.
        simple_allowed: bool,
    },
    /// The server's TOKEN method uses another mechanism than DIGEST-MD5 (`hadoop.security.sasl.mechanism`, 3.5).
    #[error("the server's TOKEN method uses the mechanism {0}, only DIGEST-MD5 is known")]
    Mechanism(String),
    /// The server ends the exchange before its proof.
    #[error("the server ended the authentication before it was complete")]
    EarlySuccess,
    /// A message that is not valid in this state.
    #[error("the server must send {expected} (got {message})")]
    OutOfOrder {
        /// Name of the state in the message.
        message: &'static str,
        /// The valid states.
        expected: &'static str,
    },
    /// An unknown state number.
    #[error("the server sent the unknown state {0}")]
    UnknownState(i32),
    /// The message does not decode.
    #[error("cannot decode the server's message")]
    Malformed(#[from] prost::DecodeError),
    /// Kerberos failed.
    #[error("cannot authenticate by Kerberos")]
    Kerberos(#[from] KerberosFailure),
    /// DIGEST-MD5 failed.
    #[error("DIGEST-MD5 failed")]
    Digest(#[from] DigestError),
}

/// The result of a negotiation.
#[derive(Debug)]
pub struct Agreed {
    /// The method; it determines the user in the connection context.
    pub method: AuthMethod,
    /// The security layer of the connection, if any.
    pub layer: Option<Layer>,
}

/// The next action of the connection.
#[derive(Debug)]
pub enum Step {
    /// Send this `RpcSaslProto` (encoded, without length) and wait.
    Send(Bytes),
    /// Send this, then the connection context.
    SendAndFinish(Bytes, Agreed),
    /// Send the connection context.
    Finish(Agreed),
}

/// One negotiation.
#[derive(Debug)]
pub struct Negotiation {
    token: Option<Token>,
    ticket: Option<KerberosTicket>,
    policy: SecurityPolicy,
    cnonce: String,
    state: NegotiationState,
}

#[derive(Debug)]
enum NegotiationState {
    AwaitOffer,
    AwaitChallenge(Token),
    /// `verified`: the proof arrived in a CHALLENGE, and only SUCCESS is valid now.
    AwaitSuccess {
        exchange: DigestExchange,
        verified: bool,
    },
    Kerberos(KerberosExchange),
    Over,
}

impl Negotiation {
    /// Starts a negotiation and returns its first message (NEGOTIATE).
    ///
    /// The client authenticates with `token` if the server accepts tokens. `cnonce` is new random text without `"` and
    /// `\`.
    pub fn start(token: Option<Token>, policy: SecurityPolicy, cnonce: String) -> (Self, Bytes) {
        (
            Self { token, ticket: None, policy, cnonce, state: NegotiationState::AwaitOffer },
            message(SaslState::Negotiate, None),
        )
    }

    /// Authenticates with this ticket if the server accepts Kerberos and there is no token.
    #[must_use]
    pub fn with_ticket(self, ticket: Option<KerberosTicket>) -> Self {
        Self { ticket, ..self }
    }

    /// Handles the server's next message, an encoded `RpcSaslProto`.
    ///
    /// # Errors
    /// Any [`SaslError`]; the caller then closes the connection and sends nothing.
    pub fn receive(&mut self, bytes: &Bytes) -> Result<Step, SaslError> {
        let offer = Offer::decode(bytes)?;
        let state = SaslState::try_from(offer.message.state)
            .map_err(|_| SaslError::UnknownState(offer.message.state))?;
        let token = offer.message.token.clone();
        match (std::mem::replace(&mut self.state, NegotiationState::Over), state) {
            (NegotiationState::AwaitOffer, SaslState::Negotiate) => self.choose(&offer.auths),
            (NegotiationState::AwaitOffer, SaslState::Success) => {
                self.require_simple()?;
                Ok(Step::Finish(Agreed { method: AuthMethod::Simple, layer: None }))
            }
            (NegotiationState::AwaitChallenge(own), SaslState::Challenge) => {
                let exchange = self.answer(&own, &token.unwrap_or_default())?;
                let reply = message(SaslState::Response, Some(exchange.response()));
                self.state = NegotiationState::AwaitSuccess { exchange, verified: false };
                Ok(Step::Send(reply))
            }
            (
                NegotiationState::AwaitSuccess { exchange, verified: false },
                SaslState::Challenge,
            ) => {
                // RFC 2831 permits the proof as a last challenge. Its response is empty.
                exchange.verify(&token.unwrap_or_default())?;
                self.state = NegotiationState::AwaitSuccess { exchange, verified: true };
                Ok(Step::Send(message(SaslState::Response, Some(&[]))))
            }
            (NegotiationState::AwaitSuccess { exchange, verified }, SaslState::Success) => {
                match token {
                    Some(proof) if !verified => exchange.verify(&proof)?,
                    None if verified => {}
                    Some(proof) if proof.is_empty() => {}
                    _ => return Err(SaslError::EarlySuccess),
                }
                Ok(Step::Finish(Agreed { method: AuthMethod::Token, layer: exchange.into_layer() }))
            }
            (NegotiationState::Kerberos(mut exchange), SaslState::Challenge) => {
                let challenge = token.unwrap_or_default();
                let answer = exchange.answer(&challenge, &self.policy.protection)?;
                self.state = NegotiationState::Kerberos(exchange);
                // The token is present also if it is empty: servers require the field.
                Ok(Step::Send(message(SaslState::Response, Some(&answer))))
            }
            (NegotiationState::Kerberos(exchange), SaslState::Success) => {
                let layer = exchange
                    .finish()
                    .map_err(|failure| failure.map_or(SaslError::EarlySuccess, Into::into))?;
                Ok(Step::Finish(Agreed { method: AuthMethod::Kerberos, layer }))
            }
            (NegotiationState::AwaitChallenge(_), SaslState::Success) => {
                Err(SaslError::EarlySuccess)
            }
            (before, _) => {
                Err(SaslError::OutOfOrder { message: name(state), expected: before.expects() })
            }
        }
    }

    /// Selects the first supported entry.
    fn choose(&mut self, auths: &[OfferedAuth]) -> Result<Step, SaslError> {
        let mut unknown_mechanism = None;
        for offered in auths {
            match offered.auth.method.as_str() {
                "TOKEN" => {
                    let Some(token) = self.token.clone() else {
                        continue;
                    };
                    if offered.auth.mechanism != "DIGEST-MD5" {
                        unknown_mechanism = Some(offered.auth.mechanism.clone());
                        continue;
                    }
                    let Some(challenge) = &offered.auth.challenge else {
                        self.state = NegotiationState::AwaitChallenge(token);
                        return Ok(Step::Send(offered.initiate(&[])));
                    };
                    let exchange = self.answer(&token, challenge)?;
                    let initiate = offered.initiate(exchange.response());
                    self.state = NegotiationState::AwaitSuccess { exchange, verified: false };
                    return Ok(Step::Send(initiate));
                }
                "SIMPLE" if self.simple_allowed() => {
                    let agreed = Agreed { method: AuthMethod::Simple, layer: None };
                    return Ok(Step::SendAndFinish(offered.initiate(&[]), agreed));
                }
                "KERBEROS" if offered.auth.mechanism == "GSSAPI" => {
                    let Some(ticket) = self.ticket.take() else {
                        continue;
                    };
                    let (protocol, id) = (offered.auth.protocol(), offered.auth.server_id());
                    let (exchange, first) = KerberosExchange::start(ticket, protocol, id)?;
                    self.state = NegotiationState::Kerberos(exchange);
                    return Ok(Step::Send(offered.initiate(&first)));
                }
                // PLAIN and later methods.
                _ => {}
            }
        }
        if let Some(mechanism) = unknown_mechanism {
            return Err(SaslError::Mechanism(mechanism));
        }
        if !auths.is_empty() && auths.iter().all(|offered| offered.auth.method == "SIMPLE") {
            return Err(SaslError::SimpleRefused);
        }
        Err(SaslError::NoCommonMethod {
            offered: auths.iter().map(|offered| offered.auth.method.clone()).collect(),
            has_token: self.token.is_some(),
            has_ticket: self.ticket.is_some(),
            simple_allowed: self.simple_allowed(),
        })
    }

    fn answer(&self, token: &Token, challenge: &[u8]) -> Result<DigestExchange, DigestError> {
        DigestExchange::answer(challenge, token, &self.policy.protection, &self.cnonce)
    }

    fn simple_allowed(&self) -> bool {
        !self.policy.required || self.policy.fallback_to_simple
    }

    fn require_simple(&self) -> Result<(), SaslError> {
        if self.simple_allowed() { Ok(()) } else { Err(SaslError::SimpleRefused) }
    }
}

impl NegotiationState {
    fn expects(&self) -> &'static str {
        match self {
            Self::AwaitOffer => "NEGOTIATE",
            Self::AwaitChallenge(_) => "CHALLENGE",
            Self::AwaitSuccess { .. } => "SUCCESS",
            Self::Kerberos(_) => "CHALLENGE or SUCCESS",
            Self::Over => "nothing",
        }
    }
}

fn name(state: SaslState) -> &'static str {
    state.as_str_name()
}

fn message(state: SaslState, token: Option<&[u8]>) -> Bytes {
    let message = RpcSaslProto {
        version: None,
        state: state as i32,
        token: token.map(Bytes::copy_from_slice),
        auths: Vec::new(),
    };
    message.encode_to_vec().into()
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{GOLDEN, golden_token};
    use super::*;
    use crate::proto::common::rpc_sasl_proto::SaslAuth;
    use proptest::prelude::*;

    fn auth(method: &str, mechanism: &str, challenge: Option<&str>) -> SaslAuth {
        let is_simple = method == "SIMPLE";
        SaslAuth {
            method: method.into(),
            mechanism: mechanism.into(),
            protocol: (!is_simple).then(String::new),
            server_id: (!is_simple).then(|| "default".into()),
            challenge: challenge.map(|text| Bytes::copy_from_slice(text.as_bytes())),
        }
    }

    fn token_auth() -> SaslAuth {
        auth("TOKEN", "DIGEST-MD5", Some(&GOLDEN[0].challenge()))
    }

    fn server(state: SaslState, token: Option<&str>, auths: Vec<SaslAuth>) -> Bytes {
        let message = RpcSaslProto {
            version: Some(0),
            state: state as i32,
            token: token.map(|text| Bytes::copy_from_slice(text.as_bytes())),
            auths,
        };
        message.encode_to_vec().into()
    }

    fn offer(auths: Vec<SaslAuth>) -> Bytes {
        server(SaslState::Negotiate, None, auths)
    }

    fn proof() -> String {
        format!("rspauth={}", GOLDEN[0].rspauth)
    }

    fn secured() -> SecurityPolicy {
        SecurityPolicy { required: true, ..SecurityPolicy::default() }
    }

    fn with_token(policy: SecurityPolicy) -> Negotiation {
        Negotiation::start(Some(golden_token()), policy, GOLDEN[0].cnonce.into()).0
    }

    fn without_token(policy: SecurityPolicy) -> Negotiation {
        Negotiation::start(None, policy, GOLDEN[0].cnonce.into()).0
    }

    fn decoded(bytes: &Bytes) -> RpcSaslProto {
        RpcSaslProto::decode(bytes.clone()).expect("is a message")
    }

    #[test]
    fn the_first_message_equals_javas() {
        let (_, first) = Negotiation::start(None, SecurityPolicy::default(), String::new());
        assert_eq!(hex::encode(first), "1001");
    }

    #[test]
    fn a_token_authenticates_both_sides() {
        let mut negotiation = with_token(secured());
        let Ok(Step::Send(initiate)) = negotiation.receive(&offer(vec![token_auth()])) else {
            panic!("goes on")
        };
        let initiate = decoded(&initiate);
        assert_eq!(initiate.state(), SaslState::Initiate);
        assert_eq!(initiate.auths, [auth("TOKEN", "DIGEST-MD5", None)]);
        let response =
            String::from_utf8(initiate.token.unwrap_or_default().to_vec()).expect("text");
        assert!(response.contains(GOLDEN[0].response), "{response}");
        let done = negotiation.receive(&server(SaslState::Success, Some(&proof()), Vec::new()));
        assert!(
            matches!(done, Ok(Step::Finish(Agreed { method: AuthMethod::Token, layer: None }))),
            "{done:?}"
        );
    }

    #[test]
    fn a_challenge_may_be_a_separate_message() {
        let mut negotiation = with_token(secured());
        let bare = offer(vec![auth("TOKEN", "DIGEST-MD5", None)]);
        let Ok(Step::Send(initiate)) = negotiation.receive(&bare) else { panic!("goes on") };
        assert_eq!(decoded(&initiate).token.as_deref(), Some(&b""[..]));
        let challenge = server(SaslState::Challenge, Some(&GOLDEN[0].challenge()), Vec::new());
        let Ok(Step::Send(response)) = negotiation.receive(&challenge) else { panic!("goes on") };
        assert_eq!(decoded(&response).state(), SaslState::Response);
        // The proof as a last challenge, then SUCCESS without a token.
        let last = server(SaslState::Challenge, Some(&proof()), Vec::new());
        assert!(matches!(negotiation.receive(&last), Ok(Step::Send(_))));
        let done = negotiation.receive(&server(SaslState::Success, None, Vec::new()));
        assert!(matches!(done, Ok(Step::Finish(_))), "{done:?}");
    }

    #[test]
    fn the_servers_order_selects_the_method() {
        let simple = || auth("SIMPLE", "", None);
        let kerberos = || auth("KERBEROS", "GSSAPI", None);
        let mut negotiation = without_token(SecurityPolicy::default());
        let step = negotiation.receive(&offer(vec![token_auth(), kerberos(), simple()]));
        let Ok(Step::SendAndFinish(initiate, agreed)) = step else { panic!("{step:?}") };
        assert_eq!(agreed.method, AuthMethod::Simple);
        assert_eq!(decoded(&initiate).auths, [simple()]);
        let mut negotiation = with_token(SecurityPolicy::default());
        let step = negotiation.receive(&offer(vec![simple(), token_auth()]));
        assert!(matches!(step, Ok(Step::SendAndFinish(..))), "{step:?}");
    }

    #[test]
    fn a_secured_client_rejects_a_downgrade() {
        let simple = offer(vec![auth("SIMPLE", "", None)]);
        let early = server(SaslState::Success, None, Vec::new());
        for message in [&simple, &early] {
            for mut negotiation in [with_token(secured()), without_token(secured())] {
                assert_eq!(negotiation.receive(message).err(), Some(SaslError::SimpleRefused));
            }
            let allowed = SecurityPolicy { fallback_to_simple: true, ..secured() };
            assert!(with_token(allowed).receive(message).is_ok());
            assert!(without_token(SecurityPolicy::default()).receive(message).is_ok());
        }
    }

    #[test]
    fn success_without_the_proof_is_rejected() {
        for token in [None, Some(""), Some("rspauth=00000000000000000000000000000000")] {
            let mut negotiation = with_token(SecurityPolicy::default());
            assert!(negotiation.receive(&offer(vec![token_auth()])).is_ok());
            let done = negotiation.receive(&server(SaslState::Success, token, Vec::new()));
            assert!(
                matches!(
                    done,
                    Err(SaslError::EarlySuccess | SaslError::Digest(DigestError::ServerNotVerified))
                ),
                "{done:?}"
            );
        }
        let mut negotiation = with_token(secured());
        assert!(negotiation.receive(&offer(vec![auth("TOKEN", "DIGEST-MD5", None)])).is_ok());
        let done = negotiation.receive(&server(SaslState::Success, Some(&proof()), Vec::new()));
        assert_eq!(done.err(), Some(SaslError::EarlySuccess));
    }

    #[test]
    fn unsupported_methods_are_listed_in_the_error() {
        let kerberos =
            offer(vec![auth("TOKEN", "DIGEST-MD5", None), auth("KERBEROS", "GSSAPI", None)]);
        let error = without_token(secured()).receive(&kerberos).expect_err("has neither");
        let text = "cannot authenticate: the server offers [\"TOKEN\", \"KERBEROS\"] (the token is \
            missing, the Kerberos ticket is missing, SIMPLE is not allowed)";
        assert_eq!(error.to_string(), text);
        let scram = offer(vec![auth("TOKEN", "SCRAM-SHA-256", None)]);
        assert_eq!(
            with_token(secured()).receive(&scram).err(),
            Some(SaslError::Mechanism("SCRAM-SHA-256".into()))
        );
    }

    #[test]
    fn every_other_message_is_rejected() {
        let messages = |state| server(state, Some("x"), vec![token_auth()]);
        let refused = |negotiation: &mut Negotiation, state| {
            let answer = negotiation.receive(&messages(state));
            assert!(matches!(answer, Err(SaslError::OutOfOrder { .. })), "{state:?}: {answer:?}");
        };
        for state in
            [SaslState::Initiate, SaslState::Challenge, SaslState::Response, SaslState::Wrap]
        {
            refused(&mut with_token(SecurityPolicy::default()), state);
        }
        for state in
            [SaslState::Negotiate, SaslState::Initiate, SaslState::Response, SaslState::Wrap]
        {
            let mut negotiation = with_token(SecurityPolicy::default());
            assert!(negotiation.receive(&offer(vec![token_auth()])).is_ok());
            refused(&mut negotiation, state);
            // An error is final: a valid message after it is rejected.
            refused(&mut negotiation, SaslState::Success);
        }
    }

    #[test]
    fn unknown_states_are_an_error() {
        let unknown = Bytes::from_static(&[0x10, 0x09]);
        assert_eq!(with_token(secured()).receive(&unknown).err(), Some(SaslError::UnknownState(9)));
    }

    proptest! {
        #[test]
        fn no_server_makes_it_panic_or_agree_without_proof(
            messages in proptest::collection::vec(
                prop_oneof![
                    proptest::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from),
                    (0_i32..7, prop::option::of(".{0,12}")).prop_map(|(state, token)| RpcSaslProto {
                        version: None,
                        state,
                        token: token.map(|text| Bytes::from(text.into_bytes())),
                        auths: vec![token_auth(), auth("SIMPLE", "", None)],
                    }.encode_to_vec().into()),
                ],
                0..5,
            ),
        ) {
            let mut negotiation = with_token(secured());
            for message in messages {
                let step = negotiation.receive(&message);
                prop_assert!(
                    !matches!(step, Ok(Step::Finish(_) | Step::SendAndFinish(..))),
                    "{step:?}"
                );
            }
        }
    }
}
