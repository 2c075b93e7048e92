//! Tokens and secrets together: what a process is given to prove who it is.
//!
//! A credentials file ("HDTS"), which is also what `ContainerLaunchContext.tokens` carries:
//!
//! | part | format 0, Writable | format 1, protocol buffers |
//! | --- | --- | --- |
//! | header | `48 44 54 53` `00` | `48 44 54 53` `01` |
//! | tokens | vint count; each: Text alias, token | one delimited `CredentialsProto` |
//! | secrets | vint count; each: Text alias, vint length, bytes | in the same message |
//!
//! Java reads both and writes 0; so do we. Source: `security.Credentials`.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use prost::Message;

use super::service_names::ServiceNames;
use super::writable::{WritableError, WritableReader, put_bytes, put_text, put_vlong};
use super::{Token, TokenTextError};
use crate::configuration::{Configuration, Environment, PropertyError};
use crate::proto::common::{CredentialsKvProto, CredentialsProto};

const MAGIC: [u8; 4] = *b"HDTS";
const FORMAT_WRITABLE: u8 = 0;
const FORMAT_PROTOBUF: u8 = 1;
/// Longest file that is read, in bytes. Real ones have a few kilobytes.
pub const CREDENTIALS_BYTES_MAX: u64 = 16 << 20;

/// Tokens and secrets by alias. Aliases are unique: the same alias again replaces what was there.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    tokens: BTreeMap<String, Token>,
    secrets: BTreeMap<String, Vec<u8>>,
}

/// Why bytes are no credentials.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialsError {
    /// No `HDTS` at the front.
    #[error("the credentials do not begin with HDTS")]
    Magic,
    /// A format from the future.
    #[error("the credentials have format {0}, known are 0 and 1")]
    Format(u8),
    /// Format 0 that does not decode.
    #[error("the credentials are damaged")]
    Writable(#[from] WritableError),
    /// Format 1 that does not decode.
    #[error("the credentials are damaged")]
    Protobuf(#[from] prost::DecodeError),
}

/// Why a credentials file, or a token in the environment, cannot be used.
///
/// None of these means "no tokens": who names a file means it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialsSourceError {
    /// The file cannot be read or written.
    #[error("cannot use the token file {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file's content is wrong.
    #[error("cannot use the token file {}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// Why.
        source: CredentialsError,
    },
    /// A token string is wrong.
    #[error("cannot use a token in {place}")]
    Text {
        /// The variable or key.
        place: &'static str,
        /// Why.
        source: TokenTextError,
    },
    /// A configuration value cannot be used.
    #[error(transparent)]
    Value(#[from] PropertyError),
}

impl Credentials {
    /// None.
    pub fn new() -> Self {
        Self::default()
    }

    /// What Hadoop's clients collect at login: the files of the property or key `hadoop.token.files` and of
    /// `HADOOP_TOKEN_FILE_LOCATION`, the Base64 tokens of `hadoop.tokens` and `HADOOP_TOKEN`; comma lists all of them.
    ///
    /// # Errors
    /// When a file that is named is missing, unreadable or damaged, or a token string is malformed.
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
    /// When it is missing, unreadable, longer than [`CREDENTIALS_BYTES_MAX`] or damaged.
    pub fn read_file(path: &Path) -> Result<Self, CredentialsSourceError> {
        let io = |source| CredentialsSourceError::Io { path: path.to_owned(), source };
        let mut bytes = Vec::new();
        let file = std::fs::File::open(path).map_err(io)?;
        file.take(CREDENTIALS_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(io)?;
        if bytes.len() as u64 > CREDENTIALS_BYTES_MAX {
            return Err(io(std::io::Error::from(std::io::ErrorKind::FileTooLarge)));
        }
        Self::decode(&bytes)
            .map_err(|source| CredentialsSourceError::Content { path: path.to_owned(), source })
    }

    /// Writes a file of format 0, readable by its owner alone, whole or not at all: a temporary file beside it is
    /// synced and renamed. Readers that have it open keep the old content.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn write_file(&self, path: &Path) -> Result<(), CredentialsSourceError> {
        let io = |source| CredentialsSourceError::Io { path: path.to_owned(), source };
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.tmp", std::process::id()));
        let temporary = path.with_file_name(name);
        let write = || {
            use std::os::unix::fs::OpenOptionsExt as _;
            // A temporary file that a killed process of the same id left would keep its permissions.
            let _ = std::fs::remove_file(&temporary);
            let mut file = std::fs::OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&temporary)?;
            file.write_all(&self.encode())?;
            file.sync_all()?;
            std::fs::rename(&temporary, path)
        };
        write().map_err(|error| {
            let _ = std::fs::remove_file(&temporary);
            io(error)
        })
    }

    /// Reads bytes of either format.
    ///
    /// # Errors
    /// See [`CredentialsError`]. Memory is taken only for what the bytes really hold, whatever counts they claim.
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
            credentials.secrets.insert(alias, reader.bytes()?.to_vec());
        }
        Ok(credentials)
    }

    /// The bytes in format 0, header included.
    pub fn encode(&self) -> Vec<u8> {
        let count = |length: usize| i64::try_from(length).expect("fewer than fit in memory");
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

    /// Puts a token under an alias; gives back what was there.
    pub fn insert(&mut self, alias: impl Into<String>, token: Token) -> Option<Token> {
        self.tokens.insert(alias.into(), token)
    }

    /// Adds a token under an alias that is free: its service, with a number behind it when another token has that.
    /// The same token again is not added twice.
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

    /// Puts a secret under an alias; gives back what was there.
    pub fn insert_secret(
        &mut self,
        alias: impl Into<String>,
        secret: impl Into<Vec<u8>>,
    ) -> Option<Vec<u8>> {
        self.secrets.insert(alias.into(), secret.into())
    }

    /// A secret.
    pub fn secret(&self, alias: &str) -> Option<&[u8]> {
        self.secrets.get(alias).map(Vec::as_slice)
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

    /// The token of one kind for one service: the one that is filed under the most specific of its names.
    pub fn for_service(&self, kind: &str, service: &ServiceNames) -> Option<&Token> {
        let ranked =
            self.of_kind(kind).filter_map(|token| Some((service.rank(token.service())?, token)));
        ranked.min_by_key(|(rank, _)| *rank).map(|(_, token)| token)
    }

    /// Aliases of all secrets.
    pub fn secret_aliases(&self) -> impl Iterator<Item = &str> {
        self.secrets.keys().map(String::as_str)
    }

    /// Takes tokens out, such as the AMRM token before credentials are handed to containers; gives how many.
    pub fn remove_kind(&mut self, kind: &str) -> usize {
        let before = self.tokens.len();
        self.tokens.retain(|_, token| token.kind() != kind);
        before - self.tokens.len()
    }

    /// Adds everything of `other`; on equal aliases `other` wins.
    pub fn merge(&mut self, other: Self) {
        self.tokens.extend(other.tokens);
        self.secrets.extend(other.secrets);
    }

    /// Whether there is neither token nor secret.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty() && self.secrets.is_empty()
    }
}

impl From<CredentialsProto> for Credentials {
    /// Entries without the part that they are for are skipped, as Java skips them.
    fn from(message: CredentialsProto) -> Self {
        let tokens =
            message.tokens.into_iter().filter_map(|entry| Some((entry.alias, entry.token?.into())));
        let secrets = message
            .secrets
            .into_iter()
            .filter_map(|entry| Some((entry.alias, entry.secret?.to_vec())));
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
            secret: Some(secret.clone().into()),
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
