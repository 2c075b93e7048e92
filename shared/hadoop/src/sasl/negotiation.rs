//! The exchange that precedes a connection's first call, from the client's side.
//!
//! ```text
//!  start ─NEGOTIATE─▶ Offered? ─SUCCESS─▶ SIMPLE, unless security is required
//!                        │NEGOTIATE(auths): the first that we can serve
//!                        ├─ TOKEN with challenge ──INITIATE(response)──▶ Proof? ─SUCCESS(rspauth)─▶ agreed
//!                        ├─ TOKEN without ──INITIATE()──▶ Challenge? ─CHALLENGE─RESPONSE──▶ Proof?
//!                        └─ SIMPLE ──INITIATE()──▶ agreed (the server sends no reply)
//! ```
//!
//! Every other edge is an error. **No downgrade**: a client that requires security takes neither SIMPLE from the list
//! nor a SUCCESS before the server has proved that it knows the token, whatever the network says.

use bytes::Bytes;
use prost::Message;

use super::digest::{DigestError, DigestExchange};
use super::layer::Layer;
use super::offer::{Offer, OfferedAuth};
use super::policy::SecurityPolicy;
use crate::proto::common::RpcSaslProto;
use crate::proto::common::rpc_sasl_proto::SaslState;
use crate::token::Token;

/// How a connection was authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AuthMethod {
    /// The server believes the name that the client states.
    Simple,
    /// A token; the server knows its owner.
    Token,
}

