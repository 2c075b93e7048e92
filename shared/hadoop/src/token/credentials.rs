//! Credentials: the tokens and secrets with which a process authenticates.
//!
//! Format of a credentials file ("HDTS"), and of `ContainerLaunchContext.tokens`:
//!
//! | part | format 0, Writable | format 1, protocol buffers |
//! | --- | --- | --- |
//! | header | `48 44 54 53` `00` | `48 44 54 53` `01` |
//! | tokens | vint count; each: Text alias, token | one delimited `CredentialsProto` |
//! | secrets | vint count; each: Text alias, vint length, bytes | in the same message |
//!
//! Java reads both formats and writes format 0, as does this module. Source: `security.Credentials`.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use prost::Message;
use zeroize::Zeroizing;

use super::identifier::Identifier;
use super::service_names::ServiceNames;
use super::writable::{WritableError, WritableReader, put_bytes, put_text, put_vlong};
use super::{Token, TokenTextError};
use crate::configuration::{Configuration, Environment, PropertyError};
use crate::proto::common::{CredentialsKvProto, CredentialsProto};

const MAGIC: [u8; 4] = *b"HDTS";
const FORMAT_WRITABLE: u8 = 0;
const FORMAT_PROTOBUF: u8 = 1;
/// Longest file in bytes. Real ones have a few kilobytes.
pub const CREDENTIALS_BYTES_MAX: u64 = 16 << 20;

/// Tokens and secrets by alias. Aliases are unique: another insertion under an alias replaces the first. Secrets and the
/// passwords of tokens are wiped when they are dropped.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    tokens: BTreeMap<String, Token>,
    secrets: BTreeMap<String, Zeroizing<Vec<u8>>>,
}

/// Why bytes are not credentials.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialsError {
    /// The bytes do not begin with `HDTS`.
    #[error("credentials must begin with HDTS")]
    Magic,
    /// An unknown format.
    #[error("the format of credentials must be 0 or 1 (got {0})")]
    Format(u8),
    /// Format 0, which does not decode.
    #[error("cannot decode the credentials")]
    Writable(#[from] WritableError),
    /// Format 1, which does not decode.
    #[error("cannot decode the credentials")]
    Protobuf(#[from] prost::DecodeError),
}

/// Why a credentials file, or a token in the environment, cannot be used.
///
/// A named file that does not exist is an error too, and not an empty set of credentials.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialsSourceError {
    /// The file cannot be read or written.
    #[error("cannot use the token file {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The content of the file does not decode.
    #[error("cannot use the token file {}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: CredentialsError,
    },
    /// A token string does not decode.
    #[error("cannot use a token in {place}")]
    Text {
        /// The variable or key.
        place: &'static str,
        /// The cause.
        source: TokenTextError,
    },
    /// A configuration value does not parse.
    #[error(transparent)]
    Value(#[from] PropertyError),
}

impl Credentials {
    /// Credentials without tokens and secrets.
    pub fn new() -> Self {
        Self::default()
    }

    /// The credentials that Hadoop's clients collect at login: the files of the property or key `hadoop.token.files` and
    /// of `HADOOP_TOKEN_FILE_LOCATION`, and the Base64 tokens of `hadoop.tokens` and `HADOOP_TOKEN`. All are
    /// comma-separated lists.
    ///
    /// # Errors
    /// A named file is missing, unreadable or malformed, or a token string is malformed.
    pub fn of_environment(configuration: &Configuration) -> Result<Self, CredentialsSourceError> {
        let environment: &Environment = configuration.environment();
        let split = |text: Option<&str>| {
            let items =
                text.unwrap_or_default().split(',').map(str::trim).filter(|item| !item.is_empty());
            items.map(str::to_owned).collect::<Vec<_>>()
        };
        let mut all = Self::new();
        let mut files = split(environment.property("hadoop.token.files"));
        files.extend(configuration.list("hadoop.token.files")?);
        files.extend(split(environment.variable("HADOOP_TOKEN_FILE_LOCATION")));
        for file in files {
            all.merge(Self::read_file(Path::new(&file))?);
        }
        let mut texts = Vec::new();
        let property = split(environment.property("hadoop.tokens"));
        texts.extend(property.into_iter().map(|text| ("the property hadoop.tokens", text)));
        texts.extend(
            configuration.list("hadoop.tokens")?.into_iter().map(|text| ("hadoop.tokens", text)),
        );
        texts.extend(
            split(environment.variable("HADOOP_TOKEN"))
                .into_iter()
                .map(|text| ("HADOOP_TOKEN", text)),
        );
        for (place, text) in texts {
            let token = Token::from_url_string(&text)
                .map_err(|source| CredentialsSourceError::Text { place, source })?;
            all.add(token);
        }
        Ok(all)
    }

