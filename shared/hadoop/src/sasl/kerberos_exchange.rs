//! GSSAPI inside Hadoop's negotiation (RFC 4752, client side).
//!
//! | client | server |
//! | --- | --- |
//! | INITIATE: first bytes of the context | CHALLENGE: reply of the context |
//! | RESPONSE: present and empty | CHALLENGE: wrapped, levels (1 byte) and longest token (3) |
//! | RESPONSE: wrapped, chosen level and own longest token | SUCCESS without token |
//!
//! The last response has no authorisation id: servers take the user from the ticket.

use super::Qop;
use super::digest::levels;
use super::layer::Layer;
use crate::kerberos::{KerberosContext, KerberosError, KerberosTicket};

/// Longest token in bytes that the client permits the server to send, 3 bytes on the wire.
const TOKEN_MAX: [u8; 3] = [1, 0, 0];
/// Bits of the levels (RFC 4752 §3.3).
const LEVELS: [(Qop, u8); 3] = [(Qop::Auth, 1), (Qop::Integrity, 2), (Qop::Privacy, 4)];

/// Why the exchange fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KerberosFailure {
    /// The library rejects the server's bytes.
    #[error(transparent)]
    Context(#[from] KerberosError),
    /// The server is not the configured one.
    #[error("the server calls itself {offered}, the configuration names {expected}")]
    OtherServer {
        /// The principal in the offer, without realm.
        offered: String,
        /// The configured principal.
        expected: String,
    },
    /// Server and configuration have no protection level in common.
    #[error(
        "the server offers protection {}, hadoop.rpc.protection = {} allows none of it",
        levels(offered),
        levels(allowed)
    )]
    NoCommonLevel {
        /// Levels of the server.
        offered: Vec<Qop>,
        /// `hadoop.rpc.protection`, in order of preference.
        allowed: Vec<Qop>,
    },
    /// The message with the levels must have 4 bytes.
    #[error("the server's message with the protection levels must have 4 bytes (got {0})")]
    Levels(usize),
}

/// The client's state of one exchange.
#[derive(Debug)]
pub(super) struct KerberosExchange {
    context: Box<dyn KerberosContext>,
    stage: ExchangeStage,
}

#[derive(Clone, Copy, Debug)]
enum ExchangeStage {
    Context,
    Levels,
    Chosen { qop: Qop, token_max: u32 },
}

impl KerberosExchange {
    /// Checks that the offer is of the server that the ticket is for. Returns the exchange and the first bytes.
    pub(super) fn start(
        ticket: KerberosTicket,
        protocol: &str,
        server_id: &str,
    ) -> Result<(Self, Vec<u8>), KerberosFailure> {
        let offered = format!("{protocol}/{server_id}");
        let name = ticket.server.split('@').next().unwrap_or_default();
        // The realm is not in the offer. The ticket is for the configured principal in any case.
        if name != offered {
            return Err(KerberosFailure::OtherServer { offered, expected: ticket.server });
        }
        Ok((Self { context: ticket.context, stage: ExchangeStage::Context }, ticket.first))
    }

    /// Answers a CHALLENGE; returns the bytes of the RESPONSE.
    pub(super) fn answer(
        &mut self,
        challenge: &[u8],
        allowed: &[Qop],
    ) -> Result<Vec<u8>, KerberosFailure> {
        match self.stage {
            ExchangeStage::Context => {
                let reply = self.context.step(challenge)?;
                if reply.is_complete {
                    self.stage = ExchangeStage::Levels;
                }
                Ok(reply.output)
            }
            ExchangeStage::Levels => {
                // A server may encrypt this message or not.
                let message = self.context.unwrap(false, challenge)?;
                let &[mask, high, middle, low] = message.as_slice() else {
                    return Err(KerberosFailure::Levels(message.len()));
                };
                let bit =
                    |qop: Qop| LEVELS.iter().find(|(level, _)| *level == qop).map(|(_, b)| *b);
                let chosen = allowed
                    .iter()
                    .find_map(|qop| bit(*qop).filter(|bit| mask & bit != 0).map(|bit| (*qop, bit)));
                let Some((qop, bit)) = chosen else {
                    let offered = LEVELS.iter().filter(|(_, bit)| mask & bit != 0);
                    return Err(KerberosFailure::NoCommonLevel {
                        offered: offered.map(|(qop, _)| *qop).collect(),
                        allowed: allowed.to_vec(),
                    });
                };
                let token_max = u32::from_be_bytes([0, high, middle, low]);
                let own = if qop == Qop::Auth { [0; 3] } else { TOKEN_MAX };
                let answer = self.context.wrap(false, &[bit, own[0], own[1], own[2]])?;
                self.stage = ExchangeStage::Chosen { qop, token_max };
                Ok(answer)
            }
            ExchangeStage::Chosen { .. } => Err(KerberosFailure::Levels(challenge.len())),
        }
    }

