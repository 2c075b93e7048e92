//! New tokens for this process: into its token file, where the next connection finds them.

use std::path::Path;

use heddle_hadoop::configuration::Environment;
use heddle_hadoop::token::{Credentials, CredentialsError, CredentialsSourceError, ProcessTokens};

/// Why the tokens of this process were not replaced. It has its old ones.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The bytes are not credentials.
    #[error(transparent)]
    Content(#[from] CredentialsError),
    /// The token file cannot be written.
    #[error("cannot write the token file")]
    Write(#[from] std::io::Error),
    /// The token file of a program of the job's own cannot be read or written.
    #[error(transparent)]
    File(#[from] CredentialsSourceError),
    /// The process has no token file.
    #[error("HADOOP_TOKEN_FILE_LOCATION is not set")]
    NoFile,
}

/// Makes the token file of a container that of this process, unless it has one: a program of the job's own is started with
/// the file alone. Connections then find each token also under the address that the configuration has for its server.
///
/// # Errors
/// The file cannot be read or replaced; the process uses it as it is.
pub fn adopt_token_file() -> Result<(), InstallError> {
    let environment = Environment::of_process();
    match environment.variable("HADOOP_TOKEN_FILE_LOCATION") {
        Some(file) if ProcessTokens::installed().is_none() => {
            Ok(ProcessTokens::install_at(Path::new(file)).map(drop)?)
        }
        _ => Ok(()),
    }
}

/// Replaces tokens of this process by those of a credentials file (`bytes`): each the one of its kind and service.
///
/// # Errors
/// See [`InstallError`].
pub fn install_tokens(bytes: &[u8]) -> Result<(), InstallError> {
    let newer = Credentials::decode(bytes)?;
    if let Some(process) = ProcessTokens::installed() {
        return Ok(process.replace(&newer)?);
    }
    // A program of the job's own, which was started with the file alone.
    let environment = Environment::of_process();
    let file = environment.variable("HADOOP_TOKEN_FILE_LOCATION").ok_or(InstallError::NoFile)?;
    let file = Path::new(file);
    let mut all = Credentials::read_file(file)?;
    for (_, token) in newer.tokens() {
        all.replace(token.clone());
    }
    Ok(all.write_file(file)?)
}
