//! Security tokens: what they are, how files of them are read and written, which one fits a service.

/// A token: an identifier that the server can read, and a password that only it and the holder know.
///
/// Source: `security.token.Token`. The password never appears in `Debug` output.
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

    /// The identifier, in the form of its kind.
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

    /// For which service it is, as far as whoever delivered it says so.
    pub fn service(&self) -> &str {
        &self.service
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Token")
            .field("kind", &self.kind)
            .field("service", &self.service)
            .field(
                "identifier",
                &format_args!("[{} bytes]", self.identifier.len()),
            )
            .field("password", &format_args!("[{} bytes]", self.password.len()))
            .finish()
    }
}
