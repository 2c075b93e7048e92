//! DIGEST-MD5 as Hadoop's TOKEN method uses it (RFC 2831, client side, first authentication only).
//!
//! User name and password are the Base64 of a token's identifier and password, the realm is `default`, the URI
//! `/default`. Pure: from a challenge and a client nonce follow the response and the expected proof of the server.
//! It does not support subsequent authentication (`nc` is always 1) and ciphers other than 3DES.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use zeroize::Zeroizing;

use super::challenge::{Challenge, ChallengeError};
use super::digest_layer::{DigestLayer, LayerKeys};
use super::layer::Layer;
use super::md5::md5;
use crate::token::Token;

/// Longest token in bytes that the client permits the server to send. Hadoop's client announces 65536 and accepts more.
const MAX_BUFFER: usize = 65_536;
const DIGEST_URI: &str = "/default";

/// Quality of protection of a connection after authentication (`hadoop.rpc.protection`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Qop {
    /// `authentication`: no protection.
    Auth,
    /// `integrity`: each piece has a MAC.
    Integrity,
    /// `privacy`: each piece is encrypted and has a MAC.
    Privacy,
}

impl Qop {
    /// The name in SASL messages.
    pub fn sasl_name(self) -> &'static str {
        match self {
            Self::Auth => "auth",
            Self::Integrity => "auth-int",
            Self::Privacy => "auth-conf",
        }
    }
}

/// The name in `hadoop.rpc.protection`.
impl std::fmt::Display for Qop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Auth => "authentication",
            Self::Integrity => "integrity",
            Self::Privacy => "privacy",
        })
    }
}

/// Levels as `hadoop.rpc.protection` lists them.
pub(super) fn levels(all: &[Qop]) -> String {
    let names: Vec<String> = all.iter().map(Qop::to_string).collect();
    names.join(",")
}

/// Why DIGEST-MD5 fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DigestError {
    /// The challenge is not one of RFC 2831.
    #[error("cannot use the server's challenge")]
    Challenge(#[from] ChallengeError),
    /// Server and configuration have no protection level in common.
    #[error(
        "the server offers protection {offered:?}, hadoop.rpc.protection = {} allows none of it",
        levels(allowed)
    )]
    NoCommonQop {
        /// Levels in the challenge.
        offered: Vec<String>,
        /// `hadoop.rpc.protection`, in order of preference.
        allowed: Vec<Qop>,
    },
    /// Privacy is chosen and the server does not offer 3DES.
    #[error("the server must offer the cipher 3des (got {0:?})")]
    NoCipher(Vec<String>),
    /// The server's proof is wrong or missing, so the server does not have the token's password.
    #[error("the server did not prove that it has the token's password")]
    ServerNotVerified,
}

/// The client's state of one exchange, after it has computed its response.
pub struct DigestExchange {
    response: String,
    expected_rspauth: String,
    keys: LayerKeys,
    qop: Qop,
    send_max: usize,
}

impl std::fmt::Debug for DigestExchange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DigestExchange").field("qop", &self.qop).finish_non_exhaustive()
    }
}

impl DigestExchange {
    /// Answers a challenge.
    ///
    /// `allowed` is in order of preference; the first level that the server offers is used. `cnonce` must be new random
    /// printable text without `"` and `\`.
    ///
    /// # Errors
    /// The challenge is malformed, or has no permitted level or cipher.
    pub fn answer(
        challenge: &[u8],
        token: &Token,
        allowed: &[Qop],
        cnonce: &str,
    ) -> Result<Self, DigestError> {
        let challenge = Challenge::parse(challenge)?;
        let offered = |qop: &Qop| {
            challenge.qops.iter().any(|name| name.eq_ignore_ascii_case(qop.sasl_name()))
        };
        let Some(qop) = allowed.iter().copied().find(offered) else {
            return Err(DigestError::NoCommonQop {
                offered: challenge.qops,
                allowed: allowed.to_vec(),
            });
        };
        if qop == Qop::Privacy
            && !challenge.ciphers.iter().any(|cipher| cipher.eq_ignore_ascii_case("3des"))
        {
            return Err(DigestError::NoCipher(challenge.ciphers));
        }

        let username = BASE64_STANDARD.encode(token.identifier());
        let password = Zeroizing::new(BASE64_STANDARD.encode(token.password()));
        let (realm, nonce) = (challenge.realm.as_str(), challenge.nonce.as_str());

        let clear = Zeroizing::new(format!("{username}:{realm}:{}", *password));
        let user_hash = md5(&[clear.as_bytes()]);
        let ha1 = md5(&[&user_hash, format!(":{nonce}:{cnonce}").as_bytes()]);
        let prove = |method: &str| {
            let body = if qop == Qop::Auth { "" } else { ":00000000000000000000000000000000" };
            let ha2 = hex(&md5(&[format!("{method}:{DIGEST_URI}{body}").as_bytes()]));
            let text = format!("{}:{nonce}:00000001:{cnonce}:{}:{ha2}", hex(&ha1), qop.sasl_name());
            hex(&md5(&[text.as_bytes()]))
        };
        let proof = prove("AUTHENTICATE");

        // The JDK's order of fields. Servers accept any order; comparisons with captured bytes need this one.
        let mut response = format!(
            "charset=utf-8,username={},realm={},nonce={},nc=00000001,cnonce={},digest-uri=\"{DIGEST_URI}\",\
             maxbuf={MAX_BUFFER},response={proof},qop={}",
            quote(&username),
            quote(realm),
            quote(nonce),
            quote(cnonce),
            qop.sasl_name(),
        );
        if qop == Qop::Privacy {
            response.push_str(",cipher=\"3des\"");
        }
        Ok(Self {
            response,
            expected_rspauth: prove(""),
            keys: LayerKeys::derive(&ha1),
            qop,
            send_max: challenge.max_buffer,
        })
    }