    /// Reads a credentials file of either format.
    ///
    /// # Errors
    /// The file is missing, unreadable, longer than [`CREDENTIALS_BYTES_MAX`] or malformed.
    pub fn read_file(path: &Path) -> Result<Self, CredentialsSourceError> {
        let io = |source| CredentialsSourceError::Io { path: path.to_owned(), source };
        let mut bytes = Zeroizing::new(Vec::new());
        let file = std::fs::File::open(path).map_err(io)?;
        file.take(CREDENTIALS_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(io)?;
        if bytes.len() as u64 > CREDENTIALS_BYTES_MAX {
            return Err(io(std::io::Error::from(std::io::ErrorKind::FileTooLarge)));
        }
        Self::decode(&bytes)
            .map_err(|source| CredentialsSourceError::Content { path: path.to_owned(), source })
    }

    /// Writes a file of format 0 that only its owner can read. The write is atomic: a temporary file in the same
    /// directory is synced and renamed. Processes that have the old file open keep its content.
    ///
    /// # Errors
    /// The file system fails.
    pub fn write_file(&self, path: &Path) -> Result<(), CredentialsSourceError> {
        let io = |source| CredentialsSourceError::Io { path: path.to_owned(), source };
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.tmp", std::process::id()));
        let temporary = path.with_file_name(name);
        let write = || {
            use std::os::unix::fs::OpenOptionsExt as _;
            // A temporary file of a killed process with the same id would keep its permissions.
            let _ = std::fs::remove_file(&temporary);
            let mut file = std::fs::OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&temporary)?;
            file.write_all(&Zeroizing::new(self.encode()))?;
            file.sync_all()?;
            std::fs::rename(&temporary, path)
        };
        write().map_err(|error| {
            let _ = std::fs::remove_file(&temporary);
            io(error)
        })
    }

    /// Decodes bytes of either format.
    ///
    /// # Errors
    /// See [`CredentialsError`]. Memory is allocated for present bytes only, whatever the counts in them.
    pub fn decode(bytes: &[u8]) -> Result<Self, CredentialsError> {
        let rest = bytes.strip_prefix(&MAGIC).ok_or(CredentialsError::Magic)?;
        let mut reader = WritableReader::new(rest);
        match reader.byte()? {
            FORMAT_WRITABLE => Ok(Self::decode_writable(&mut reader)?),
            FORMAT_PROTOBUF => Ok(CredentialsProto::decode_length_delimited(&rest[1..])?.into()),
            format => Err(CredentialsError::Format(format)),
        }
    }

    fn decode_writable(reader: &mut WritableReader<'_>) -> Result<Self, WritableError> {
        let mut credentials = Self::new();
        for _ in 0..reader.count()? {
            let alias = reader.text()?.to_owned();
            credentials.tokens.insert(alias, Token::read(reader)?);
        }
        for _ in 0..reader.count()? {
            let alias = reader.text()?.to_owned();
            credentials.secrets.insert(alias, Zeroizing::new(reader.bytes()?.to_vec()));
        }
        Ok(credentials)
    }

    /// The bytes in format 0, header included.
    pub fn encode(&self) -> Vec<u8> {
        let count =
            |length: usize| i64::try_from(length).expect("a length in memory fits in an i64");
        let mut out = MAGIC.to_vec();
        out.push(FORMAT_WRITABLE);
        put_vlong(&mut out, count(self.tokens.len()));
        for (alias, token) in &self.tokens {
            put_text(&mut out, alias);
            token.write(&mut out);
        }
        put_vlong(&mut out, count(self.secrets.len()));
        for (alias, secret) in &self.secrets {
            put_text(&mut out, alias);
            put_bytes(&mut out, secret);
        }
        out
    }

    /// The bytes in format 1, header included.
    pub fn encode_protobuf(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.push(FORMAT_PROTOBUF);
        out.extend_from_slice(&CredentialsProto::from(self).encode_length_delimited_to_vec());
        out
    }

    /// Inserts a token under an alias; returns the token that it replaces.
    pub fn insert(&mut self, alias: impl Into<String>, token: Token) -> Option<Token> {
        self.tokens.insert(alias.into(), token)
    }

    /// Adds a token under a free alias: its service, with a number if another token has that alias. An equal token is not
    /// added again.
    pub fn add(&mut self, token: Token) {
        if self.tokens.values().any(|present| *present == token) {
            return;
        }
        let mut alias = token.service().to_owned();
        let mut number = 1;
        while self.tokens.contains_key(&alias) {
            number += 1;
            alias = format!("{}#{number}", token.service());
        }
        self.tokens.insert(alias, token);
    }

