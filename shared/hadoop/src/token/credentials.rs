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

use super::writable::{WritableError, WritableReader, put_bytes, put_text, put_vlong};
use super::{Token, TokenTextError};
use crate::configuration::{Configuration, Environment, ValueError};
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
    Value(#[from] ValueError),
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
            let items = text
                .unwrap_or_default()
                .split(',')
                .map(str::trim)
                .filter(|item| !item.is_empty());
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
        texts.extend(
            property
                .into_iter()
                .map(|text| ("the property hadoop.tokens", text)),
        );
        texts.extend(
            configuration
                .list("hadoop.tokens")?
                .into_iter()
                .map(|text| ("hadoop.tokens", text)),
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
        let io = |source| CredentialsSourceError::Io {
            path: path.to_owned(),
            source,
        };
        let mut bytes = Vec::new();
        let file = std::fs::File::open(path).map_err(io)?;
        file.take(CREDENTIALS_BYTES_MAX + 1)
            .read_to_end(&mut bytes)
            .map_err(io)?;
        if bytes.len() as u64 > CREDENTIALS_BYTES_MAX {
            return Err(io(std::io::Error::from(std::io::ErrorKind::FileTooLarge)));
        }
        Self::decode(&bytes).map_err(|source| CredentialsSourceError::Content {
            path: path.to_owned(),
            source,
        })
    }

    /// Writes a file of format 0, readable by its owner alone, whole or not at all: a temporary file beside it is
    /// synced and renamed. Readers that have it open keep the old content.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn write_file(&self, path: &Path) -> Result<(), CredentialsSourceError> {
        let io = |source| CredentialsSourceError::Io {
            path: path.to_owned(),
            source,
        };
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
        self.tokens
            .iter()
            .map(|(alias, token)| (alias.as_str(), token))
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
        let tokens = message
            .tokens
            .into_iter()
            .filter_map(|entry| Some((entry.alias, entry.token?.into())));
        let secrets = message
            .secrets
            .into_iter()
            .filter_map(|entry| Some((entry.alias, entry.secret?.to_vec())));
        Self {
            tokens: tokens.collect(),
            secrets: secrets.collect(),
        }
    }
}