    /// The response to send.
    pub fn response(&self) -> &[u8] {
        self.response.as_bytes()
    }

    /// Checks the server's proof, `rspauth=…`.
    ///
    /// # Errors
    /// [`DigestError::ServerNotVerified`] for any other value than the expected one.
    pub fn verify(&self, proof: &[u8]) -> Result<(), DigestError> {
        let given = proof.strip_prefix(b"rspauth=").ok_or(DigestError::ServerNotVerified)?;
        let expected = self.expected_rspauth.as_bytes();
        // Every byte is compared, so that the duration does not depend on the position of a difference.
        let difference = given.iter().zip(expected).fold(0, |sum, (a, b)| sum | (a ^ b));
        if given.len() == expected.len() && difference == 0 {
            Ok(())
        } else {
            Err(DigestError::ServerNotVerified)
        }
    }

    /// The security layer of the connection; `None` for [`Qop::Auth`].
    pub fn into_layer(self) -> Option<Layer> {
        self.into_digest_layer().map(Layer::of_digest)
    }

    pub(super) fn into_digest_layer(self) -> Option<DigestLayer> {
        match self.qop {
            Qop::Auth => None,
            Qop::Integrity => Some(DigestLayer::integrity(&self.keys, self.send_max)),
            Qop::Privacy => Some(DigestLayer::privacy(&self.keys, self.send_max)),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a String cannot fail");
        text
    })
}

/// RFC 2831 quoted-string.
fn quote(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{GOLDEN, golden_token};
    use super::*;

    #[test]
    fn responses_and_proofs_equal_the_jdks() {
        for golden in &GOLDEN {
            let exchange = golden.exchange();
            let response = String::from_utf8(exchange.response().to_vec()).expect("text");
            assert!(response.contains("username=\"Cg0KCQgFEIDQlf+8MRABEAc=\""), "{response}");
            assert!(response.contains(&format!(",response={},", golden.response)), "{response}");
            assert_eq!(
                response.ends_with(",cipher=\"3des\""),
                golden.qop == Qop::Privacy,
                "{response}"
            );
            exchange
                .verify(format!("rspauth={}", golden.rspauth).as_bytes())
                .expect("is the server's proof");
        }
    }

    #[test]
    fn a_wrong_or_missing_proof_is_rejected() {
        let exchange = GOLDEN[0].exchange();
        for proof in [
            "",
            "rspauth=",
            "rspauth=52cd8651f3b85487d95785cb0ae35f26",
            "rspauth=52cd8651f3b85487d95785cb0ae35f25a",
        ] {
            assert_eq!(
                exchange.verify(proof.as_bytes()),
                Err(DigestError::ServerNotVerified),
                "{proof}"
            );
        }
    }

    #[test]
    fn the_clients_preference_selects_the_level() {
        let challenge = b"realm=\"default\",nonce=\"n\",qop=\"auth,auth-int,auth-conf\",\
            charset=utf-8,cipher=\"3des\",algorithm=md5-sess";
        let pick = |allowed: &[Qop]| {
            DigestExchange::answer(challenge, &golden_token(), allowed, "c")
                .map(|exchange| exchange.qop)
        };
        assert_eq!(pick(&[Qop::Privacy, Qop::Auth]), Ok(Qop::Privacy));
        assert_eq!(pick(&[Qop::Auth, Qop::Privacy]), Ok(Qop::Auth));
    }

    #[test]
    fn a_level_outside_the_configuration_is_not_used() {
        let challenge =
            b"realm=\"default\",nonce=\"n\",qop=\"auth\",charset=utf-8,algorithm=md5-sess";
        let answer = DigestExchange::answer(challenge, &golden_token(), &[Qop::Privacy], "c");
        assert!(matches!(answer, Err(DigestError::NoCommonQop { .. })), "{answer:?}");
    }

    #[test]
    fn privacy_without_3des_is_rejected() {
        let challenge = b"realm=\"default\",nonce=\"n\",qop=\"auth-conf\",cipher=\"rc4\",\
            charset=utf-8,algorithm=md5-sess";
        let answer = DigestExchange::answer(challenge, &golden_token(), &[Qop::Privacy], "c");
        assert!(matches!(answer, Err(DigestError::NoCipher(_))), "{answer:?}");
    }
}
