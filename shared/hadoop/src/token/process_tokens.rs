//! The token file of this process: where libraries in it, and its children, find the tokens that it has.
//!
//! Libraries read the file that `HADOOP_TOKEN_FILE_LOCATION` names, at each new connection. It is replaced as a whole: a
//! reader sees the old or the new content. In a container it is the file that the NodeManager wrote, replaced by a rename,
//! so that a program that the container becomes finds it too. Elsewhere it has no name in any directory, so nothing is left
//! when the process ends; its path is valid for processes of the same user as long as this process lives.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use nix::fcntl::OFlag;
use nix::unistd::dup3;
use zeroize::Zeroizing;

use super::{Credentials, CredentialsSourceError, Token};

static INSTALLED: OnceLock<ProcessTokens> = OnceLock::new();

/// The tokens of this process and their file.
#[derive(Debug)]
pub struct ProcessTokens {
    path: String,
    state: Mutex<TokenFileState>,
    replaced: AtomicU64,
}

#[derive(Debug)]
struct TokenFileState {
    place: TokenPlace,
    /// Tokens with the services that Java gives them.
    tokens: Credentials,
    /// The names by which libraries look tokens up: the kind and the service of the token.
    aliases: BTreeMap<String, (String, String)>,
}

/// Where the content is.
#[derive(Debug)]
enum TokenPlace {
    /// A file without a name.
    Unnamed(OwnedFd),
    /// A file of a container.
    Named(PathBuf),
}

