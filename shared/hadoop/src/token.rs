//! Security tokens, credentials files, and the selection of a token for a service.
//!
//! A token has three encodings:
//!
//! | form | layout |
//! | --- | --- |
//! | Writable | vint n, identifier; vint n, password; Text kind; Text service |
//! | URL string | URL-safe Base64 without padding of the Writable form |
//! | protocol buffers | [`TokenProto`] |
//!
//! Source: `security.token.Token`.

mod credentials;
mod identifier;
mod process_tokens;
mod renewal;
mod service_names;
// Public for tests and fuzz targets; no promise of stability.
#[doc(hidden)]
pub mod writable;

use base64::Engine as _;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::prelude::BASE64_URL_SAFE_NO_PAD;

pub use credentials::{
    CREDENTIALS_BYTES_MAX, Credentials, CredentialsError, CredentialsSourceError,
};
pub use identifier::{DelegationIdentifier, Identifier, IdentifierError, token_kind};
pub use process_tokens::ProcessTokens;
pub use renewal::renewal_configuration;
pub use service_names::ServiceNames;

use crate::proto::common::TokenProto;
use writable::{WritableError, WritableReader, put_bytes, put_text};
use zeroize::{Zeroize as _, Zeroizing};

/// Base64 with optional padding. Java writes none; other tools do.
const URL_SAFE: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::URL_SAFE,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Why a text is not a token. The error does not show the text, which is a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenTextError {
    /// Not URL-safe Base64.
    #[error("the token is not URL-safe Base64")]
    Base64,
    /// The decoded bytes are not a token.
    #[error("cannot decode the token")]
    Writable(#[from] WritableError),
}

/// A token: an identifier that the server can decode, and a password that only the server and the holder have.
///
/// The password never appears in `Debug` output, and is wiped when the token is dropped.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Token {
    identifier: Vec<u8>,
    password: Vec<u8>,
    kind: String,
    service: String,
}

impl Token {
    /// A token from its four parts; `service` may be empty.
    pub fn new(
        identifier: impl Into<Vec<u8>>,
        password: impl Into<Vec<u8>>,
        kind: impl Into<String>,
        service: impl Into<String>,
    ) -> Self {
        Self {
            identifier: identifier.into(),
            password: password.into(),
            kind: kind.into(),
            service: service.into(),
        }
    }

    /// The identifier, encoded as its kind requires.
    pub fn identifier(&self) -> &[u8] {
        &self.identifier
    }

    /// The password: a secret.
    pub fn password(&self) -> &[u8] {
        &self.password
    }

    /// The kind, such as `HDFS_DELEGATION_TOKEN`.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The service for which it was issued; may be empty.
    pub fn service(&self) -> &str {
        &self.service
    }

    /// The same token with another service. Servers do not receive the service field.
    #[must_use]
    pub fn with_service(mut self, service: impl Into<String>) -> Self {
        self.service = service.into();
        self
    }

    /// Decodes the Writable form.
    ///
    /// # Errors
    /// The bytes are not a token.
    pub fn read(reader: &mut WritableReader<'_>) -> Result<Self, WritableError> {
        let (identifier, password) = (reader.bytes()?, reader.bytes()?);
        Ok(Self::new(identifier, password, reader.text()?, reader.text()?))
    }

    /// Appends the Writable form.
    pub fn write(&self, out: &mut Vec<u8>) {
        put_bytes(out, &self.identifier);
        put_bytes(out, &self.password);
        put_text(out, &self.kind);
        put_text(out, &self.service);
    }

    /// The form for environment variables and URLs. It is a secret.
    pub fn to_url_string(&self) -> String {
        let mut bytes = Zeroizing::new(Vec::new());
        self.write(&mut bytes);
        BASE64_URL_SAFE_NO_PAD.encode(&*bytes)
    }

    /// Parses the form of [`Token::to_url_string`], with or without padding.
    ///
    /// # Errors
    /// The text is not Base64, or is not exactly one token.
    pub fn from_url_string(text: &str) -> Result<Self, TokenTextError> {
        let bytes = URL_SAFE.decode(text.trim()).map_err(|_| TokenTextError::Base64)?;
        let bytes = Zeroizing::new(bytes);
        let mut reader = WritableReader::new(&bytes);
        let token = Self::read(&mut reader)?;
        reader.end()?;
        Ok(token)
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        self.password.zeroize();
    }
}

impl From<TokenProto> for Token {
    fn from(message: TokenProto) -> Self {
        Self::new(message.identifier, message.password, message.kind, message.service)
    }
}

impl From<&Token> for TokenProto {
    fn from(token: &Token) -> Self {
        Self {
            identifier: token.identifier.clone().into(),
            password: token.password.clone().into(),
            kind: token.kind.clone(),
            service: token.service.clone(),
        }
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Token")
            .field("kind", &self.kind)
            .field("service", &self.service)
            .field("identifier", &format_args!("[{} bytes]", self.identifier.len()))
            .field("password", &format_args!("[{} bytes]", self.password.len()))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn url_strings_and_messages_carry_the_whole_token(
            identifier: Vec<u8>, password: Vec<u8>, kind: String, service: String,
        ) {
            let token = Token::new(identifier, password, kind, service);
            prop_assert_eq!(Token::from_url_string(&token.to_url_string()), Ok(token.clone()));
            prop_assert_eq!(Token::from(TokenProto::from(&token)), token);
        }

        #[test]
        fn any_text_gives_a_token_or_an_error(text in "[A-Za-z0-9_=-]{0,60}") {
            let _ = Token::from_url_string(&text);
        }
    }

    #[test]
    fn padding_is_accepted_and_trailing_bytes_are_not() {
        let text = Token::new(*b"i", *b"p", "kind", "s").to_url_string();
        let padded = format!("{text}{}", "=".repeat((4 - text.len() % 4) % 4));
        assert!(Token::from_url_string(&padded).is_ok());
        let mut bytes = BASE64_URL_SAFE_NO_PAD.decode(&text).expect("Base64");
        bytes.push(0);
        let longer = BASE64_URL_SAFE_NO_PAD.encode(bytes);
        assert!(matches!(Token::from_url_string(&longer), Err(TokenTextError::Writable(_))));
    }
}