    /// The layer of the connection; `Err(None)` if the exchange is not complete, so that SUCCESS comes too early.
    pub(super) fn finish(self) -> Result<Option<Layer>, Option<KerberosFailure>> {
        let ExchangeStage::Chosen { qop, token_max } = self.stage else {
            return Err(None);
        };
        let layer = |encrypt| {
            Layer::of_kerberos(self.context, encrypt, token_max)
                .map(Some)
                .map_err(|error| Some(error.into()))
        };
        match qop {
            Qop::Auth => Ok(None),
            Qop::Integrity => layer(false),
            Qop::Privacy => layer(true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kerberos::ContextReply;

    /// A context that is complete after one reply, and whose tokens are the message after a mark.
    #[derive(Debug)]
    struct PlainContext;

    impl KerberosContext for PlainContext {
        fn step(&mut self, input: &[u8]) -> Result<ContextReply, KerberosError> {
            match input {
                b"reply" => Ok(ContextReply { output: Vec::new(), is_complete: true }),
                _ => Err(KerberosError::Refused { code: 1, text: "no".into(), server: None }),
            }
        }

        fn wrap(&mut self, encrypt: bool, message: &[u8]) -> Result<Vec<u8>, KerberosError> {
            Ok([&[u8::from(encrypt)], message].concat())
        }

        fn unwrap(&mut self, encrypted: bool, token: &[u8]) -> Result<Vec<u8>, KerberosError> {
            match token.split_first() {
                Some((mark, rest)) if *mark == u8::from(encrypted) => Ok(rest.to_vec()),
                _ => Err(KerberosError::Refused { code: 2, text: "no".into(), server: None }),
            }
        }

        fn message_max(&mut self, _: bool, token_max: u32) -> Result<usize, KerberosError> {
            Ok(usize::try_from(token_max).expect("fits") - 1)
        }
    }

    fn start() -> KerberosExchange {
        let context = Box::new(PlainContext);
        let ticket =
            KerberosTicket { context, first: b"first".to_vec(), server: "nn/host@R".into() };
        let (exchange, first) =
            KerberosExchange::start(ticket, "nn", "host").expect("is the configured server");
        assert_eq!(first, b"first");
        exchange
    }

    /// The exchange after the server's levels, which begin with `mask`.
    fn chosen(mask: u8, allowed: &[Qop]) -> Result<(KerberosExchange, Vec<u8>), KerberosFailure> {
        let mut exchange = start();
        assert_eq!(exchange.answer(b"reply", allowed)?, b"");
        let answer = exchange.answer(&[0, mask, 1, 0, 0], allowed)?;
        Ok((exchange, answer))
    }

    #[test]
    fn the_preferred_common_level_is_chosen() {
        for (mask, allowed, answer, layer) in [
            (7, &[Qop::Auth][..], [0, 1, 0, 0, 0], None),
            (7, &[Qop::Integrity, Qop::Privacy], [0, 2, 1, 0, 0], Some(false)),
            (4, &[Qop::Auth, Qop::Privacy], [0, 4, 1, 0, 0], Some(true)),
        ] {
            let (exchange, sent) = chosen(mask, allowed).expect("have a common level");
            assert_eq!(sent, answer);
            let made = exchange.finish().expect("is complete");
            assert_eq!(made.is_some(), layer.is_some());
            if let (Some(mut made), Some(encrypt)) = (made, layer) {
                assert_eq!(made.wrap(b"x").expect("wraps"), [u8::from(encrypt), b'x']);
                assert_eq!(made.payload_max(), 65_535);
                made.unwrap(&[u8::from(!encrypt), b'x']).expect_err("has the other level");
            }
        }
    }

    #[test]
    fn without_a_common_level_both_lists_are_named() {
        let error = chosen(3, &[Qop::Privacy]).expect_err("have no common level");
        let offered = vec![Qop::Auth, Qop::Integrity];
        assert_eq!(error, KerberosFailure::NoCommonLevel { offered, allowed: vec![Qop::Privacy] });
        assert_eq!(
            error.to_string(),
            "the server offers protection authentication,integrity, hadoop.rpc.protection = privacy allows none of it"
        );
    }

    #[test]
    fn another_server_receives_no_ticket() {
        let context = Box::new(PlainContext);
        let ticket = KerberosTicket { context, first: Vec::new(), server: "nn/host@R".into() };
        let error = KerberosExchange::start(ticket, "nn", "other").expect_err("is another host");
        let text = "the server calls itself nn/other, the configuration names nn/host@R";
        assert_eq!(error.to_string(), text);
    }

    #[test]
    fn success_before_the_levels_is_rejected() {
        assert!(matches!(start().finish(), Err(None)));
        let mut exchange = start();
        exchange.answer(b"reply", &[Qop::Auth]).expect("is the context's reply");
        assert!(matches!(exchange.finish(), Err(None)));
    }

    #[test]
    fn malformed_levels_are_rejected() {
        let mut exchange = start();
        exchange.answer(b"false", &[Qop::Auth]).expect_err("is not the server's reply");
        let mut exchange = start();
        exchange.answer(b"reply", &[Qop::Auth]).expect("is the context's reply");
        let error = exchange.answer(&[0, 7], &[Qop::Auth]).expect_err("is too short");
        assert_eq!(error, KerberosFailure::Levels(1));
    }
}
