//! The token file of this process: where libraries in it, and its children, find the tokens that it has.
//!
//! Libraries read the file that `HADOOP_TOKEN_FILE_LOCATION` names, at each new connection. This one has no name in any
//! directory, so nothing is left when the process ends, and it is replaced as a whole: a reader sees the old or the new content. Its path is valid
//! for processes of the same user as long as this process lives.

use std::io::Write as _;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Mutex, OnceLock, PoisonError};

use nix::fcntl::OFlag;
use nix::unistd::dup3;

use super::{Credentials, Token};

static INSTALLED: OnceLock<ProcessTokens> = OnceLock::new();

/// The tokens of this process and their file.
#[derive(Debug)]
pub struct ProcessTokens {
    path: String,
    state: Mutex<TokenFileState>,
}

#[derive(Debug)]
struct TokenFileState {
    file: OwnedFd,
    /// Tokens with the services that Java gives them.
    tokens: Credentials,
    /// The same tokens under the names by which libraries look them up.
    aliases: Credentials,
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

    /// The file of this process, if it has one.
    #[must_use]
    pub fn installed() -> Option<&'static Self> {
        INSTALLED.get()
    }

    fn make(tokens: Credentials) -> std::io::Result<Self> {
        let file = file_of(&tokens)?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        let state = TokenFileState { file, tokens, aliases: Credentials::new() };
        Ok(Self { path, state: Mutex::new(state) })
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

    /// Adds a token. `lookup` is the service by which a library looks it up, if it differs from the token's own.
    ///
    /// # Errors
    /// The system has no room for the new content. The file then has the old one.
    pub fn add(&self, token: &Token, lookup: &str) -> std::io::Result<()> {
        let mut state = self.lock();
        state.tokens.add(token.clone());
        if token.service() != lookup {
            state.aliases.insert(lookup, token.clone().with_service(lookup));
        }
        let mut all = state.tokens.clone();
        for (_, alias) in state.aliases.tokens() {
            all.add(alias.clone());
        }
        let next = file_of(&all)?;
        // The number of the file stays, and with it the path.
        dup3(next.as_fd(), &mut state.file, OFlag::O_CLOEXEC)?;
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, TokenFileState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A file without a name, which only this user can open: in memory where the system has `/dev/shm`, else in the directory
/// for temporary files. `memfd_create` is not used: Linux before 3.17 and glibc before 2.27 lack it.
fn file_of(credentials: &Credentials) -> std::io::Result<OwnedFd> {
    let mut file = tempfile::tempfile_in("/dev/shm").or_else(|_| tempfile::tempfile())?;
    file.write_all(&credentials.encode())?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_file_has_each_token_under_its_own_and_its_lookup_service() {
        let token = |name: &str| Token::new(name.as_bytes(), *b"p", "K", "127.0.0.1:8020");
        let mut session = Credentials::new();
        session.add(token("a"));
        session.insert_secret("s", *b"secret");
        let process = ProcessTokens::make(session).expect("made");
        let read = || Credentials::read_file(Path::new(process.path())).expect("reads");
        assert_eq!(read().tokens().count(), 1);
        assert_eq!(read().secret("s"), Some(&b"secret"[..]));
        let before = process.path().to_owned();
        process.add(&token("a"), "nn.example:8020").expect("added");
        assert_eq!(process.path(), before);
        let services: Vec<_> = read().of_kind("K").map(|t| t.service().to_owned()).collect();
        assert_eq!(services, ["127.0.0.1:8020", "nn.example:8020"]);
        assert_eq!(process.credentials().tokens().count(), 1, "a submission has each token once");
        process.add(&token("b"), "127.0.0.1:8020").expect("added");
        assert_eq!(process.credentials().tokens().count(), 2);
    }
}
