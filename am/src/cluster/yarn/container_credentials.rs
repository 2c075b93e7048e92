//! The credentials of containers that will be started. Clones share them.

use std::sync::{Arc, Mutex, PoisonError};

use heddle_hadoop::token::Credentials;

/// The job's secret and the tokens of file systems, without the ApplicationMaster's own.
#[derive(Clone)]
pub struct ContainerCredentials(Arc<Mutex<Credentials>>);

impl ContainerCredentials {
    /// Credentials of the submission.
    #[must_use]
    pub fn new(credentials: Credentials) -> Self {
        Self(Arc::new(Mutex::new(credentials)))
    }

    /// Replaces tokens of the same kinds and services.
    pub fn replace(&self, newer: &Credentials) {
        let mut credentials = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (_, token) in newer.tokens() {
            credentials.replace(token.clone());
        }
    }

    /// The bytes of a credentials file.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).encode()
    }
}