    /// Replaces the token of the same kind and service, under its alias; adds the token if there is none.
    pub fn replace(&mut self, token: Token) {
        let same =
            |old: &&mut Token| old.kind() == token.kind() && old.service() == token.service();
        match self.tokens.values_mut().find(same) {
            Some(old) => *old = token,
            None => self.add(token),
        }
    }

    /// Inserts a secret under an alias; returns the secret that it replaces.
    pub fn insert_secret(
        &mut self,
        alias: impl Into<String>,
        secret: impl Into<Vec<u8>>,
    ) -> Option<Vec<u8>> {
        let secret = Zeroizing::new(secret.into());
        self.secrets.insert(alias.into(), secret).map(|mut old| std::mem::take(&mut *old))
    }

    /// Removes a secret; returns it.
    pub fn remove_secret(&mut self, alias: &str) -> Option<Vec<u8>> {
        self.secrets.remove(alias).map(|mut secret| std::mem::take(&mut *secret))
    }

    /// A secret by its alias.
    pub fn secret(&self, alias: &str) -> Option<&[u8]> {
        self.secrets.get(alias).map(|secret| secret.as_slice())
    }

    /// All secrets with their aliases, in the order of the aliases.
    pub fn secrets(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.secrets.iter().map(|(alias, secret)| (alias.as_str(), secret.as_slice()))
    }

    /// A token by its alias.
    pub fn token(&self, alias: &str) -> Option<&Token> {
        self.tokens.get(alias)
    }

    /// All tokens with their aliases, in the order of the aliases.
    pub fn tokens(&self) -> impl Iterator<Item = (&str, &Token)> {
        self.tokens.iter().map(|(alias, token)| (alias.as_str(), token))
    }

    /// The tokens of one kind, in the order of their aliases.
    pub fn of_kind(&self, kind: &str) -> impl Iterator<Item = &Token> {
        self.tokens().map(|(_, token)| token).filter(move |token| token.kind() == kind)
    }

    /// The token of one kind for one service: the one with the most specific of its names.
    pub fn for_service(&self, kind: &str, service: &ServiceNames) -> Option<&Token> {
        let ranked =
            self.of_kind(kind).filter_map(|token| Some((service.rank(token.service())?, token)));
        ranked.min_by_key(|(rank, _)| *rank).map(|(_, token)| token)
    }

    /// When the first delegation token of a kind reaches its maximum lifetime, in milliseconds since the epoch; `None`
    /// without such a token.
    pub fn first_end_ms(&self, kind: &str) -> Option<u64> {
        let ends = self.of_kind(kind).filter_map(|token| match Identifier::of(token) {
            Ok(Identifier::Delegation(identifier)) => u64::try_from(identifier.max_date_ms).ok(),
            _ => None,
        });
        ends.min()
    }

    /// Removes the tokens of a kind, such as the AMRM token before containers receive the credentials. Returns their
    /// number.
    pub fn remove_kind(&mut self, kind: &str) -> usize {
        let before = self.tokens.len();
        self.tokens.retain(|_, token| token.kind() != kind);
        before - self.tokens.len()
    }

    /// Adds all tokens and secrets of `other`, which take precedence under equal aliases.
    pub fn merge(&mut self, other: Self) {
        self.tokens.extend(other.tokens);
        self.secrets.extend(other.secrets);
    }

    /// Whether there are neither tokens nor secrets.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty() && self.secrets.is_empty()
    }
}

impl From<CredentialsProto> for Credentials {
    /// Skips entries without token or secret, as Java does.
    fn from(message: CredentialsProto) -> Self {
        let tokens =
            message.tokens.into_iter().filter_map(|entry| Some((entry.alias, entry.token?.into())));
        let secrets = message
            .secrets
            .into_iter()
            .filter_map(|entry| Some((entry.alias, Zeroizing::new(entry.secret?.to_vec()))));
        Self { tokens: tokens.collect(), secrets: secrets.collect() }
    }
}

impl From<&Credentials> for CredentialsProto {
    fn from(credentials: &Credentials) -> Self {
        let tokens = credentials.tokens.iter().map(|(alias, token)| CredentialsKvProto {
            alias: alias.clone(),
            token: Some(token.into()),
            secret: None,
        });
        let secrets = credentials.secrets.iter().map(|(alias, secret)| CredentialsKvProto {
            alias: alias.clone(),
            token: None,
            secret: Some(secret.to_vec().into()),
        });
        Self { tokens: tokens.collect(), secrets: secrets.collect() }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("tokens", &self.tokens)
            .field("secrets", &self.secrets.keys().collect::<Vec<_>>())
            .finish()
    }
}

#[cfg(test)]
mod tests;
