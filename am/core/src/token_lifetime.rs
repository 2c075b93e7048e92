//! Tokens of file systems as the driver reports them: how long they last, and those that it fetched.

use heddle_protocol::control::InstallTokens;

/// How long file systems accept the job's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenLifetime {
    /// From now on until new connections fail, ms.
    pub usable_ms: u64,
    /// From now on until the job must have ended, ms. Later than `usable_ms` where the ApplicationMaster fetches others.
    pub end_ms: u64,
    /// When the tokens end, for display: ms since 1970.
    pub until_ms: u64,
}

/// Tokens that the ApplicationMaster has fetched.
#[derive(Clone, Debug)]
pub struct FetchedTokens {
    /// How long they last.
    pub lifetime: TokenLifetime,
    /// The tokens, and which ones of this attempt they are.
    pub tokens: InstallTokens,
    /// Names each other file system whose last fetch failed, and the cause; empty if there is none.
    pub error: String,
}
