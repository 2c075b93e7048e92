//! Sessions of the JDK's DIGEST-MD5 with the AMRM token of application 1700000000000 number 5, for tests.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use super::digest::{DigestExchange, Qop};
use super::digest_layer::{DigestLayer, LayerKeys};
use super::md5::md5;
use crate::token::Token;

/// One session.
pub(crate) struct Golden {
    pub qop: Qop,
    pub nonce: &'static str,
    pub cnonce: &'static str,
    pub response: &'static str,
    pub rspauth: &'static str,
}

pub(crate) const GOLDEN: [Golden; 3] = [
    Golden {
        qop: Qop::Auth,
        nonce: "Wilfx/SezLYYK1yKrw0AGDOktTtUMttzpWz8qTb/",
        cnonce: "Rks40Kt5BKv1QPvbay9mFHu4VYzjuEeL5wLwSFLe",
        response: "903dee4a140294956c28a9ca8f79418f",
        rspauth: "52cd8651f3b85487d95785cb0ae35f25",
    },
    Golden {
        qop: Qop::Integrity,
        nonce: "EetBhaZ2Yh7qYD7q/J25kOANlEiEV5ekCWky6Hmx",
        cnonce: "AxJHOi+nIXRiuSbURaENrwuu/b5jwAnTNPRQ4zFB",
        response: "32f645eb503f23ba15bec5e640f563ae",
        rspauth: "1e4eac58061aaf40b0fa579fa058cf93",
    },
    Golden {
        qop: Qop::Privacy,
        nonce: "RsVT9Kb2cZXNKMSP+u71IkJeakFcQaaDL7NTe8z0",
        cnonce: "omMmHjqco58UTXcd3SPYURWsnkr220JNz9HvWH2e",
        response: "7e8b0f76a44f23179f76ad618476f106",
        rspauth: "43686858a2941fab34e991e46695e13b",
    },
];

pub(crate) fn golden_token() -> Token {
    let identifier = hex::decode("0a0d0a0908051080d095ffbc3110011007").expect("hex");
    Token::new(identifier, *b"0123456789abcdefghij", "YARN_AM_RM_TOKEN", "")
}

impl Golden {
    pub(crate) fn challenge(&self) -> String {
        format!(
            "realm=\"default\",nonce=\"{}\",qop=\"{}\",charset=utf-8,\
             cipher=\"3des,rc4,des,rc4-56,rc4-40\",algorithm=md5-sess",
            self.nonce,
            self.qop.sasl_name()
        )
    }

    /// The client's end.
    pub(crate) fn exchange(&self) -> DigestExchange {
        let challenge = self.challenge();
        DigestExchange::answer(challenge.as_bytes(), &golden_token(), &[self.qop], self.cnonce)
            .expect("the challenge is good")
    }

    /// The server's end of the layer.
    pub(crate) fn server_layer(&self) -> Option<DigestLayer> {
        let token = golden_token();
        let name = BASE64_STANDARD.encode(token.identifier());
        let password = BASE64_STANDARD.encode(token.password());
        let user = md5(&[format!("{name}:default:{password}").as_bytes()]);
        let ha1 = md5(&[&user, format!(":{}:{}", self.nonce, self.cnonce).as_bytes()]);
        let keys = LayerKeys::of_server(&ha1);
        match self.qop {
            Qop::Auth => None,
            Qop::Integrity => Some(DigestLayer::integrity(&keys, 65_536)),
            Qop::Privacy => Some(DigestLayer::privacy(&keys, 65_536)),
        }
    }
}