impl From<&Credentials> for CredentialsProto {
    fn from(credentials: &Credentials) -> Self {
        let tokens = credentials
            .tokens
            .iter()
            .map(|(alias, token)| CredentialsKvProto {
                alias: alias.clone(),
                token: Some(token.into()),
                secret: None,
            });
        let secrets = credentials
            .secrets
            .iter()
            .map(|(alias, secret)| CredentialsKvProto {
                alias: alias.clone(),
                token: None,
                secret: Some(secret.clone().into()),
            });
        Self {
            tokens: tokens.collect(),
            secrets: secrets.collect(),
        }
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
mod tests {
    use super::*;
    use crate::configuration::Environment;
    use proptest::prelude::*;

    /// One AMRM token with empty alias and service, one secret; both files written by Java.
    const FORMAT_0: &str = "48445453000100110a0d0a0908051080d095ffbc311001100714303132333435363738396162636465666768696a\
        105941524e5f414d5f524d5f544f4b454e00010d686564646c652e73656372657403010203";
    const FORMAT_1: &str = "4844545301590a410a00123d0a110a0d0a0908051080d095ffbc311001100712143031323334353637383961626364\
        65666768696a1a105941524e5f414d5f524d5f544f4b454e220012140a0d686564646c652e7365637265741a03010203";

    fn golden() -> Credentials {
        let identifier = hex::decode("0a0d0a0908051080d095ffbc3110011007").expect("hex");
        let mut credentials = Credentials::new();
        credentials.insert(
            "",
            Token::new(identifier, *b"0123456789abcdefghij", "YARN_AM_RM_TOKEN", ""),
        );
        credentials.insert_secret("heddle.secret", [1, 2, 3]);
        credentials
    }

    fn bytes(text: &str) -> Vec<u8> {
        hex::decode(text).expect("hex")
    }

    #[test]
    fn both_formats_are_read_and_written_as_java_does() {
        for format in [FORMAT_0, FORMAT_1] {
            assert_eq!(Credentials::decode(&bytes(format)), Ok(golden()));
        }
        assert_eq!(hex::encode(golden().encode()), FORMAT_0);
        assert_eq!(hex::encode(golden().encode_protobuf()), FORMAT_1);
    }

    #[test]
    fn every_truncation_is_an_error() {
        for format in [FORMAT_0, FORMAT_1] {
            let bytes = bytes(format);
            for length in 0..bytes.len() {
                Credentials::decode(&bytes[..length]).expect_err("was cut");
            }
        }
    }

    #[test]
    fn wrong_magic_future_formats_and_huge_counts_are_refused() {
        assert_eq!(
            Credentials::decode(b"HDTX\0\0\0"),
            Err(CredentialsError::Magic)
        );
        assert_eq!(
            Credentials::decode(b"HDTS\x02"),
            Err(CredentialsError::Format(2))
        );
        for count in ["8c7fffffff", "887fffffffffffffff", "ff"] {
            let damaged = bytes(&format!("4844545300{count}"));
            assert!(
                matches!(
                    Credentials::decode(&damaged),
                    Err(CredentialsError::Writable(_))
                ),
                "{count}"
            );
        }
        Credentials::decode(&bytes("4844545301ffffffff0f0a")).expect_err("the length is a lie");
    }

    #[test]
    fn debug_output_has_no_secret() {
        let shown = format!("{:?}", golden());
        assert!(
            shown.contains("YARN_AM_RM_TOKEN") && shown.contains("heddle.secret"),
            "{shown}"
        );
        assert!(
            !shown.contains("0123456789") && !shown.contains("48, 49"),
            "{shown}"
        );
        assert!(!shown.contains("1, 2, 3"), "{shown}");
    }

    #[test]
    fn tokens_of_one_service_do_not_replace_each_other() {
        let mut credentials = Credentials::new();
        for identifier in [b"a", b"b", b"a"] {
            credentials.add(Token::new(*identifier, *b"p", "K", "nn:8020"));
        }
        let aliases: Vec<_> = credentials.tokens().map(|(alias, _)| alias).collect();
        assert_eq!(aliases, ["nn:8020", "nn:8020#2"]);
    }

    #[test]
    fn files_are_private_and_replaced_whole() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("tokens");
        std::fs::write(&path, "old").expect("is written");
        golden().write_file(&path).expect("is written");
        assert_eq!(Credentials::read_file(&path).expect("is read"), golden());
        let mode = std::fs::metadata(&path)
            .expect("is there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(
            std::fs::read_dir(directory.path())
                .expect("is there")
                .count(),
            1,
            "the temporary file is gone"
        );
    }

    #[test]
    fn the_environment_names_files_and_tokens() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("tokens");
        golden().write_file(&path).expect("is written");
        let other = Token::new(*b"i", *b"p", "K", "s");
        let environment = Environment::empty()
            .with_variable("HADOOP_TOKEN_FILE_LOCATION", path.display().to_string())
            .with_variable("HADOOP_TOKEN", other.to_url_string());
        let configuration = Configuration::with_defaults(environment);
        let credentials = Credentials::of_environment(&configuration).expect("is read");
        assert_eq!(credentials.tokens().count(), 2);
        assert_eq!(credentials.token("s"), Some(&other));
    }

    #[test]
    fn a_file_that_is_named_must_be_there() {
        let environment =
            Environment::empty().with_variable("HADOOP_TOKEN_FILE_LOCATION", "/no/such/file");
        let credentials = Credentials::of_environment(&Configuration::with_defaults(environment));
        assert!(matches!(
            credentials,
            Err(CredentialsSourceError::Io { .. })
        ));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            tokens in proptest::collection::btree_map(".{0,8}", (any::<Vec<u8>>(), any::<Vec<u8>>(), ".{0,8}", ".{0,8}"), 0..4),
            secrets in proptest::collection::btree_map(".{0,8}", any::<Vec<u8>>(), 0..4),
        ) {
            let mut credentials = Credentials::new();
            for (alias, (identifier, password, kind, service)) in tokens {
                credentials.insert(alias, Token::new(identifier, password, kind, service));
            }
            for (alias, secret) in secrets {
                credentials.insert_secret(alias, secret);
            }
            prop_assert_eq!(Credentials::decode(&credentials.encode()), Ok(credentials.clone()));
            prop_assert_eq!(Credentials::decode(&credentials.encode_protobuf()), Ok(credentials));
        }

        #[test]
        fn any_bytes_give_credentials_or_an_error(format in 0_u8..3, rest in proptest::collection::vec(any::<u8>(), 0..80)) {
            let mut bytes = b"HDTS".to_vec();
            bytes.push(format);
            bytes.extend_from_slice(&rest);
            let _ = Credentials::decode(&bytes);
        }
    }
}