impl ProcessTokens {
    /// Makes the file of this process with the tokens of its session. The caller names it in
    /// `HADOOP_TOKEN_FILE_LOCATION`. Later calls return the first file.
    ///
    /// # Errors
    /// The system has no room for it.
    pub fn install(session: Credentials) -> std::io::Result<&'static Self> {
        let made = Self::make(session)?;
        Ok(INSTALLED.get_or_init(|| made))
    }

    /// Takes the file that a NodeManager wrote for this container. Later calls return the first file.
    ///
    /// # Errors
    /// The file cannot be read or replaced.
    pub fn install_at(path: &Path) -> Result<&'static Self, CredentialsSourceError> {
        let made = Self::make_at(path)?;
        Ok(INSTALLED.get_or_init(|| made))
    }

    /// The file of this process, if it has one.
    #[must_use]
    pub fn installed() -> Option<&'static Self> {
        INSTALLED.get()
    }

    fn make(tokens: Credentials) -> std::io::Result<Self> {
        let file = file_of(&tokens)?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        Ok(Self::with(path, TokenPlace::Unnamed(file), tokens))
    }

    fn make_at(path: &Path) -> Result<Self, CredentialsSourceError> {
        let tokens = Credentials::read_file(path)?;
        // NodeManagers leave it readable for others. Where it cannot be replaced, the caller uses another one.
        tokens.write_file(path)?;
        Ok(Self::with(path.display().to_string(), TokenPlace::Named(path.to_owned()), tokens))
    }

    fn with(path: String, place: TokenPlace, tokens: Credentials) -> Self {
        let state = TokenFileState { place, tokens, aliases: BTreeMap::new() };
        Self { path, state: Mutex::new(state), replaced: AtomicU64::new(0) }
    }

    /// Path of the file.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The tokens and secrets, each once, with the services that Java gives them.
    #[must_use]
    pub fn credentials(&self) -> Credentials {
        self.lock().tokens.clone()
    }

    /// How often tokens were [replaced](Self::replace). A connection that was opened with another number has old ones.
    #[must_use]
    pub fn replaced_count(&self) -> u64 {
        self.replaced.load(Ordering::Acquire)
    }

    /// Adds a token. `lookup` is the service by which a library looks it up, if it differs from the token's own.
    ///
    /// # Errors
    /// The system has no room for the new content. The file then has the old one.
    pub fn add(&self, token: &Token, lookup: &str) -> std::io::Result<()> {
        let mut state = self.lock();
        if state.aliases.contains_key(token.service()) {
            // Read from the file under this name: a copy, which would not be replaced with its original.
            return Ok(());
        }
        state.tokens.add(token.clone());
        if token.service() != lookup {
            let name = (token.kind().to_owned(), token.service().to_owned());
            state.aliases.insert(lookup.to_owned(), name);
        }
        state.write()
    }

    /// Replaces the tokens of the same kind and service by these, and adds those that are new. They have their names for
    /// libraries too.
    ///
    /// # Errors
    /// See [`ProcessTokens::add`].
    pub fn replace(&self, newer: &Credentials) -> std::io::Result<()> {
        let mut state = self.lock();
        for (_, token) in newer.tokens() {
            state.tokens.replace(token.clone());
        }
        state.write()?;
        self.replaced.fetch_add(1, Ordering::Release);
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, TokenFileState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TokenFileState {
    /// Replaces the content of the file.
    fn write(&mut self) -> std::io::Result<()> {
        let mut all = self.tokens.clone();
        for (lookup, (kind, service)) in &self.aliases {
            let original = self.tokens.of_kind(kind).find(|token| token.service() == service);
            if let Some(token) = original {
                all.insert(lookup, token.clone().with_service(lookup));
            }
        }
        match &mut self.place {
            TokenPlace::Unnamed(file) => {
                let next = file_of(&all)?;
                // The number of the file stays, and with it the path.
                Ok(dup3(next.as_fd(), file, OFlag::O_CLOEXEC)?)
            }
            TokenPlace::Named(path) => all.write_file(path).map_err(std::io::Error::other),
        }
    }
}

/// A file without a name, which only this user can open: in memory where the system has `/dev/shm`, else in the directory
/// for temporary files. `memfd_create` is not used: Linux before 3.17 and glibc before 2.27 lack it.
fn file_of(credentials: &Credentials) -> std::io::Result<OwnedFd> {
    let mut file = tempfile::tempfile_in("/dev/shm").or_else(|_| tempfile::tempfile())?;
    file.write_all(&Zeroizing::new(credentials.encode()))?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn token(name: &str) -> Token {
        Token::new(name.as_bytes(), *b"p", "K", "127.0.0.1:8020")
    }

    fn session() -> Credentials {
        let mut session = Credentials::new();
        session.add(token("a"));
        session.insert_secret("s", *b"secret");
        session
    }

    fn read(process: &ProcessTokens) -> Credentials {
        Credentials::read_file(Path::new(process.path())).expect("reads")
    }

    #[test]
    fn the_file_has_each_token_under_its_own_and_its_lookup_service() {
        let process = ProcessTokens::make(session()).expect("made");
        assert_eq!(read(&process).tokens().count(), 1);
        assert_eq!(read(&process).secret("s"), Some(&b"secret"[..]));
        let before = process.path().to_owned();
        process.add(&token("a"), "nn.example:8020").expect("added");
        assert_eq!(process.path(), before);
        let services: Vec<_> =
            read(&process).of_kind("K").map(|t| t.service().to_owned()).collect();
        assert_eq!(services, ["127.0.0.1:8020", "nn.example:8020"]);
        assert_eq!(process.credentials().tokens().count(), 1, "a submission has each token once");
        process.add(&token("b"), "127.0.0.1:8020").expect("added");
        assert_eq!(process.credentials().tokens().count(), 2);
    }

    #[test]
    fn newer_tokens_replace_the_old_ones_under_all_names() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("container_tokens");
        session().write_file(&path).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("set");
        for process in [
            ProcessTokens::make(session()).expect("made"),
            ProcessTokens::make_at(&path).expect("made"),
        ] {
            process.add(&token("a"), "nn.example:8020").expect("added");
            let copy = token("a").with_service("nn.example:8020");
            process.add(&copy, "nn.example:8020").expect("known");
            assert_eq!(process.credentials().tokens().count(), 1);
            let mut newer = Credentials::new();
            newer.add(token("b"));
            newer.add(Token::new(*b"c", *b"p", "K", "other:1"));
            assert_eq!(process.replaced_count(), 0);
            process.replace(&newer).expect("replaced");
            assert_eq!(process.replaced_count(), 1);
            let all = read(&process);
            let names: Vec<_> = all.of_kind("K").map(|t| (t.service(), t.identifier())).collect();
            let expected: [(&str, &[u8]); 3] =
                [("127.0.0.1:8020", b"b"), ("nn.example:8020", b"b"), ("other:1", b"c")];
            assert_eq!(names, expected);
            assert_eq!(all.secret("s"), Some(&b"secret"[..]));
        }
        let mode = std::fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(ProcessTokens::make_at(&dir.path().join("none")).is_err());
    }
}