/// Why authentication came to no end. None of these is cured by trying again with the same input.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SaslError {
    /// The server offers SIMPLE, or gives up authentication, and the configuration requires security.
    #[error(
        "the server asks for SIMPLE authentication, but this configuration requires security \
         (hadoop.security.authentication; ipc.client.fallback-to-simple-auth-allowed would permit it)"
    )]
    SimpleRefused,
    /// None of the server's methods can be served.
    #[error("cannot authenticate via {offered:?} (a token is {}, SIMPLE is {})",
        if *has_token { "there" } else { "missing" }, if *simple_allowed { "allowed" } else { "not allowed" })]
    NoCommonMethod {
        /// Methods in the server's order, such as `TOKEN`, `KERBEROS`.
        offered: Vec<String>,
        /// Whether the client had a token for this connection.
        has_token: bool,
        /// Whether the client may fall back to SIMPLE.
        simple_allowed: bool,
    },
    /// The server's TOKEN method uses another mechanism than DIGEST-MD5 (`hadoop.security.sasl.mechanism`, 3.5).
    #[error("the server's TOKEN method uses the mechanism {0}, only DIGEST-MD5 is known")]
    Mechanism(String),
    /// The server says that all is done before it has proved anything.
    #[error("the server ended the authentication before it was complete")]
    EarlySuccess,
    /// A message that has no place in this state.
    #[error("the server sent {message} while {expected} was due")]
    OutOfOrder {
        /// Name of the state in the message.
        message: &'static str,
        /// What could come.
        expected: &'static str,
    },
    /// A state number that this client does not know.
    #[error("the server sent the unknown state {0}")]
    UnknownState(i32),
    /// The message does not decode.
    #[error("the server's message does not decode")]
    Malformed(#[from] prost::DecodeError),
    /// DIGEST-MD5 failed.
    #[error("DIGEST-MD5 failed")]
    Digest(#[from] DigestError),
}

/// What was agreed.
#[derive(Debug)]
pub struct Agreed {
    /// The method; it decides what the connection context may say of the user.
    pub method: AuthMethod,
    /// Protection of all that follows, or none.
    pub layer: Option<Layer>,
}

/// What to do next.
#[derive(Debug)]
pub enum Step {
    /// Send this `RpcSaslProto` (encoded, without length) and wait.
    Send(Bytes),
    /// Send this and go on with the connection context at once.
    SendAndFinish(Bytes, Agreed),
    /// Go on with the connection context.
    Finish(Agreed),
}

/// One negotiation.
#[derive(Debug)]
pub struct Negotiation {
    token: Option<Token>,
    policy: SecurityPolicy,
    cnonce: String,
    state: State,
}

#[derive(Debug)]
enum State {
    AwaitOffer,
    AwaitChallenge(Token),
    /// `verified`: the proof came in a CHALLENGE, only SUCCESS is due.
    AwaitSuccess {
        exchange: DigestExchange,
        verified: bool,
    },
    Over,
}

impl Negotiation {
    /// Begins, and gives the first message to send (NEGOTIATE).
    ///
    /// `token` is what the client would authenticate with. `cnonce` is fresh random text without `"` and `\`.
    pub fn start(token: Option<Token>, policy: SecurityPolicy, cnonce: String) -> (Self, Bytes) {
        (
            Self {
                token,
                policy,
                cnonce,
                state: State::AwaitOffer,
            },
            message(SaslState::Negotiate, None),
        )
    }

    /// Takes the server's next message, an encoded `RpcSaslProto`.
    ///
    /// # Errors
    /// Any [`SaslError`]; the connection must then be closed with nothing more sent.
    pub fn receive(&mut self, bytes: &Bytes) -> Result<Step, SaslError> {
        let offer = Offer::decode(bytes)?;
        let state = SaslState::try_from(offer.message.state)
            .map_err(|_| SaslError::UnknownState(offer.message.state))?;
        let token = offer.message.token.clone();
        match (std::mem::replace(&mut self.state, State::Over), state) {
            (State::AwaitOffer, SaslState::Negotiate) => self.choose(&offer.auths),
            (State::AwaitOffer, SaslState::Success) => {
                self.require_simple()?;
                Ok(Step::Finish(Agreed {
                    method: AuthMethod::Simple,
                    layer: None,
                }))
            }
            (State::AwaitChallenge(own), SaslState::Challenge) => {
                let exchange = self.answer(&own, &token.unwrap_or_default())?;
                let reply = message(SaslState::Response, Some(exchange.response()));
                self.state = State::AwaitSuccess {
                    exchange,
                    verified: false,
                };
                Ok(Step::Send(reply))
            }
            (
                State::AwaitSuccess {
                    exchange,
                    verified: false,
                },
                SaslState::Challenge,
            ) => {
                // RFC 2831 lets the proof come as a last challenge, which an empty response answers.
                exchange.verify(&token.unwrap_or_default())?;
                self.state = State::AwaitSuccess {
                    exchange,
                    verified: true,
                };
                Ok(Step::Send(message(SaslState::Response, Some(&[]))))
            }
            (State::AwaitSuccess { exchange, verified }, SaslState::Success) => {
                match token {
                    Some(proof) if !verified => exchange.verify(&proof)?,
                    None if verified => {}
                    Some(proof) if proof.is_empty() => {}
                    _ => return Err(SaslError::EarlySuccess),
                }
                Ok(Step::Finish(Agreed {
                    method: AuthMethod::Token,
                    layer: exchange.into_layer(),
                }))
            }
            (State::AwaitChallenge(_), SaslState::Success) => Err(SaslError::EarlySuccess),
            (before, _) => Err(SaslError::OutOfOrder {
                message: name(state),
                expected: before.expects(),
            }),
        }
    }

    /// Takes the first entry that can be served.
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
                        self.state = State::AwaitChallenge(token);
                        return Ok(Step::Send(offered.initiate(&[])));
                    };
                    let exchange = self.answer(&token, challenge)?;
                    let initiate = offered.initiate(exchange.response());
                    self.state = State::AwaitSuccess {
                        exchange,
                        verified: false,
                    };
                    return Ok(Step::Send(initiate));
                }
                "SIMPLE" if self.simple_allowed() => {
                    let agreed = Agreed {
                        method: AuthMethod::Simple,
                        layer: None,
                    };
                    return Ok(Step::SendAndFinish(offered.initiate(&[]), agreed));
                }
                // KERBEROS, PLAIN and what comes after them.
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
            offered: auths
                .iter()
                .map(|offered| offered.auth.method.clone())
                .collect(),
            has_token: self.token.is_some(),
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
        if self.simple_allowed() {
            Ok(())
        } else {
            Err(SaslError::SimpleRefused)
        }
    }
}

impl State {
    fn expects(&self) -> &'static str {
        match self {
            Self::AwaitOffer => "NEGOTIATE",
            Self::AwaitChallenge(_) => "CHALLENGE",
            Self::AwaitSuccess { .. } => "SUCCESS",
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
