//! The client of calls that hdfs-native lacks, and its login.

use std::sync::{Arc, Mutex, PoisonError};

use heddle_hadoop::configuration::{Configuration, NameService};
use heddle_hadoop::namenode::NameNode;
use heddle_hadoop::token::ProcessTokens;

use super::login::{self, OwnFailure};

/// The connection for calls that hdfs-native lacks, opened at the first of them, and again when this process gets other
/// tokens.
#[derive(Debug)]
pub(super) struct Direct {
    service: NameService,
    configuration: Configuration,
    /// The client, and the count of replaced tokens at its login.
    namenode: Mutex<Option<(u64, Arc<NameNode>)>>,
    /// One login at a time.
    logging_in: tokio::sync::Mutex<()>,
    secured: bool,
}

impl Direct {
    pub(super) fn new(service: NameService, configuration: Configuration, secured: bool) -> Self {
        let namenode = Mutex::new(None);
        Self {
            service,
            configuration,
            namenode,
            logging_in: tokio::sync::Mutex::default(),
            secured,
        }
    }

    /// Whether the file system requires a login.
    pub(super) fn is_secured(&self) -> bool {
        self.secured
    }

    /// The NameNodes.
    pub(super) fn service(&self) -> &NameService {
        &self.service
    }

    /// Whether there is a client that logged in with the present tokens.
    pub(super) fn is_logged_in(&self) -> bool {
        self.current().is_some()
    }

    /// The client; logs in where it must.
    ///
    /// # Errors
    /// There is no usable login.
    pub(super) async fn namenode(&self) -> Result<Arc<NameNode>, OwnFailure> {
        if let Some(namenode) = self.current() {
            return Ok(namenode);
        }
        let _one_login = self.logging_in.lock().await;
        if let Some(namenode) = self.current() {
            return Ok(namenode);
        }
        let count = replaced_count();
        let namenode = Arc::new(login::log_in(&self.service, &self.configuration).await?);
        *self.namenode.lock().unwrap_or_else(PoisonError::into_inner) =
            Some((count, Arc::clone(&namenode)));
        Ok(namenode)
    }

    /// The client, if it logged in with the present tokens.
    fn current(&self) -> Option<Arc<NameNode>> {
        let namenode = self.namenode.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, namenode) = namenode.as_ref()?;
        (*count == replaced_count()).then(|| Arc::clone(namenode))
    }
}

fn replaced_count() -> u64 {
    ProcessTokens::installed().map_or(0, ProcessTokens::replaced_count)
}
