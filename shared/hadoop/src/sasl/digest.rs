//! DIGEST-MD5 as Hadoop's TOKEN method uses it (RFC 2831, client side, first authentication only).
//!
//! User name and password are the Base64 of a token's identifier and password, the realm is `default`, the URI
//! `/default`. Pure: the challenge and a client nonce go in, the response and the check of the server come out.
//! What it does not do: subsequent authentication (`nc` is always 1), ciphers other than 3DES.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use super::challenge::{Challenge, ChallengeError};
use super::layer::{Layer, LayerKeys};
use super::md5::md5;
use crate::token::Token;

/// Largest token that we let the server send by its own choice, in bytes; Hadoop's client says 65536 and accepts more.
const MAX_BUFFER: usize = 65_536;
const DIGEST_URI: &str = "/default";

/// Quality of protection: what a connection does to the bytes after authentication (`hadoop.rpc.protection`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Qop {
    /// `authentication`: nothing.
    Auth,
    /// `integrity`: each piece carries a MAC.
    Integrity,
    /// `privacy`: each piece is encrypted and carries a MAC.
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

/// Why DIGEST-MD5 does not come to an end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DigestError {
    /// The challenge is not one of RFC 2831.
    #[error("the server's challenge cannot be used")]
    Challenge(#[from] ChallengeError),
    /// The server offers no protection level that the configuration allows.
    #[error("the server offers protection {offered:?}, the configuration allows {allowed:?}")]
    NoCommonQop {
        /// From the challenge.
        offered: Vec<String>,
        /// `hadoop.rpc.protection`, in order of preference.
        allowed: Vec<Qop>,
    },
    /// Privacy was chosen and the server has no 3DES.
    #[error("the server offers the ciphers {0:?}, of which 3des is missing")]
    NoCipher(Vec<String>),
    /// The server's proof is wrong or missing: it does not know the token's password.
    #[error("the server could not prove that it knows the token")]
    ServerNotVerified,
}

/// The client's half of one exchange, after its response was computed.
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
    /// `allowed` is in order of preference: the first that the server offers is taken. `cnonce` must be fresh random,
    /// printable, without `"` and `\`.
    ///
    /// # Errors
    /// When the challenge is malformed, or offers neither a level nor a cipher that we may use.
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
        let password = BASE64_STANDARD.encode(token.password());
        let (realm, nonce) = (challenge.realm.as_str(), challenge.nonce.as_str());

        let user_hash = md5(&[format!("{username}:{realm}:{password}").as_bytes()]);
        let ha1 = md5(&[&user_hash, format!(":{nonce}:{cnonce}").as_bytes()]);
        let prove = |method: &str| {
            let body = if qop == Qop::Auth { "" } else { ":00000000000000000000000000000000" };
            let ha2 = hex(&md5(&[format!("{method}:{DIGEST_URI}{body}").as_bytes()]));
            let text = format!("{}:{nonce}:00000001:{cnonce}:{}:{ha2}", hex(&ha1), qop.sasl_name());
            hex(&md5(&[text.as_bytes()]))
        };
        let proof = prove("AUTHENTICATE");

        // The JDK's order of fields; a server must not care, an eavesdropping test may.
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

    /// The answer to send.
    pub fn response(&self) -> &[u8] {
        self.response.as_bytes()
    }

    /// Checks the server's proof, `rspauth=…`.
    ///
    /// # Errors
    /// [`DigestError::ServerNotVerified`] for anything but the one right value.
    pub fn verify(&self, proof: &[u8]) -> Result<(), DigestError> {
        let given = proof.strip_prefix(b"rspauth=").ok_or(DigestError::ServerNotVerified)?;
        let expected = self.expected_rspauth.as_bytes();
        // Looks at every byte whatever differs, so that the time taken tells nothing.
        let difference = given.iter().zip(expected).fold(0, |sum, (a, b)| sum | (a ^ b));
        if given.len() == expected.len() && difference == 0 {
            Ok(())
        } else {
            Err(DigestError::ServerNotVerified)
        }
    }

    /// The protection of everything that follows; `None` for [`Qop::Auth`].
    pub fn into_layer(self) -> Option<Layer> {
        match self.qop {
            Qop::Auth => None,
            Qop::Integrity => Some(Layer::integrity(&self.keys, self.send_max)),
            Qop::Privacy => Some(Layer::privacy(&self.keys, self.send_max)),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a String takes everything");
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
    fn responses_and_proofs_are_those_of_the_jdk() {
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
    fn a_wrong_or_missing_proof_is_refused() {
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
    fn the_clients_order_of_preference_decides() {
        let challenge = b"realm=\"default\",nonce=\"n\",qop=\"auth,auth-int,auth-conf\",charset=utf-8,cipher=\"3des\",algorithm=md5-sess";
        let pick = |allowed: &[Qop]| {
            DigestExchange::answer(challenge, &golden_token(), allowed, "c")
                .map(|exchange| exchange.qop)
        };
        assert_eq!(pick(&[Qop::Privacy, Qop::Auth]), Ok(Qop::Privacy));
        assert_eq!(pick(&[Qop::Auth, Qop::Privacy]), Ok(Qop::Auth));
    }

    #[test]
    fn a_level_that_the_configuration_forbids_is_not_taken() {
        let challenge =
            b"realm=\"default\",nonce=\"n\",qop=\"auth\",charset=utf-8,algorithm=md5-sess";
        let answer = DigestExchange::answer(challenge, &golden_token(), &[Qop::Privacy], "c");
        assert!(matches!(answer, Err(DigestError::NoCommonQop { .. })), "{answer:?}");
    }

    #[test]
    fn privacy_without_3des_is_refused() {
        let challenge = b"realm=\"default\",nonce=\"n\",qop=\"auth-conf\",cipher=\"rc4\",charset=utf-8,algorithm=md5-sess";
        let answer = DigestExchange::answer(challenge, &golden_token(), &[Qop::Privacy], "c");
        assert!(matches!(answer, Err(DigestError::NoCipher(_))), "{answer:?}");
    }
}
